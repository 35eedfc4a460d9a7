"""A rollout in a file or a message: a TensorDict as a tree of plain dicts, and back, whole or in part.

Contract
    `read_rollout` gives the same TensorDict back that `to_tree` took apart: keys, nesting, dtypes, shapes, batch size and
    names. Only what is asked for is read. Files of the prior design are loaded without running what they name.

Layout: a rollout is `[T, N, ...]` in memory, and neighbours in time are alike. In a file the time axis is innermost,
`[N, ..., T]` (`time_last`), where a byte delta sees them side by side: measured on LiDAR, 3.5-12.7 times smaller, against
2.2-7.8 with the layout as it is.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fledge.core.errors import FormatError, InputError
from fledge.storage.format import foreign
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.format.tree import select, unflatten

if TYPE_CHECKING:
    from tensordict import TensorDictBase

Rows = slice | Sequence[int] | torch.Tensor | int


def check_rollout(data: Any) -> None:
    """InputError unless this is a rollout."""
    from tensordict import is_tensor_collection

    if not is_tensor_collection(data) or len(data.batch_size) < 1:
        raise InputError(
            f"the rollout is a {type(data).__name__}, but must be a TensorDict with a batch size of [T, N]."
        )


def describe(data: TensorDictBase, time_dim: int = 0) -> dict[str, int]:
    """What a file notes of a rollout: which axis is time, by its name or else `time_dim`."""
    names = _names(data)
    return {"time_dim": names.index("time") if names and "time" in names else min(time_dim, len(data.batch_size) - 1)}


def time_last(leaves: Sequence[Leaf], time_dim: int) -> None:
    """Have tensors stored with time innermost."""
    for leaf in leaves:
        if leaf.kind == "tensor" and len(leaf.shape) > 1:
            axes = [axis for axis in range(len(leaf.shape)) if axis != time_dim]
            leaf.order = (*axes, time_dim)


def read_rollout(
    opened: CheckpointFile,
    device: torch.device | str = "cpu",
    keys: Sequence[str] | None = None,
    envs: Rows | None = None,
    steps: Rows | None = None,
) -> TensorDictBase:
    """The rollout in an open file, or a part of it."""
    note = opened.metadata.get("rollout")
    time_dim = note.get("time_dim") if isinstance(note, dict) else None
    if time_dim not in (0, 1):
        raise FormatError(f"{opened.path} is a checkpoint but not a rollout: load it with load_checkpoint.")
    cut = _cutter(time_dim, envs, steps)
    tree = opened.tree
    if keys is not None:
        tree = select(tree, sorted({path for key in keys for path in _tree_paths(key)}))
    state = unflatten(tree, lambda number: cut(opened.read(number)))
    try:
        data = _from_tree(state, cut)
        return data if torch.device(device).type == "cpu" else data.to(device)
    except (KeyError, TypeError, RuntimeError) as error:
        raise FormatError(f"{opened.path} does not describe a TensorDict ({error}): it was altered.") from error


def read_old_rollout(
    path: Path,
    device: torch.device | str,
    keys: Sequence[str] | None,
    envs: Rows | None,
    steps: Rows | None,
    time_dim: int,
) -> TensorDictBase:
    """The rollout in a file of the prior design: an LZ4 frame around a `torch.save` file of a TensorDict or a dict."""
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
        wanted = [tuple(key.strip("/").split("/")) for key in keys]
        chosen = {name: leaf for name, leaf in leaves.items() if any(name[: len(key)] == key for key in wanted)}
        if missing := ["/".join(key) for key in wanted if not any(name[: len(key)] == key for name in chosen)]:
            raise InputError(f"{missing} are not in {path}; it has {['/'.join(name) for name in leaves][:20]}.")
        leaves = chosen
    cut = _cutter(min(time_dim, len(batch) - 1), envs, steps)
    data = TensorDict({}, [*cut(torch.empty(batch, device="meta")).shape])
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


def _leaves(state: dict[str, Any], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], torch.Tensor]:
    found: dict[tuple[str, ...], torch.Tensor] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            found |= _leaves(value, (*above, str(key)))
        elif isinstance(value, torch.Tensor):
            found[(*above, str(key))] = value
    return found


def _batch_of(state: dict[str, Any], shapes: list[list[int]]) -> list[int]:
    """Axes that all entries share: those that a TensorDict names, or up to two."""
    shared = state.batch[:2] if isinstance(state, _OldTensorDict) else shapes[0][:2]
    while shared and any(shape[: len(shared)] != shared for shape in shapes):
        shared = shared[:-1]
    return shared


def to_tree(data: TensorDictBase) -> dict[str, Any]:
    """A TensorDict as plain dicts: {"batch": [...], "names": [...] or None, "data": {key: tensor, tree or value}}."""
    from tensordict import is_non_tensor, is_tensor_collection

    content: dict[str, Any] = {}
    for key in data.keys():  # noqa: SIM118 - a TensorDict iterates over its batch, not its keys
        value = data.get(key)
        if is_non_tensor(value):
            content[key] = {"value": value.data}
        elif is_tensor_collection(value):
            content[key] = to_tree(value)
        else:
            content[key] = value
    return {"batch": [*data.batch_size], "names": _names(data), "data": content}


def _names(data: TensorDictBase) -> list[str | None] | None:
    return [*data.names] if data._has_names() else None


def _from_tree(tree: dict[str, Any], cut: Callable[[torch.Tensor], torch.Tensor]) -> TensorDictBase:
    from tensordict import NonTensorData, TensorDict

    batch = [*cut(torch.empty(tree["batch"], device="meta")).shape]
    content: dict[str, Any] = {}
    for key, value in tree["data"].items():
        if isinstance(value, dict):
            whole = "data" in value
            content[key] = _from_tree(value, cut) if whole else NonTensorData(value["value"], batch_size=batch)
        else:
            content[key] = value
    return TensorDict(content, batch_size=batch, names=tree.get("names"))


def _tree_paths(key: str) -> list[str]:
    """`"agents/observation"` as paths in the tree of `to_tree`: the entry, and what describes the dicts above it."""
    paths, above = [], ""
    for part in key.strip("/").split("/"):
        paths += [f"{above}batch", f"{above}names"]
        above += f"data/{part}/"
    return [*paths, above.rstrip("/")]


def _cutter(time_dim: int, envs: Rows | None, steps: Rows | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """Takes some envs and steps out of a tensor with a batch of two axes."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        for axis, rows in ((time_dim, steps), (1 - time_dim, envs)):
            if rows is None or axis >= tensor.ndim:
                continue
            rows = slice(rows, rows + 1) if isinstance(rows, int) else rows
            tensor = tensor[(slice(None),) * axis + (rows,)]
        return tensor if envs is None and steps is None else tensor.contiguous() if not tensor.is_meta else tensor

    return cut
