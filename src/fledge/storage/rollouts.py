"""RolloutStorage: a folder of rollouts, each a TensorDict, compressed and written off the training thread.

Contract
    `save` returns once the data is staged, so a rollout buffer may be reused at once; `load` gives the same TensorDict
    back: keys, nesting, dtypes, shapes, batch size and names. Only the keys asked for are read from the disk.
    Training is untouched: this is a selective archive. Files of the prior design (`rollout_000100.lz4`, an LZ4 frame around
    a `torch.save` file) are listed and loaded too. `format.rollout` says how a rollout lies in a file.
"""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fledge.core.errors import ConfigError, StorageError
from fledge.storage.checkpoint import NATIVE, write_state
from fledge.storage.disk.durable import remove_stale
from fledge.storage.format import codecs
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.format.rollout import (
    Rows,
    check_rollout,
    describe,
    read_old_rollout,
    read_rollout,
    time_last,
    to_tree,
)
from fledge.storage.format.tree import Node
from fledge.storage.format.writer import Plans, Written
from fledge.storage.saving.handle import CheckpointHandle
from fledge.storage.saving.saver import AsyncCheckpointSaver

if TYPE_CHECKING:
    from tensordict import TensorDictBase

_NAMES = re.compile(rf"rollout_(\d+)({re.escape(NATIVE)}|\.lz4)")


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
        verbose: Print a line for each rollout that became durable.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        compression_level: int = 9,
        *,
        time_dim: int = 0,
        saver: AsyncCheckpointSaver | None = None,
        verbose: bool = False,
    ) -> None:
        if time_dim not in (0, 1):
            raise ConfigError(f"time_dim is {time_dim}, but must be 0 ([T, N]) or 1 ([N, T]).")
        codecs.candidates(compression_level, 0)
        self.save_dir, self.compression_level, self.time_dim = Path(save_dir), compression_level, time_dim
        self.verbose = verbose
        try:
            self.save_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"save_dir {save_dir} cannot be made ({error.strerror}): choose another.") from error
        self._own = saver is None
        self._saver = saver or AsyncCheckpointSaver(max_queue_size=2, find_optimizers=False)
        self._handles: dict[int, CheckpointHandle] = {}
        remove_stale(self.save_dir)

    def path(self, iteration: int) -> Path:
        """File of an iteration."""
        return self.save_dir / f"rollout_{iteration:09d}{NATIVE}"

    def save(self, data: TensorDictBase, iteration: int, metadata: dict[str, Any] | None = None) -> CheckpointHandle:
        """Archive a rollout in the background; the data may be changed once this returns.

        What is returned can be used as the file's path, and then waits until the file is there.
        """
        check_rollout(data)
        note = describe(data, self.time_dim)
        time_dim = note["time_dim"]
        path, level = self.path(iteration), self.compression_level
        metadata = {"rollout": {"iteration": int(iteration), **note}, "user": dict(metadata or {})}

        def write(node: Node, leaves: Sequence[Leaf], plans: Plans) -> Written:
            time_last(leaves, time_dim)
            written = write_state(path, "native", node, leaves, level=level, metadata=metadata, plans=plans)
            if self.verbose:
                given, taken = written.bytes_in, written.bytes_out
                sizes = f"{given / 1e6:.1f} MB as {taken / 1e6:.1f} MB ({given / max(taken, 1):.2f}x)"
                print(f"[Rollout] {path}: {sizes}", flush=True)
            return written

        self._handles = {key: handle for key, handle in self._handles.items() if not handle.done}
        self._handles[iteration] = self._saver.submit(to_tree(data), path, write)
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
        if path.is_file():
            with CheckpointFile(path) as opened:
                return read_rollout(opened, device, keys, envs, steps)
        old = self._files().get(iteration)
        if old is None:
            raise StorageError(f"{self.save_dir} has no rollout {iteration}; it has {self.list()[:20]}: choose one.")
        return read_old_rollout(old, device, keys, envs, steps, self.time_dim)

    def list(self) -> builtins.list[int]:
        """Iterations that are archived, in order."""
        return sorted(self._files())

    def _files(self) -> dict[int, Path]:
        matches = ((path, _NAMES.fullmatch(path.name)) for path in self.save_dir.glob("rollout_*"))
        return {int(match[1]): path for path, match in matches if match}

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
