"""Read rollouts from LZ4 files of other tools. The files are not trusted: every fault raises a FormatError.

The LZ4 frame holds one of

    torch.save file       a TensorDict or a nested dict, with tensors of shape [T, N, ...] for T steps and N envs
    pickled dict          NumPy arrays of shape [N, T, ...]; a key is a string "agents/observation/lidar" or a tuple of names

Both are returned as a TensorDict. For a pickled dict, its second axis is named "time". Plain values (text, numbers) become
non-tensor values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fledge.core.errors import FormatError
from fledge.storage.format import interop
from fledge.storage.format.rollout_parts import Cut, Key, NestedKey, Rows, find_keys

if TYPE_CHECKING:
    from tensordict import TensorDictBase

PLAIN = (str, int, float, bool, bytes, type(None))


def read_lz4_rollout(
    path: Path,
    device: torch.device | str = "cpu",
    keys: Iterable[Key] | None = None,
    envs: Rows | None = None,
    steps: Rows | None = None,
    time_dim: int = 0,
) -> TensorDictBase:
    """Return the rollout in an LZ4 file, or a part of it.

    `time_dim` is the time axis of tensors; in pickled NumPy arrays, time is always the second axis.
    """
    from tensordict import TensorDict

    # A pickled TensorDict names a function and a class of its own; call ours instead, which only keep the tensors.
    named: list[Any] = [(_Entries, "tensordict._td.TensorDict"), (_make_entries, "tensordict._reductions._make_td")]
    with torch.serialization.safe_globals(named):
        state = interop.load(path, "lz4")
    leaves = dict(_leaves_of(state)) if isinstance(state, dict) else {}
    tensors = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, torch.Tensor | np.ndarray)}
    pickled = any(isinstance(leaf, np.ndarray) for leaf in tensors.values())
    batch = _batch_of(state, [[*tensor.shape] for tensor in tensors.values()]) if tensors else []
    if not batch:
        raise FormatError(
            f"{path} is not a rollout: it must hold a dict of tensors whose first axes are time and envs."
        )
    time_dim = min(1 if pickled else time_dim, len(batch) - 1)
    if keys is not None:
        known = [name[:count] for name in leaves for count in range(1, len(name) + 1)]
        wanted = find_keys(known, keys, str(path))
        leaves = {name: leaf for name, leaf in leaves.items() if any(name[: len(key)] == key for key in wanted)}
    cut = Cut(batch, time_dim, envs, steps)
    names = [None, "time"] if pickled and len(batch) == 2 else None
    data = TensorDict({}, cut.size(batch), names=names)
    try:
        for name, leaf in leaves.items():
            if isinstance(leaf, PLAIN):
                data.set_non_tensor(name, leaf)
            else:
                data.set(name, cut(torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf))
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        raise FormatError(f"{path} is damaged: it does not describe a rollout ({str(error)[:120]}).") from error
    return data if torch.device(device).type == "cpu" else data.to(device)


class _Entries(dict[str, Any]):
    """Entries of a pickled TensorDict, with its batch size."""

    batch: list[int]


def _make_entries(kind: type[_Entries], state: dict[str, Any]) -> _Entries:
    found = kind(state["_tensordict"])
    found.batch = [*state["_batch_size"]]
    return found


def _leaves_of(state: dict[Any, Any], above: NestedKey = ()) -> Iterator[tuple[NestedKey, Any]]:
    """Yield every tensor, array and plain value with its nested key; "/" in the key of an array separates names."""
    for key, value in state.items():
        names = key if isinstance(key, tuple) else (str(key),)
        if isinstance(value, dict):
            yield from _leaves_of(value, (*above, *names))
        elif isinstance(value, np.ndarray):
            yield (*above, *(part for name in names for part in name.split("/"))), value
        elif isinstance(value, (torch.Tensor, *PLAIN)):
            yield (*above, *names), value


def _batch_of(state: dict[str, Any], shapes: list[list[int]]) -> list[int]:
    """Return the sizes of the first axes (two at most) that all tensors share; in a TensorDict, only batch axes count."""
    shared = state.batch[:2] if isinstance(state, _Entries) else shapes[0][:2]
    while shared and any(shape[: len(shared)] != shared for shape in shapes):
        shared = shared[:-1]
    return shared
