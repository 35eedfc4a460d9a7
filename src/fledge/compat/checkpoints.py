"""`load_checkpoint` with the documents' names beside ours, where the file is a run's checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from fledge import storage
from fledge.core.errors import InputError

NAMES = {"model_state_dict": "model", "env_frames": "frames"}  # theirs, ours; `iteration` is the same
OF_A_RUN = {"model", "frames", "iteration", "task"}


def load_checkpoint(
    path: str | os.PathLike[str], device: torch.device | str = "cpu", keys: Sequence[str] | None = None
) -> Any:
    """The state saved under a name, verified; see `fledge.storage.load_checkpoint`.

    A run's checkpoint also has `model_state_dict` and `env_frames`: the same objects as `model` and `frames`. `keys` may
    name them too.
    """
    if keys is None:
        state = storage.load_checkpoint(path, device)
        is_run = isinstance(state, dict) and set(state) >= OF_A_RUN
        return state | {theirs: state[ours] for theirs, ours in NAMES.items()} if is_run else state
    asked = [key for key in keys if key in NAMES]
    try:
        return storage.load_checkpoint(path, device, keys)
    except InputError:
        if not asked:
            raise
    state = storage.load_checkpoint(path, device, [NAMES.get(key, key) for key in keys])
    renamed = {theirs: state[NAMES[theirs]] for theirs in asked}
    return {key: value for key, value in state.items() if key in keys or key not in NAMES.values()} | renamed
