"""Convert a TensorDict to a tree of plain dicts for a file or a message, and read it back, whole or in part.

`read_rollout` restores keys (any text), nesting, dtypes, shapes, batch size, names and plain non-tensor values; a tensor class
comes back as a TensorDict. Files are not trusted: a malformed one raises a FormatError, and reading takes no more memory than
`reader` allows plus 600 bytes for each of at most `MAX_VALUES` non-tensor values.

Tree
    TensorDict      {"batch": [...], "names": [...] or None, "data": {key: entry}}
    an entry        a tensor; a nested TensorDict; {"value": x}, the same for the whole batch; or
                    {"values": [...], "index": tensor of the batch's shape}, one of the values for each batch element
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fledge.core.errors import FormatError, InputError
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.format.rollout_parts import Cut, Key, NestedKey, Rows, find_keys
from fledge.storage.format.tree import Node, unflatten

if TYPE_CHECKING:
    from tensordict import TensorDictBase

MAX_VALUES = 2**18  # non-tensor values: TensorDict makes an object of 600 bytes for each


def describe(data: TensorDictBase, time_dim: int = 0) -> dict[str, int]:
    """Return the metadata of a rollout's file, `{"time_dim": axis}`: the axis named "time", or else `time_dim`.

    Raises:
        InputError: `data` is not a TensorDict with at least one batch axis.
    """
    from tensordict import is_non_tensor, is_tensor_collection

    if not is_tensor_collection(data) or is_non_tensor(data) or len(data.batch_size) < 1:
        batch = f" with batch size {list(data.batch_size)}" if is_tensor_collection(data) else ""
        raise InputError(
            f"the rollout is a {type(data).__name__}{batch}, but must be a TensorDict with batch size [T, N]."
        )
    names = _names(data)
    return {"time_dim": names.index("time") if names and "time" in names else min(time_dim, len(data.batch_size) - 1)}


def time_last(leaves: Sequence[Leaf], time_dim: int) -> None:
    """Set `order` of each leaf that has the batch axes, so that it is stored with time as the last axis."""
    for leaf in leaves:
        above = leaf.path[:-1] if leaf.path[-1] == "index" and len(leaf.path) % 2 else leaf.path
        of_batch = len(above) % 2 == 0 and set(above[::2]) == {"data"}  # not inside a non-tensor value
        if leaf.kind == "tensor" and of_batch and len(leaf.shape) > 1:
            leaf.order = (*(axis for axis in range(len(leaf.shape)) if axis != time_dim), time_dim)


def to_tree(data: TensorDictBase, path: NestedKey = ()) -> dict[str, Any]:
    """Return a TensorDict as nested plain dicts, in the layout under "Tree" at the top of this file."""
    from tensordict import is_tensorclass

    data = data.to_tensordict() if is_tensorclass(data) else data
    keys = list(data.keys())
    if any(set(part.keys()) != set(keys) for part in getattr(data, "tensordicts", ())):
        raise InputError(
            f"{path or 'the rollout'} is a lazy stack of parts with different keys: give all parts the same keys."
        )
    content = {key: _entry(data, key, (*path, key)) for key in keys}
    return {"batch": [*data.batch_size], "names": _names(data), "data": content}


def _entry(data: TensorDictBase, key: str, path: NestedKey) -> Any:
    from tensordict import NonTensorStack, is_non_tensor, is_tensor_collection

    try:
        value = data.get(key)
    except RuntimeError as error:
        raise InputError(
            f"{path} is a lazy stack of parts with different shapes: pad them, or store each under its own key."
        ) from error
    if isinstance(value, NonTensorStack):
        return _single_values(value, path)
    if is_non_tensor(value):
        return {"value": value.data}
    return to_tree(value, path) if is_tensor_collection(value) else value


def _single_values(stack: Any, path: NestedKey) -> dict[str, Any]:
    if stack.numel() > MAX_VALUES:
        count = f"{stack.numel()} non-tensor values, but at most {MAX_VALUES} are allowed"
        raise InputError(f"{path} has {count}: store them as a tensor (text as bytes).")
    cells = [stack.tolist()]
    for _ in stack.batch_size:
        cells = [cell for row in cells for cell in row]
    known: dict[Any, int] = {}
    values: list[Any] = []
    index = []
    for cell in cells if stack.numel() else []:
        name = (
            (type(cell), cell) if isinstance(cell, str | int | bool | None) else len(values)
        )  # other values are not shared
        if name not in known:
            known[name] = len(values)
            values.append(cell)
        index.append(known[name])
    return {"values": values, "index": torch.tensor(index, dtype=torch.int32).reshape(stack.batch_size)}


def _names(data: TensorDictBase) -> list[str | None] | None:
    return [*data.names] if data._has_names() else None


def read_rollout(
    opened: CheckpointFile,
    device: torch.device | str = "cpu",
    keys: Iterable[Key] | None = None,
    envs: Rows | None = None,
    steps: Rows | None = None,
) -> TensorDictBase:
    """Return the rollout in an open file, or a part of it: see `RolloutStorage.load` for `keys`, `envs` and `steps`."""
    note = opened.metadata.get("rollout")
    time_dim = note.get("time_dim") if isinstance(note, dict) else None
    if type(time_dim) is not int:
        raise FormatError(f"{opened.path} is a checkpoint but not a rollout: load it with load_checkpoint.")
    try:
        batch = _batch(opened.tree)
        if not 0 <= time_dim < len(batch):
            raise ValueError(f"its batch size {batch} has no time axis {time_dim}")
        cut = Cut(batch, time_dim, envs, steps)
        wanted: set[NestedKey] = {()}
        if keys is not None:
            wanted = find_keys(_keys_of(opened.tree), keys, str(opened.path))
        data = _Reading(opened, cut).tensordict(opened.tree, wanted)
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise FormatError(f"{opened.path} is damaged: it does not describe a TensorDict ({error}).") from error
    return data if torch.device(device).type == "cpu" else data.to(device)


class _Reading:
    """Reads the requested keys of a rollout; cuts each tensor to the requested envs and steps right after reading it."""

    def __init__(self, opened: CheckpointFile, cut: Cut) -> None:
        self.opened, self.cut = opened, cut
        self.known: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}  # tied tensors stay tied
        self.room = MAX_VALUES

    def tensordict(self, node: Node, wanted: set[NestedKey], above: tuple[int, ...] = ()) -> TensorDictBase:
        from tensordict import TensorDict

        batch, fields = tuple(_batch(node)), _fields(node)
        _check_prefix(batch, above)
        content: dict[str, Any] = {}
        for key, child in _fields(fields["data"]).items():
            below = {path[1:] for path in wanted if path[:1] in ((), (key,))}
            if below:
                content[key] = self._entry(child, {()} if () in below else below, batch)
        names = fields.get("names")
        if names is not None and (len(names) != len(batch) or not all(isinstance(n, str | None) for n in names)):
            raise ValueError(f"{str(names)[:40]!r} are not names for the axes of batch size {list(batch)}")
        return TensorDict(content, batch_size=self.cut.size(batch), names=names)

    def _entry(self, node: Node, wanted: set[NestedKey], batch: tuple[int, ...]) -> Any:
        from tensordict import NonTensorData

        if "leaf" in node:
            return self.tensor(node["leaf"], batch)
        fields = _fields(node)
        if "data" in fields:
            return self.tensordict(node, wanted, batch)
        if "index" in fields:
            index = self.tensor(fields["index"]["leaf"], batch)
            return self._stack(index, unflatten(fields["values"], self.opened.read))
        return NonTensorData(unflatten(fields["value"], self.opened.read), batch_size=self.cut.size(batch))

    def tensor(self, number: int, batch: tuple[int, ...]) -> torch.Tensor:
        if (number, batch) not in self.known:
            tensor = self.opened.read(number)
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"leaf {number} is a {type(tensor).__name__}, but must be a tensor")
            _check_prefix(tuple(tensor.shape), batch)
            self.known[number, batch] = self.cut(tensor)
        return self.known[number, batch]

    def _stack(self, index: torch.Tensor, values: list[Any]) -> Any:
        from tensordict import NonTensorData, NonTensorStack

        self.room -= index.numel()
        if self.room < 0:
            raise ValueError(f"it has more non-tensor values than the {MAX_VALUES} that are allowed")
        if index.is_floating_point() or any(not 0 <= i < len(values) for i in index.unique().tolist()):
            raise ValueError("it refers to non-tensor values that are missing")

        def stack(rows: torch.Tensor) -> Any:
            if rows.ndim == 0:
                return NonTensorData(values[int(rows)])
            return NonTensorStack(*[stack(row) for row in rows])

        return stack(index) if index.numel() else NonTensorData(None, batch_size=index.shape)


def _check_prefix(shape: tuple[int, ...], batch: tuple[int, ...]) -> None:
    if shape[: len(batch)] != batch:
        raise ValueError(f"the shape {list(shape)} of an entry does not begin with the batch size {list(batch)}")


def _fields(node: Node) -> dict[str, Node]:
    found = node["dict"]
    if not isinstance(found, dict):
        raise TypeError(f"{str(found)[:40]!r} is not a dict")
    return found


def _batch(node: Node) -> list[int]:
    batch = _fields(node)["batch"]
    valid = isinstance(batch, list) and all(type(n) is int and n >= 0 for n in batch)
    if not valid or math.prod(n or 1 for n in batch) > 2**48:
        raise ValueError(f"{str(batch)[:40]!r} is not a batch size")
    return batch


def _keys_of(node: Node, above: NestedKey = ()) -> Iterator[NestedKey]:
    """Yield the nested keys of all entries of a TensorDict, including entries of nested TensorDicts."""
    for key, child in _fields(_fields(node)["data"]).items():
        yield (*above, key)
        if "data" in child.get("dict", {}):
            yield from _keys_of(child, (*above, key))
