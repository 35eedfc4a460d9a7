"""RolloutStorage: a folder of rollouts, each a TensorDict, compressed and written off the training thread.

Contract
    `save` returns once the data is staged, so a rollout buffer may be reused at once; `load` gives the same TensorDict
    back: keys, nesting, dtypes, shapes, batch size and names. Only the keys asked for are read from the disk.
    Training is untouched: this is a selective archive.

Layout: a rollout is `[T, N, ...]` in memory, and neighbours in time are alike. On disk the time axis is innermost,
`[N, ..., T]`, where a byte delta sees them side by side: measured on LiDAR, 3.5-12.7 times smaller, against 2.2-7.8
with the layout as it is.
"""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fledge.core.errors import ConfigError, FormatError, InputError, StorageError
from fledge.storage.checkpoint import NATIVE, write_state
from fledge.storage.disk.durable import remove_stale
from fledge.storage.format import codecs
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.format.tree import Node, select, unflatten
from fledge.storage.format.writer import Plans, Written
from fledge.storage.saving.handle import CheckpointHandle
from fledge.storage.saving.saver import AsyncCheckpointSaver

if TYPE_CHECKING:
    from tensordict import TensorDictBase

Rows = slice | Sequence[int] | torch.Tensor | int


class RolloutStorage:
    """An archive of rollouts by iteration.

    Example:
        >>> storage = RolloutStorage("run/rollouts")
        >>> storage.save(rollout, iteration=100)
        >>> storage.load(100, keys=["observation"], envs=slice(0, 8))

    Args:
        save_dir: Folder; made if missing.
        compression_level: 0 (store) to 9 (densest).
        time_dim: Axis of time in the batch, 0 or 1; the other is the environments. A TensorDict whose `names` say
            "time" overrides it.
        saver: Shares a saver's threads and queue; by default the storage has its own.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        compression_level: int = 9,
        *,
        time_dim: int = 0,
        saver: AsyncCheckpointSaver | None = None,
    ) -> None:
        if time_dim not in (0, 1):
            raise ConfigError(f"time_dim is {time_dim}, but must be 0 ([T, N]) or 1 ([N, T]).")
        codecs.candidates(compression_level, 0)
        self.save_dir, self.compression_level, self.time_dim = Path(save_dir), compression_level, time_dim
        self._own = saver is None
        self._saver = saver or AsyncCheckpointSaver(max_queue_size=2)
        self._handles: dict[int, CheckpointHandle] = {}
        remove_stale(self.save_dir)

    def path(self, iteration: int) -> Path:
        """File of an iteration."""
        return self.save_dir / f"rollout_{iteration:09d}{NATIVE}"

    def save(self, data: TensorDictBase, iteration: int, metadata: dict[str, Any] | None = None) -> CheckpointHandle:
        """Archive a rollout in the background; the data may be changed once this returns."""
        from tensordict import is_tensor_collection

        if not is_tensor_collection(data) or len(data.batch_size) < 1:
            raise InputError(
                f"the rollout is a {type(data).__name__}, but must be a TensorDict with a batch size of [T, N]."
            )
        names = _names(data)
        time_dim = names.index("time") if names and "time" in names else min(self.time_dim, len(data.batch_size) - 1)
        path, level = self.path(iteration), self.compression_level
        note = {"rollout": {"iteration": int(iteration), "time_dim": time_dim}, "user": dict(metadata or {})}

        def write(node: Node, leaves: Sequence[Leaf], plans: Plans) -> Written:
            for leaf in leaves:
                if leaf.kind == "tensor" and len(leaf.shape) > 1:
                    axes = [axis for axis in range(len(leaf.shape)) if axis != time_dim]
                    leaf.order = (*axes, time_dim)
            return write_state(path, "native", node, leaves, level=level, metadata=note, plans=plans)

        self._handles = {key: handle for key, handle in self._handles.items() if not handle.done}
        self._handles[iteration] = self._saver.submit(_to_tree(data), path, write)
        return self._handles[iteration]

    def load(
        self,
        iteration: int,
        device: torch.device | str = "cpu",
        *,
        keys: Sequence[str] | None = None,
        envs: Rows | None = None,
        steps: Rows | None = None,
    ) -> TensorDictBase:
        """A rollout, or a part of it: some keys (`"agents/observation"` for nested ones), some envs, some steps."""
        pending = self._handles.get(iteration)
        if pending is not None:
            pending.wait()
        path = self.path(iteration)
        if not path.is_file():
            raise StorageError(f"{self.save_dir} has no rollout {iteration}; it has {self.list()[:20]}: choose one.")
        with CheckpointFile(path) as opened:
            note = opened.metadata.get("rollout")
            time_dim = note.get("time_dim") if isinstance(note, dict) else None
            if time_dim not in (0, 1):
                raise FormatError(f"{path} is a checkpoint but not a rollout: load it with load_checkpoint.")
            cut = _cutter(time_dim, envs, steps)
            tree = opened.tree
            if keys is not None:
                tree = select(tree, sorted({path for key in keys for path in _tree_paths(key)}))
            state = unflatten(tree, lambda number: cut(opened.read(number)))
        try:
            data = _from_tree(state, cut)
            return data if torch.device(device).type == "cpu" else data.to(device)
        except (KeyError, TypeError, RuntimeError) as error:
            raise FormatError(f"{path} does not describe a TensorDict ({error}): it was altered.") from error

    def list(self) -> builtins.list[int]:
        """Iterations that are archived, in order."""
        pattern = re.compile(rf"rollout_(\d+){re.escape(NATIVE)}")
        found = (pattern.fullmatch(path.name) for path in self.save_dir.glob(f"rollout_*{NATIVE}"))
        return sorted(int(match[1]) for match in found if match)

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until everything given so far is on the disk."""
        return self._saver.drain(timeout)

    def get_stats(self) -> dict[str, Any]:
        """Figures of the saver: counts, bytes, ratio, what callers waited."""
        return self._saver.get_stats()

    def close(self) -> None:
        """Finish writing, and stop the threads if they are our own."""
        if self._own:
            self._saver.shutdown()
        else:
            self._saver.drain()

    def __enter__(self) -> RolloutStorage:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _to_tree(data: TensorDictBase) -> dict[str, Any]:
    """A TensorDict as plain dicts: {"batch": [...], "names": [...] or None, "data": {key: tensor, tree or value}}."""
    from tensordict import is_non_tensor, is_tensor_collection

    content: dict[str, Any] = {}
    for key in data.keys():  # noqa: SIM118 - a TensorDict iterates over its batch, not its keys
        value = data.get(key)
        if is_non_tensor(value):
            content[key] = {"value": value.data}
        elif is_tensor_collection(value):
            content[key] = _to_tree(value)
        else:
            content[key] = value
    return {"batch": [*data.batch_size], "names": _names(data), "data": content}


def _names(data: TensorDictBase) -> builtins.list[str | None] | None:
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


def _tree_paths(key: str) -> builtins.list[str]:
    """`"agents/observation"` as paths in the tree of `_to_tree`: the entry, and what describes the dicts above it."""
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
