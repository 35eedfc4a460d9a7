"""Policies by name or path: shipped ones, runs, policy files, NavRL's checkpoint, scripted pilots.

A policy file is an ordinary Fledge checkpoint with the weights and what is needed to build the network, nothing else.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path
from typing import Any

from fledge.agents.build import LearnedPolicy, build_from_description
from fledge.core.errors import ConfigError, FormatError
from fledge.evaluate.episodes import Policy
from fledge.storage import CheckpointHistory, load_checkpoint, save_checkpoint
from fledge.tasks.navigation.navrl import load_navrl_checkpoint
from fledge.tasks.navigation.pilots import GapPilot, StraightPilot

PILOTS = {"straight": StraightPilot, "gap": GapPilot}


def shipped_policies() -> dict[str, Path]:
    """Policies that come with Fledge, by name."""
    folder = Path(str(importlib.resources.files("fledge.tasks.navigation"))) / "policies"
    return {p.stem: p for p in sorted(folder.glob("*.fledge"))}


def load_policy(name: str) -> Policy:
    """Return the policy called `name`: a shipped one, a pilot, a run's folder, a policy file, or NavRL's `.pt`."""
    if name in PILOTS:
        return PILOTS[name]()
    if name.endswith(".pt"):
        return load_navrl_checkpoint(name)
    return build_policy(load_policy_state(name), name)


def load_policy_state(name: str) -> dict[str, Any]:
    """Weights and description of a policy from a run's folder, a file, or a shipped policy's name."""
    path = shipped_policies().get(name, Path(name))
    if path.is_dir():
        if not (path / "checkpoints").is_dir():
            raise ConfigError(f"{path} is not a run: it has no checkpoints folder.")
        state, _ = CheckpointHistory(path / "checkpoints").load_latest(
            keys=("model", "policy", "task"), allow_thin=True
        )
        return state
    if not path.exists():
        known = ", ".join([*PILOTS, *shipped_policies()])
        raise ConfigError(
            f"There is no policy {name!r}: give a run's folder, a .fledge or NavRL .pt file, or one of {known}."
        )
    return load_checkpoint(path, keys=("model", "policy", "task"))


def build_policy(state: dict[str, Any], name: str) -> LearnedPolicy:
    """The network described by a saved state, with its weights."""
    if not isinstance(state, dict) or "policy" not in state or "model" not in state:
        raise FormatError(f"{name} holds no policy: it has no entries 'model' and 'policy'.")
    policy = build_from_description(state["policy"])
    try:
        policy.load_state_dict(state["model"])
    except RuntimeError as error:
        raise FormatError(f"The weights in {name} do not fit its network: {str(error).splitlines()[0]}") from error
    return policy.eval()


def save_policy(state: dict[str, Any], path: Path) -> None:
    """Write the policy part of a run's state as a policy file."""
    save_checkpoint({k: state[k] for k in ("model", "policy", "task")}, path)
