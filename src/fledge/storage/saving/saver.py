"""AsyncCheckpointSaver: write checkpoints in the background, of the state at the time of the call.

`save_async` returns at once with a handle that passes two stages: *staged* (the state is copied, the caller may change it) and
*durable* (the file survives a power cut).
    - With an attached optimiser, its parameters and state are staged in the background, and its next `step()` waits for
      that. Everything else is copied before the call returns. Call `fence()` before changing parameters in another way.
    - Without an attached optimiser, everything is staged before the call returns.
    - An error in the background is logged at the next call, counted, and raised by its handle; training continues, and
      older checkpoints are untouched.
    - `shutdown`, interpreter exit, SIGINT and SIGTERM finish all queued saves. While the interpreter exits, `save_async`
      returns when the file is durable.
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
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fledge.core.errors import ConfigError, InputError, StorageError, harmless
from fledge.storage.checkpoint import NATIVE, check_level, target_path, write_state
from fledge.storage.disk.durable import remove_stale
from fledge.storage.format.flattening import flatten
from fledge.storage.format.interop import check_leaves
from fledge.storage.format.leaves import DTensorChoice, Leaf
from fledge.storage.format.tree import Node
from fledge.storage.format.writer import Plans, Written, plain_copy
from fledge.storage.saving import exit_drain
from fledge.storage.saving.handle import CheckpointHandle
from fledge.storage.saving.pipeline import Job, Pipeline, Write
from fledge.storage.saving.preparation import Preparation
from fledge.storage.saving.staging import split
from fledge.storage.saving.staging_buffer import padded
from fledge.storage.saving.summary import say, size_of, summary_of

logger = logging.getLogger("fledge.storage")
CHOICES = {
    "full_queue": ("wait", "drop_oldest", "skip"), "on_error": ("warn", "raise"), "dtensor": ("full", "local", None)
}  # fmt: skip
WARN_EVERY = 10.0  # seconds between two warnings about a full queue; the stats count every wait


class AsyncCheckpointSaver:
    """Saves checkpoints without stalling the training loop.

    Example:
        >>> saver = AsyncCheckpointSaver(max_queue_size=3)
        >>> saver.attach(optimizer)
        >>> handle = saver.save_async({"model": model.state_dict()}, "run/checkpoint_100.pt")
        >>> saver.shutdown()

    Args:
        max_queue_size: Checkpoints that may wait to be written, besides the one being written.
        compression_level: 0 (no compression) to 9 (smallest file), with codec "lz4" up to 16; None chooses a level.
        verbose: Print a line for each durable checkpoint, and the statistics at the end.
        codec: Format of the files: "native", or "lz4", "pt" and "safetensors" for other tools.
        full_queue: What `save_async` does if the queue is full: "wait", "drop_oldest" or "skip".
        on_error: "warn" logs a background error at the next call; "raise" raises it there.
        handle_signals: Finish queued saves on SIGINT and SIGTERM, before the previous handler runs.
        dtensor: How to save a sharded DTensor (FSDP2): "full" saves the whole tensor (every rank must save), "local"
            only this rank's part; None raises an InputError.
        find_optimizers: Watch all models and optimisers of the process, to prepare memory before the first save, and to
            make the steps of all optimisers wait for staging, not only the steps of attached ones.
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
        dtensor: DTensorChoice = None,
        find_optimizers: bool = True,
    ) -> None:
        if max_queue_size < 1:
            raise ConfigError(f"max_queue_size is {max_queue_size}, but must be at least 1.")
        for name, value in {"full_queue": full_queue, "on_error": on_error, "dtensor": dtensor}.items():
            if value not in CHOICES[name]:
                raise ConfigError(f"{name} is {value!r}, but must be one of {', '.join(map(str, CHOICES[name]))}.")
        target_path("x", codec)
        check_level(codec, compression_level)
        self.max_queue_size, self.compression_level, self.verbose = max_queue_size, compression_level, verbose
        self.codec, self.full_queue, self.on_error, self.dtensor = codec, full_queue, on_error, dtensor
        self._optimizers: list[torch.optim.Optimizer] = []
        self._hooks: list[Any] = []
        self._stalls: deque[float] = deque(maxlen=4096)  # seconds, per save_async
        self._fences: deque[float] = deque(maxlen=4096)  # seconds, per step that waited
        self._warned = -WARN_EVERY
        self._cleaned: set[Path] = set()  # folders without temporary files of killed processes
        self._closed = False
        self._pid = os.getpid()
        self._pipeline = Pipeline(self._on_durable)
        self._preparation = Preparation(self._pipeline, watch=find_optimizers)
        if find_optimizers:
            self._hooks.append(register_optimizer_step_pre_hook(self._on_step))
        exit_drain.register(self, handle_signals)

    def attach(self, *optimizers: torch.optim.Optimizer) -> None:
        """Let saves copy these optimisers' parameters and state in the background; the next `step()` waits until that is done.

        Until a save is staged, only `step()` may change them. Call `fence()` before you change them in another way.
        """
        for optimizer in optimizers:
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise InputError(f"attach takes torch optimisers, but got a {type(optimizer).__name__}.")
            if not any(known is optimizer for known in self._optimizers):
                self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
                self._optimizers.append(optimizer)
            self._preparation.expect(optimizer)

    def _on_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Prepare memory for the first save when an optimiser first steps, and wait until staging is done."""
        self._preparation.expect(optimizer)
        self._before_step()

    def _before_step(self, *_: Any) -> None:
        if self._pipeline.staging:  # a plain read, so that the common case is cheap
            self.fence()

    def fence(self) -> None:
        """Wait until every submitted state is staged; afterwards its tensors may be changed."""
        start = time.perf_counter()
        with self._pipeline.changed:  # a forked child has nothing to wait for
            self._pipeline.changed.wait_for(lambda: not self._pipeline.staging)
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
        """Save a state in the background; return a handle at once.

        Args:
            checkpoint: Nested dicts, lists and tuples of tensors, arrays, numbers, strings, bytes and None.
            path: Where to save: `x.pt` becomes `x.pt.fledge`, or `x.pt.lz4` with codec "lz4"; without compression it stays
                `x.pt`. `handle.path` is the path of the file.
            compress: False writes a `torch.save` file under the name given. With codec="native", or a name that ends in
                `.fledge`, the file is native without compression.
            metadata: Plain values (no tensors or arrays) to store beside the state.
            codec: Format for this file only.
            base: An earlier native checkpoint in the same folder; only the difference to it is stored.

        Raises:
            ConfigError: The format cannot store an argument, such as metadata in a `.pt`.
            InputError: The state holds something that cannot be saved.
            StorageError: The saver was shut down; or, with on_error="raise", an earlier save failed.
        """
        format = codec or self.codec
        if not compress and codec != "native" and format != "safetensors" and not os.fspath(path).endswith(NATIVE):
            format = "pt"
        # Resolve now: by the time of writing, the working directory and the metadata may have changed.
        target = target_path(os.path.abspath(path), format)
        base = None if base is None else os.path.abspath(base)
        level = self.compression_level if compress else 0
        check_level(format, level)
        metadata = plain_copy(metadata or {})
        if format in ("pt", "lz4") and (metadata or base):
            advice = "omit them, or use codec='native'"
            raise ConfigError(f"{target.name} is a torch.save file, which has no place for metadata or base: {advice}.")

        def write(node: Node, leaves: Sequence[Leaf], plans: Plans) -> Written:
            if target.parent not in self._cleaned:
                self._cleaned.add(target.parent)
                remove_stale(target.parent)
            return write_state(target, format, node, leaves, level=level, metadata=metadata, base=base, plans=plans)

        return self.submit(checkpoint, target, write, format)

    def submit(
        self, checkpoint: Any, path: str | os.PathLike[str], write: Write, format: str = "native"
    ) -> CheckpointHandle:
        """Copy a state as `save_async` does, then call `write(tree, leaves, plans)` in the background to write the file."""
        start = time.perf_counter()
        if self._closed:
            raise StorageError("this AsyncCheckpointSaver was shut down: create a new one.")
        if os.getpid() != self._pid:
            raise StorageError("this AsyncCheckpointSaver belongs to another process: create one in this process.")
        self._report_errors()
        handle = CheckpointHandle(path if isinstance(path, Path) else Path(path))
        node, leaves = flatten(checkpoint, self.dtensor)
        check_leaves(format, leaves)
        if not self._make_room(handle):
            return handle
        pipeline = self._pipeline
        now, later, watched = split(leaves, self._optimizers)
        events = pipeline.stager.prepare(leaves)
        buffer = pipeline.take_buffer()
        try:
            buffer.reserve(sum(padded(leaf.nbytes) for leaf in leaves), pinned=bool(events))
            pipeline.stager.copy(now, buffer, events)
            pipeline.submit(Job(handle, node, leaves, later, buffer, write, events, start, watched))
        except BaseException:
            with pipeline.changed:
                pipeline.free.append(buffer)
            raise
        self._preparation.stop()
        self._stalls.append(time.perf_counter() - start)
        if exit_drain.ending():
            self.drain()
            self._report_errors()
        return handle

    def report(self) -> list[BaseException]:
        """Log background errors that have not been reported yet, and return them."""
        with self._pipeline.changed:
            errors, self._pipeline.unreported = self._pipeline.unreported, []
        for error in errors:
            logger.warning("an earlier checkpoint was not saved: %s", harmless(str(error)))
        return errors

    def _report_errors(self) -> None:
        errors = self.report()
        if errors and self.on_error == "raise":
            raise StorageError(f"an earlier checkpoint was not saved: {errors[0]}") from errors[0]

    def _make_room(self, handle: CheckpointHandle) -> bool:
        """If the queue is full, apply the setting `full_queue`; return False if this save is skipped."""
        pipeline = self._pipeline
        with pipeline.changed:
            if len(pipeline.jobs) < self.max_queue_size:
                return True
            why = f"{self.max_queue_size} checkpoints wait to be written"
            advice = "save less often, compress less, or raise max_queue_size (async_checkpoint_queue_size)"
            if self.full_queue == "skip":
                pipeline.counts["skipped"] += 1
                handle.finish("skipped", StorageError(f"{handle.path} was skipped: {why}."))
                logger.warning("%s: this one (%s) is skipped; %s", why, harmless(str(handle)), advice)
                return False
            if self.full_queue == "drop_oldest":
                dropped = pipeline.drop_oldest(why)
                logger.warning("%s: the oldest (%s) is dropped; %s", why, harmless(str(dropped.handle)), advice)
                return True
            pipeline.counts["waits"] += 1
        self._warn_full_queue(f"{why}: waiting for the disk; {advice}")
        with pipeline.changed:
            return pipeline.changed.wait_for(lambda: len(pipeline.jobs) < self.max_queue_size)

    def _warn_full_queue(self, text: str) -> None:
        """Log that the caller has to wait, at most every `WARN_EVERY` seconds."""
        if time.monotonic() - self._warned > WARN_EVERY:
            self._warned = time.monotonic()
            logger.warning(text)

    def _on_durable(self, job: Job, written: Written, seconds: float) -> None:
        if self.verbose:
            say(f"[Checkpoint] {harmless(str(job.handle))}: {size_of(written)}, durable after {seconds:.2f} s")

    def get_stats(self) -> dict[str, Any]:
        """Return counts, bytes, ratios, queue size, waiting times (ms), and the age of the last durable file.

        `stall_*` is the time that `save_async` took; `fence_*` is the time that an optimiser's step waited. `ratio` is bytes
        written / bytes given, such as 0.35; `compression_ratio` is its inverse. `background_cpu_s` is the CPU time of
        the saver's threads. Ratios, `age_s` and `last_error` are None if there is no value yet.
        """
        pipeline = self._pipeline
        with pipeline.changed:
            counts = dict(pipeline.counts)
            age = None if pipeline.last_durable is None else time.monotonic() - pipeline.last_durable
            stats = {**counts, "queue_size": len(pipeline.jobs), "last_error": pipeline.last_error, "age_s": age}
            stats |= {"buffer_bytes": sum(buffer.nbytes for buffer in pipeline.buffers)}
            stats |= {"background_cpu_s": pipeline.cpu_s}
        given, written = counts["bytes_in"], counts["bytes_out"]
        stats["ratio"] = written / given if given else None
        stats["compression_ratio"] = given / written if written else None
        for name, seconds in (("stall", list(self._stalls)), ("fence", list(self._fences))):
            p50, p99 = np.percentile(seconds, [50, 99]) * 1e3 if seconds else (0.0, 0.0)
            stats |= {f"{name}_p50_ms": float(p50), f"{name}_p99_ms": float(p99)}
        return stats

    def get_summary(self) -> str:
        """Return the statistics as text: a title and three lines."""
        return summary_of(self.get_stats(), self.max_queue_size)

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every submitted save is durable or failed; return False after `timeout` seconds."""
        return self._pipeline.drain(timeout) if os.getpid() == self._pid else True

    def shutdown(self, timeout: float | None = None) -> bool:
        """Finish all queued saves and stop; return False if that takes longer than `timeout` seconds.

        Later calls of `save_async` raise StorageError. Errors are logged, or raised with on_error="raise". If saves
        failed, a warning says how many.
        """
        again, self._closed = self._closed, True
        finished = self.drain(timeout)
        if not finished:  # the hooks stay: steps must still wait for staging
            left = len(self._pipeline.jobs) + 1
            logger.warning("shutdown: %d checkpoints are not durable after %s s; saving continues", left, timeout)
            return False
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._optimizers = [], []
        self._preparation.stop()
        exit_drain.unregister(self)
        if os.getpid() == self._pid:
            self._pipeline.close()
        if self.verbose and not again and self._pipeline.counts["saves"]:
            say(self.get_summary())
        failed = self._pipeline.counts["failures"]
        if failed and not again:
            total, last = failed + self._pipeline.counts["saves"], harmless(self._pipeline.last_error or "")
            logger.warning(
                "shutdown: %d of %d saves failed; see `error` of each handle. The last: %s", failed, total, last
            )
        self._report_errors()
        return True

    def __enter__(self) -> AsyncCheckpointSaver:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
