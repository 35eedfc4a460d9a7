"""Dumps of the NaN guard: one step, ready to be repeated. Plain `.npz` arrays and JSON; nothing in them is executed."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from fledge.core.errors import FormatError
from fledge.tasks.navigation.config import (
    ActionForm,
    Dynamics,
    NavigationConfig,
    RandomizeConfig,
    RewardConfig,
    RewardKind,
    Starts,
)


def save_dump(path: Path, cfg: NavigationConfig, state: Mapping[str, Any], action: torch.Tensor) -> None:
    """Write what is needed to repeat one step: config, state before it, action."""
    arrays: dict[str, Any] = {}
    scalars: dict[str, Any] = {"maps": {}}
    for name, value in state.items():
        if not isinstance(value, Mapping):
            scalars[name] = value
    for part in ("drones", "maps"):
        for name, value in state[part].items():
            if isinstance(value, torch.Tensor):
                arrays[f"{part}.{name}"] = value.cpu().numpy()
            else:
                scalars[part][name] = value
    meta = {"config": asdict(cfg), "state": scalars}
    arrays["meta"] = np.frombuffer(json.dumps(meta, default=lambda e: e.value).encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, action=action.cpu().numpy(), **arrays)


def load_dump(path: str | Path) -> tuple[NavigationConfig, dict[str, Any], torch.Tensor]:
    """Return the config, the state before the step, and the action of a dump."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {k: file[k] for k in file.files}
        meta = json.loads(bytes(arrays.pop("meta")))
        action = torch.as_tensor(arrays.pop("action"))
        raw = dict(meta["config"])
        raw["reward"] = RewardConfig(**{**raw["reward"], "kind": RewardKind(raw["reward"]["kind"])})
        raw["randomize"] = RandomizeConfig(**raw["randomize"])
        enums = {"dynamics": Dynamics, "action_form": ActionForm, "starts": Starts}
        fields: dict[str, Any] = {k: enums[k](v) if k in enums else v for k, v in raw.items()}
        cfg = NavigationConfig(**fields)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(f"{path} is not a dump of the NaN guard: {error}") from error
    state: dict[str, Any] = {**meta["state"], "drones": {}}
    for name, array in arrays.items():
        part, key = name.split(".", 1)
        state[part][key] = torch.as_tensor(array)
    return cfg, state, action


def replay_dump(path: str | Path) -> TensorDict:
    """Repeat the dumped step with the guard off, and return what it gives."""
    from fledge.tasks.navigation.env import NavigationEnv

    cfg, state, action = load_dump(path)
    cfg.nan_guard = False
    place: dict[str, Any] = {k: int(state[k]) for k in ("seed", "env_offset", "total_envs", "bank")}
    env = NavigationEnv(cfg, **place)
    try:
        env.load_state_dict(state)
        return env.step(action)
    finally:
        env.close()
