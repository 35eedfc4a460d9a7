"""Rollout files of the prior design: an LZ4 frame around a `torch.save` file of a TensorDict or a dict.

Contract
    They are loaded without running what they name.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fledge.core.errors import FormatError
from fledge.storage.format import interop as foreign
from fledge.storage.format.rollout_parts import Cut, Key, Rows, find_keys

if TYPE_CHECKING:
    from tensordict import TensorDictBase

Leaves = dict[tuple[str, ...], torch.Tensor]


def read_old_rollout(
    path: Path,
    device: torch.device | str,
    keys: Iterable[Key] | None,
    envs: Rows | None,
    steps: Rows | None,
    time_dim: int,
) -> TensorDictBase:
    """The rollout in a file of the prior design, or a part of it."""
    from tensordict import TensorDict

    # a pickled TensorDict names a function and a class of its own: ours are called in their place, and keep the tensors
    named: list[Any] = [
        (_OldTensorDict, "tensordict._td.TensorDict"),
        (_old_tensordict, "tensordict._reductions._make_td"),
    ]
    with torch.serialization.safe_globals(named):
        state = foreign.load_pt(io.BytesIO(foreign.unpack_lz4(path)), str(path), "cpu")
    leaves = _leaves(state) if isinstance(state, dict) else {}
    batch = _batch_of(state, [[*tensor.shape] for tensor in leaves.values()]) if leaves else []
    if not batch:
        raise FormatError(f"{path} holds no rollout, a dict of tensors whose first axes are time and envs.")
    if keys is not None:
        wanted = find_keys(_names(leaves), keys, str(path))
        leaves = {name: leaf for name, leaf in leaves.items() if any(name[: len(key)] == key for key in wanted)}
    cut = Cut(batch, min(time_dim, len(batch) - 1), envs, steps)
    data = TensorDict({}, cut.size(batch))
    for name, leaf in leaves.items():
        data.set(name, cut(leaf))
    return data if torch.device(device).type == "cpu" else data.to(device)


class _OldTensorDict(dict[str, Any]):
    """Entries of a TensorDict in a file of the prior design."""

    batch: list[int]


def _old_tensordict(kind: type[_OldTensorDict], state: dict[str, Any]) -> _OldTensorDict:
    found = kind(state["_tensordict"])
    found.batch = [*state["_batch_size"]]
    return found


def _leaves(state: dict[str, Any], above: tuple[str, ...] = ()) -> Leaves:
    found: Leaves = {}
    for key, value in state.items():
        if isinstance(value, dict):
            found |= _leaves(value, (*above, str(key)))
        elif isinstance(value, torch.Tensor):
            found[(*above, str(key))] = value
    return found


def _names(leaves: Leaves) -> Mapping[str, Any]:
    names: dict[str, Any] = {}
    for *above, last in leaves:
        level = names
        for key in above:
            level = level.setdefault(key, {})
        level[last] = None
    return names


def _batch_of(state: dict[str, Any], shapes: list[list[int]]) -> list[int]:
    """Axes that all entries share: those that a TensorDict names, or up to two."""
    shared = state.batch[:2] if isinstance(state, _OldTensorDict) else shapes[0][:2]
    while shared and any(shape[: len(shared)] != shared for shape in shapes):
        shared = shared[:-1]
    return shared
