"""AsyncCheckpointSaver: checkpoints written in the background, of the state as it was at the call.

Contract
    `save_async` returns at once with a handle that passes two stages: *staged* (the state's bytes are ours, the
    caller may change everything) and *durable* (the file survives a power cut).
    - With an attached optimiser, its parameters and state are staged in the background; the next `step()` waits for
      that, by a pre-hook. Everything else in the state is copied before the call returns. Whoever changes parameters
      by other means than an attached optimiser's step calls `fence()` first.
    - Without one, everything is staged before the call returns.
    - A full queue makes the call wait (or drops, or skips, as chosen), and says so.
    - An error in the background is logged at the next call, counted, and raised by its handle; training goes on, and
      older checkpoints are untouched.
    - `shutdown` finishes everything that is queued. So do interpreter exit, SIGINT and SIGTERM.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fledge.core.errors import ConfigError, StorageError
from fledge.storage.checkpoint import target_path, write_state
from fledge.storage.disk.durable import remove_stale
from fledge.storage.format import codecs
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.tree import Node, flatten
from fledge.storage.format.writer import Plans, Written, plain_node
from fledge.storage.saving import exit_drain
from fledge.storage.saving.handle import CheckpointHandle
from fledge.storage.saving.pipeline import Job, Pipeline, Write
from fledge.storage.saving.staging import padded, split

logger = logging.getLogger("fledge.storage")
FULL_QUEUE = ("wait", "drop_oldest", "skip")
ON_ERROR = ("warn", "raise")
WARN_EVERY = 10.0  # seconds between two warnings that the queue is full; the stats count every one


class AsyncCheckpointSaver:
    """Saves checkpoints without stopping the training loop.

    Example:
        >>> saver = AsyncCheckpointSaver(max_queue_size=3)
        >>> saver.attach(optimizer)
        >>> handle = saver.save_async({"model": model.state_dict()}, "run/checkpoint_100.pt")
        >>> saver.shutdown()

    Args:
        max_queue_size: Checkpoints that may wait to be written, besides the one being written.
        compression_level: 0 (store) to 9 (densest); None chooses by size. With codec "lz4" it is LZ4's own level.
        verbose: Print a line for each checkpoint that became durable.
        codec: Format of the files: "native", or "lz4", "pt" and "safetensors" for other tools.
        full_queue: What `save_async` does when the queue is full: "wait", "drop_oldest" or "skip".
        on_error: "warn" logs an error of the background at the next call; "raise" raises it there.
        handle_signals: Finish what is queued on SIGINT and SIGTERM, before the previous handler runs.
    """

    def __init__(
        self,
        max_queue_size: int = 3,
        compression_level: int | None = None,
        verbose: bool = False,
        *,
        codec: str = "native",
        full_queue: Literal["wait", "drop_oldest", "skip"] = "wait",
        on_error: Literal["warn", "raise"] = "warn",
        handle_signals: bool = True,
    ) -> None:
        if max_queue_size < 1:
            raise ConfigError(f"max_queue_size is {max_queue_size}, but must be at least 1.")
        if full_queue not in FULL_QUEUE:
            raise ConfigError(f"full_queue is {full_queue!r}, but must be one of {', '.join(FULL_QUEUE)}.")
        if on_error not in ON_ERROR:
            raise ConfigError(f"on_error is {on_error!r}, but must be one of {', '.join(ON_ERROR)}.")
        target_path("x", codec)
        if codec == "native":
            codecs.candidates(compression_level, 0)
        self.max_queue_size, self.compression_level, self.verbose = max_queue_size, compression_level, verbose
        self.codec, self.full_queue, self.on_error = codec, full_queue, on_error
        self._optimizers: list[torch.optim.Optimizer] = []
        self._hooks: list[Any] = []
        self._stalls: deque[float] = deque(maxlen=4096)  # seconds, per save_async
        self._fences: deque[float] = deque(maxlen=4096)  # seconds, per step that had to wait
        self._warned = -WARN_EVERY
        self._cleaned: set[Path] = set()
        self._closed = False
        self._pid = os.getpid()
        self._pipeline = Pipeline(self._on_durable)
        exit_drain.register(self, handle_signals)

    def attach(self, *optimizers: torch.optim.Optimizer) -> None:
        """Stage what these optimisers own in the background; their next `step()` waits until that is done."""
        for optimizer in optimizers:
            if not any(known is optimizer for known in self._optimizers):
                self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
                self._optimizers.append(optimizer)

    def _before_step(self, *_: Any) -> None:
        if self._pipeline.staging:  # a plain read: the common case costs nothing
            self.fence()

    def fence(self) -> None:
        """Wait until every state given so far is staged; afterwards it may be changed."""
        start = time.perf_counter()
        self._pipeline.wait_staged()
        self._fences.append(time.perf_counter() - start)

    def save_async(
        self,
        checkpoint: Any,
        path: str | os.PathLike[str],
        compress: bool = True,
        metadata: dict[str, Any] | None = None,
        *,
        codec: str | None = None,
        base: str | os.PathLike[str] | None = None,
    ) -> CheckpointHandle:
        """Save a state in the background; returns a handle at once.

        Args:
            checkpoint: Nested dicts, lists and tuples of tensors, arrays, numbers, strings, bytes and None.
            path: Where to save. The format's suffix is appended if the name lacks it; `handle.path` is the file.
            compress: False stores tensors as they are (and, with codec "lz4", writes a plain `.pt`).
            metadata: Plain values kept beside the state.
            codec: Format for this file only.
            base: An earlier native checkpoint in the same folder, to save the difference to.

        Raises:
            InputError: The state holds something that cannot be saved.
            StorageError: The saver was shut down; or, with on_error="raise", an earlier save failed.
        """
        format = codec or self.codec
        if format == "lz4" and not compress:
            format = "pt"
        target = target_path(path, format)
        level = self.compression_level if compress else 0
        metadata = dict(metadata or {})
        plain_node(metadata)

        def write(node: Node, leaves: Sequence[Leaf], plans: Plans) -> Written:
            self._clean(target.parent)
            return write_state(target, format, node, leaves, level=level, metadata=metadata, base=base, plans=plans)

        return self.submit(checkpoint, target, write)

    def submit(self, checkpoint: Any, path: str | os.PathLike[str], write: Write) -> CheckpointHandle:
        """Stage a state like `save_async`, and have `write(tree, leaves, plans)` called in the background."""
        start = time.perf_counter()
        self._check_usable()
        self._report_errors()
        handle = CheckpointHandle(Path(path))
        if not self._make_room(handle):
            return handle
        pipeline = self._pipeline
        node, leaves = flatten(checkpoint)
        now, later = split(leaves, self._optimizers) if self._optimizers else (leaves, [])
        events = pipeline.stager.prepare(leaves)
        arena = pipeline.arena()
        arena.reserve(sum(padded(leaf.nbytes) for leaf in leaves), pinned=bool(events))
        pipeline.stager.copy(now, arena, events)
        pipeline.submit(Job(handle, node, leaves, later, arena, write, events, start))
        self._stalls.append(time.perf_counter() - start)
        return handle

    def _clean(self, folder: Path) -> None:
        """Remove what killed processes left in a folder, once."""
        if folder not in self._cleaned:
            self._cleaned.add(folder)
            remove_stale(folder)

    def _check_usable(self) -> None:
        if self._closed:
            raise StorageError("this AsyncCheckpointSaver was shut down: make a new one.")
        if os.getpid() != self._pid:
            raise StorageError("this AsyncCheckpointSaver was made in another process: make one in this process.")

    def _report_errors(self) -> None:
        with self._pipeline.changed:
            errors, self._pipeline.unreported = self._pipeline.unreported, []
        for error in errors:
            logger.warning("an earlier checkpoint was not saved: %s", error)
        if errors and self.on_error == "raise":
            raise StorageError(f"an earlier checkpoint was not saved: {errors[0]}") from errors[0]

    def _make_room(self, handle: CheckpointHandle) -> bool:
        """Whether the queue takes one more, after doing what `full_queue` says."""
        pipeline = self._pipeline
        with pipeline.changed:
            if pipeline.waiting() < self.max_queue_size:
                return True
            why = f"{self.max_queue_size} checkpoints wait to be written"
            if self.full_queue == "skip":
                pipeline.counts["skipped"] += 1
                handle.finish("skipped", StorageError(f"{handle.path} was skipped: {why}."))
                logger.warning("%s: this one (%s) is skipped", why, handle.path)
                return False
            if self.full_queue == "drop_oldest":
                dropped = pipeline.drop_oldest(why)
                logger.warning("%s: the oldest (%s) is dropped", why, dropped.handle.path)
                return True
            pipeline.counts["waits"] += 1
        if time.monotonic() - self._warned > WARN_EVERY:
            self._warned = time.monotonic()
            logger.warning("%s: waiting for the disk; save less often or compress less", why)
        pipeline.wait_room(self.max_queue_size)
        return True

    def _on_durable(self, job: Job, written: Written, seconds: float) -> None:
        if self.verbose:
            ratio = written.bytes_out / max(written.bytes_in, 1)
            size = f"{written.bytes_in / 1e6:.1f} MB as {written.bytes_out / 1e6:.1f} MB ({ratio:.2f})"
            print(f"[Checkpoint] {job.handle.path}: {size}, durable after {seconds:.2f} s", flush=True)

    def get_stats(self) -> dict[str, Any]:
        """Figures so far: counts, bytes, ratio, queue, what callers waited (ms), and the age of the last durable file.

        `stall_*` is what `save_async` took, `fence_*` what an optimiser's step then still had to wait. `ratio` is bytes
        written over bytes given: smaller is better. `background_cpu_s` is the CPU time of our threads. `age_s` and
        `last_error` are None as long as there is none.
        """
        pipeline = self._pipeline
        with pipeline.changed:
            counts = dict(pipeline.counts)
            age = None if pipeline.last_durable is None else time.monotonic() - pipeline.last_durable
            stats = {**counts, "queue_size": pipeline.waiting(), "last_error": pipeline.last_error, "age_s": age}
            stats |= {"buffer_bytes": pipeline.buffer_bytes(), "background_cpu_s": pipeline.cpu_s}
        stats["ratio"] = counts["bytes_out"] / counts["bytes_in"] if counts["bytes_in"] else None
        for name, seconds in (("stall", list(self._stalls)), ("fence", list(self._fences))):
            p50, p99 = np.percentile(seconds, [50, 99]) * 1e3 if seconds else (0.0, 0.0)
            stats |= {f"{name}_p50_ms": float(p50), f"{name}_p99_ms": float(p99)}
        return stats

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until everything given so far is durable (or failed); False after `timeout` seconds."""
        return self._pipeline.drain(timeout) if os.getpid() == self._pid else True

    def shutdown(self, timeout: float | None = None) -> bool:
        """Finish everything that is queued, and stop; True when all of it is done within `timeout` seconds.

        Later calls of `save_async` raise. Errors are logged, or raised with on_error="raise".
        """
        self._closed = True
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._optimizers = [], []
        finished = self.drain(timeout)
        if not finished:
            left = self._pipeline.waiting() + 1
            logger.warning("shutdown: %d checkpoints are not durable after %s s; they go on until exit", left, timeout)
            return False
        exit_drain.unregister(self)
        if os.getpid() == self._pid:
            self._pipeline.close()
        self._report_errors()
        return True

    def __enter__(self) -> AsyncCheckpointSaver:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
