"""Write a policy to a file: ONNX or TorchScript for other programs, .fledge for Fledge."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fledge.agents.base import STATE_IN
from fledge.agents.export import export_agent, write_golden
from fledge.agents.policy_file import read_policy, write_policy
from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config, nested
from fledge.core.paths import check_output
from fledge.core.settings import flat_settings, refuse_code
from fledge.envs.placement import EnvPlacement
from fledge.evaluation.env_config import eval_env, without_opponent
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import (
    LoadedPolicy,
    check_fit,
    find_policy_file,
    load_policy,
    policy_from_state,
    read_entries,
)
from fledge.tasks.registry import find_task


@dataclasses.dataclass
class ExportResult:
    """Result of `fledge.export`.

    Attributes:
        path: The file that was written.
        bytes: Size of the file.
        max_difference: Largest difference between the policy's and the file's actions on the same observations; for .fledge,
            between their weights.
        contract: Meaning, units and frames of the file's inputs and outputs, and the decision rate; empty for .fledge.
        figures: All results, JSON-able, as `fledge export --json` prints them.
    """

    path: Path
    bytes: int
    max_difference: float
    contract: dict[str, Any] = dataclasses.field(repr=False)
    figures: dict[str, Any] = dataclasses.field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return all results, JSON-able, as `fledge export --json` prints them."""
        return self.figures


def export_policy(
    given: str | LoadedPolicy,
    path: Path,
    task: Task | None = None,
    overrides: Sequence[str] = (),
    golden: Path | None = None,
) -> dict[str, Any]:
    """Write a policy to a file: .onnx or .ts for other programs, .fledge as a policy file.

    Args:
        given: A policy's name or path, or a loaded policy.
        overrides: `env.key=value` changes a setting of the env config that the file describes; `policy.key=true` switches
            on an option of the policy (.fledge only).
        golden: Also write observations of a flight and the policy's actions on them to this .npz file.
    """
    name = given.name if isinstance(given, LoadedPolicy) else given
    check_output(path, source=find_policy_file(name))
    if golden is not None:
        check_output(golden, (".npz",))
    if golden is not None and path.suffix == ".fledge":
        raise ConfigError(
            f"golden={golden} needs an .onnx or .ts file, but path is {path}: leave out golden, or change path."
        )
    if path.suffix != ".fledge":
        policy = load_policy(given, task)
        if policy.task.match.sides == 2:
            policy = without_opponent(policy)
        cfg = eval_env(policy, overrides=overrides).cfg
        result = export_agent(policy.agent, path, policy.task.contract(cfg))
        if golden is not None:
            cases = write_golden(policy.agent, path, observe_flight(policy, cfg), golden)
            result |= {"golden": str(golden), "golden_cases": cases}
        return result
    entries = read_entries(name, task or find_task("navigation"))
    if entries is None:
        raise ConfigError(f"{name} has no weights to write to {path}: give a run or a policy file.")
    described = [word for word in overrides if word.startswith("policy.")]
    overrides = [word for word in overrides if word not in described]
    if described:
        entries["policy"] = redescribe(entries["policy"], described, name)
        policy_from_state(entries, name, task)  # refuses what the weights do not fit
    if overrides:
        policy = policy_from_state(entries, name, task)
        eval_env(policy, overrides=overrides)  # refuses code, and what the weights do not fit
        trained = policy.env.settings if policy.env is not None else {}
        layers, presets = [("the policy's world", nested(trained))], policy.task.presets
        world: Any = build_config(
            policy.task.config, layers, overrides, presets.aliases, presets.env_groups, prefix="env."
        )
        refuse_code(world, overrides, "env.")
        with contextlib.closing(policy.task.make_env(world)) as env:
            entries["world"] = {"env": flat_settings(world), "decision_s": env.decision_s}
    write_policy(entries, path)
    ours, theirs = entries["model"], read_policy(path)["model"]
    worst = max(float((ours[k].float() - theirs[k].float()).abs().max()) for k in ours if ours[k].numel())
    return {"file": str(path), "bytes": path.stat().st_size, "max_difference": worst}


def redescribe(description: Mapping[str, Any], overrides: Sequence[str], name: str) -> dict[str, Any]:
    """Return the description of a policy's network, with true/false options changed by `policy.key=value` overrides."""
    changed = dict(description)
    for word in overrides:
        key, _, value = word.removeprefix("policy.").partition("=")
        if not isinstance(changed.get(key), bool) or value.lower() not in ("true", "false"):
            switches = [f"policy.{k}=true" for k, old in changed.items() if isinstance(old, bool)]
            known = ", ".join(switches) or "none"
            raise ConfigError(f"{word!r} cannot be set in {name}; its true/false options: {known}.")
        changed[key] = value.lower() == "true"
    return changed


def observe_flight(
    policy: LoadedPolicy, cfg: Any, envs: int = 8, samples: int = 16, every: int = 8
) -> dict[str, Tensor]:
    """Return observations of the policy's flight in held-out envs: `samples` from each env, `every` decisions apart.

    For a recurrent policy, also its state at these decisions.
    """
    agent, size = policy.agent, policy.agent.hidden_size
    envs = max(envs, policy.task.match.rows(cfg))
    made = policy.task.make_env(dataclasses.replace(cfg, num_envs=envs), EnvPlacement(seed=1, held_out=True))
    with contextlib.closing(made) as env:
        check_fit(agent, env)
        out, seen = env.reset(), []
        agent.reset()
        for step in range(samples * every):
            if step % every == 0:
                seen.append({key: out["obs"][key].clone() for key in agent.observes})
                seen[-1] |= {STATE_IN: agent.episode_state().get("hidden", torch.zeros(envs, size))} if size else {}
            out = env.step(agent.act(out["obs"]))
            agent.reset(out["terminated"] | out["truncated"])
        return {key: torch.cat([sample[key] for sample in seen]) for key in agent.export_inputs}
