"""`load_checkpoint` that adds NavRL's key names to the checkpoint of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from fledge import storage
from fledge.core.errors import InputError

ALIASES = {"model_state_dict": "model", "env_frames": "frames"}
RUN_KEYS = {"model", "frames", "iteration", "task"}


def load_checkpoint(
    path: str | os.PathLike[str], device: torch.device | str = "cpu", keys: Sequence[str] | None = None
) -> Any:
    """Load and verify a checkpoint; see `fledge.storage.load_checkpoint`.

    The checkpoint of a run also has `model_state_dict` and `env_frames`: the same objects as `model` and `frames`. `keys`
    may contain them too.
    """
    if keys is None:
        state = storage.load_checkpoint(path, device)
        is_run = isinstance(state, dict) and set(state) >= RUN_KEYS
        return state | {alias: state[key] for alias, key in ALIASES.items()} if is_run else state
    try:
        return storage.load_checkpoint(path, device, keys)
    except InputError:
        if not set(keys) & set(ALIASES):
            raise
    state = storage.load_checkpoint(path, device, [ALIASES.get(key, key) for key in keys])
    renamed = {alias: state[ALIASES[alias]] for alias in keys if alias in ALIASES}
    return {key: value for key, value in state.items() if key in keys or key not in ALIASES.values()} | renamed
