"""Read rollouts stored as an LZ4 frame around a `torch.save` file of a TensorDict or a dict, without running its code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fledge.core.errors import FormatError
from fledge.storage.format import interop
from fledge.storage.format.rollout_parts import Cut, Key, NestedKey, Rows, find_keys

if TYPE_CHECKING:
    from tensordict import TensorDictBase


def read_lz4_rollout(
    path: Path,
    device: torch.device | str,
    keys: Iterable[Key] | None,
    envs: Rows | None,
    steps: Rows | None,
    time_dim: int,
) -> TensorDictBase:
    """Return the rollout in an LZ4 file, or a part of it."""
    from tensordict import TensorDict

    # A pickled TensorDict names a function and a class of its own; call ours instead, which only keep the tensors.
    named: list[Any] = [
        (_Entries, "tensordict._td.TensorDict"),
        (_make_entries, "tensordict._reductions._make_td"),
    ]
    with torch.serialization.safe_globals(named):
        state = interop.load(path, "lz4")
    leaves = dict(_leaves(state)) if isinstance(state, dict) else {}
    batch = _batch_of(state, [[*tensor.shape] for tensor in leaves.values()]) if leaves else []
    if not batch:
        raise FormatError(f"{path} is not a rollout, a dict of tensors whose first axes are time and envs.")
    if keys is not None:
        known = [name[:count] for name in leaves for count in range(1, len(name) + 1)]
        wanted = find_keys(known, keys, str(path))
        leaves = {name: leaf for name, leaf in leaves.items() if any(name[: len(key)] == key for key in wanted)}
    cut = Cut(batch, min(time_dim, len(batch) - 1), envs, steps)
    data = TensorDict({}, cut.size(batch))
    for name, leaf in leaves.items():
        data.set(name, cut(leaf))
    return data if torch.device(device).type == "cpu" else data.to(device)


class _Entries(dict[str, Any]):
    """Entries of a pickled TensorDict."""

    batch: list[int]


def _make_entries(kind: type[_Entries], state: dict[str, Any]) -> _Entries:
    found = kind(state["_tensordict"])
    found.batch = [*state["_batch_size"]]
    return found


def _leaves(state: dict[str, Any], above: NestedKey = ()) -> Iterator[tuple[NestedKey, torch.Tensor]]:
    for key, value in state.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, str(key)))
        elif isinstance(value, torch.Tensor):
            yield (*above, str(key)), value


def _batch_of(state: dict[str, Any], shapes: list[list[int]]) -> list[int]:
    """Return the leading axes that all entries share: those of the TensorDict's batch, or up to two."""
    shared = state.batch[:2] if isinstance(state, _Entries) else shapes[0][:2]
    while shared and any(shape[: len(shared)] != shared for shape in shapes):
        shared = shared[:-1]
    return shared
