"""RolloutStorage: a folder of rollouts, each a TensorDict, compressed and written off the training thread.

Several threads may save and load. Writer threads start with the first `save`. A forked child and a pickled copy (a spawned
worker) have their own threads, and do not wait for the parent's saves. LZ4 files of other tools (`rollout_000100.lz4`, see
`format.lz4_rollout`) are listed and loaded too. `format.rollout` describes the layout of a rollout in a file.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import os
import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fledge.core.closing import Closing
from fledge.core.errors import ConfigError, InputError, StorageError
from fledge.storage.checkpoint import NATIVE, write_state
from fledge.storage.disk.durable import remove_stale
from fledge.storage.format import codecs
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.lz4_rollout import read_lz4_rollout
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.format.rollout import describe, read_rollout, time_last, to_tree
from fledge.storage.format.rollout_parts import Key, Rows
from fledge.storage.format.tree import Node
from fledge.storage.format.writer import Plans, Written, plain_node
from fledge.storage.saving.handle import CheckpointHandle
from fledge.storage.saving.saver import AsyncCheckpointSaver
from fledge.storage.saving.summary import say, size_of

if TYPE_CHECKING:
    from tensordict import TensorDictBase

_NAMES = re.compile(rf"rollout_(\d+)({re.escape(NATIVE)}|\.lz4)")


class RolloutStorage(Closing):
    """A folder of rollouts, with one file for each training iteration.

    Example:
        >>> storage = RolloutStorage("run/rollouts")
        >>> storage.save(rollout, iteration=100)
        >>> storage.load(100, keys=["observation"], envs=slice(0, 8))

    Args:
        save_dir: Folder of the files; created if missing.
        compression_level: 0 (no compression) to 9 (smallest files).
        time_dim: Time axis of the batch, 0 or 1; the env axis is the first of the other axes. If the TensorDict has an axis
            named "time", that is the time axis instead.
        saver: A saver whose threads and queue to share; by default the storage has its own.
        verbose: Print a line for each durable rollout.
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
        self.save_dir, self.compression_level = Path(save_dir).absolute(), compression_level
        self.time_dim, self.verbose = time_dim, verbose
        try:
            self.save_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"save_dir {save_dir} cannot be created ({error.strerror}): choose another folder."
            ) from error
        self._shared = saver
        self._forget()
        remove_stale(self.save_dir)

    def _forget(self) -> None:
        """Reset to a state without threads and pending saves, for a new process."""
        self._pid, self._lock, self._closed = os.getpid(), threading.RLock(), False
        self._own: AsyncCheckpointSaver | None = None
        self._handles: dict[int, CheckpointHandle] = {}

    @property
    def _saver(self) -> AsyncCheckpointSaver:
        if self._shared is not None:
            return self._shared
        with self._here:
            if self._closed and self._own is None:
                raise StorageError("this RolloutStorage was closed: create a new one.")
            self._own = self._own or AsyncCheckpointSaver(max_queue_size=2, find_optimizers=False)
            return self._own

    @property
    def _here(self) -> contextlib.AbstractContextManager[Any]:
        """Return the lock of this process; a forked child gets a new one, because an inherited lock may never be released."""
        if self._pid != os.getpid():
            self._forget()
        return self._lock

    def path(self, iteration: int) -> Path:
        """Return the path of an iteration's file."""
        if not isinstance(iteration, int | np.integer) or isinstance(iteration, bool) or iteration < 0:
            raise InputError(f"iteration is {iteration!r}, but must be a whole number of at least 0.")
        return self.save_dir / f"rollout_{int(iteration):09d}{NATIVE}"

    def save(self, data: TensorDictBase, iteration: int, metadata: dict[str, Any] | None = None) -> CheckpointHandle:
        """Archive a rollout in the background; the data may be changed once this returns.

        The returned handle can be used as the file's path; it then waits until the file is durable.
        """
        note = describe(data, self.time_dim)
        path, level = self.path(iteration), self.compression_level
        metadata = {"rollout": {"iteration": int(iteration), **note}, "user": copy.deepcopy(metadata or {})}
        plain_node(metadata)  # raise now, not in the background

        def write(node: Node, leaves: Sequence[Leaf], plans: Plans) -> Written:
            time_last(leaves, note["time_dim"])
            written = write_state(path, "native", node, leaves, level=level, metadata=metadata, plans=plans)
            if self.verbose:
                say(f"[Rollout] {path}: {size_of(written)}")
            return written

        handle = self._saver.submit(to_tree(data), path, write)
        with self._here:
            self._handles = {key: known for key, known in self._handles.items() if not known.done}
            self._handles[int(iteration)] = handle
        return handle

    def load(
        self,
        iteration: int,
        device: torch.device | str = "cpu",
        *,
        keys: Iterable[Key] | None = None,
        envs: Rows | None = None,
        steps: Rows | None = None,
    ) -> TensorDictBase:
        """Load a rollout, or a part of it; if it is still being saved, wait until it is durable.

        Args:
            iteration: Training iteration of the rollout, as given to `save`.
            device: Where the tensors go.
            keys: Entries, all by default: `"reward"`, `"agents/observation"` or `("agents", "observation")`; use a tuple
                for a key that contains "/".
            envs: Rows of the env axis: an index (-1 is the last), a slice, indices, or a mask. The axis is kept.
            steps: Rows of the time axis, in the same forms as `envs`.
        """
        path = self.path(iteration)
        with self._here:
            pending = self._handles.get(int(iteration))
        if pending is not None:
            pending.wait()
        if path.is_file():
            with CheckpointFile(path) as opened:
                return read_rollout(opened, device, keys, envs, steps)
        old = self._files().get(iteration)
        if old is None:
            raise StorageError(f"{self.save_dir} has no rollout {iteration}; it has {self.list()[:20]}: choose one.")
        return read_lz4_rollout(old, device, keys, envs, steps, self.time_dim)

    def list(self) -> builtins.list[int]:
        """Return the archived iterations, in order."""
        return sorted(self._files())

    def _files(self) -> dict[int, Path]:
        matches = ((path, _NAMES.fullmatch(path.name)) for path in self.save_dir.glob("rollout_*"))
        return {int(match[1]): path for path, match in matches if match and path.is_file()}

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every submitted rollout is durable; return False after `timeout` seconds."""
        with self._here:
            saver = self._shared or self._own
        return saver is None or saver.drain(timeout)

    def get_stats(self) -> dict[str, Any]:
        """Return the saver's statistics: counts, bytes, ratios, waiting times."""
        return self._saver.get_stats()

    def close(self) -> None:
        """Finish all saves, and stop the threads unless they belong to a shared saver."""
        with self._here:
            own, self._closed = self._own, True
        if own is not None:
            own.shutdown()
        elif self._shared is not None:
            self._shared.drain()

    def __getstate__(self) -> dict[str, Any]:
        if self._shared is not None:
            raise StorageError("this RolloutStorage shares a saver, which cannot be pickled: create it without saver=.")
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared = None
        self._forget()
