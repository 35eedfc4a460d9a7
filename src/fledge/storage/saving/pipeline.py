"""The two background threads of a saver: one stages, one writes.

A job is staged (its remaining leaves are copied) and then written by its `write` function. Jobs are processed in order of
submission. A job that fails is counted, and the others continue. If an error ends a thread, all queued and later jobs fail.
The condition's lock is re-entrant, because a signal handler may drain while the main thread holds it. A forked child has no
threads: its pipeline is empty, and its handles fail with a message that names the parent process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fledge.core.errors import StorageError
from fledge.core.machine import available_bytes
from fledge.storage.format.codecs import LADDER
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.tree import Node
from fledge.storage.format.writer import Plans, Written
from fledge.storage.saving.handle import CheckpointHandle
from fledge.storage.saving.staging import Stager
from fledge.storage.saving.staging_buffer import StagingBuffer

# If writing takes more than BUSY_SHARE of one core, the writer changes to faster codecs; if it takes less than IDLE_SHARE in
# IDLE_SAVES saves in a row, to codecs that compress better, but take about 2.5 times as long. A single long pause does not
# count: it may be an evaluation.
BUSY_SHARE, IDLE_SHARE, IDLE_SAVES = 0.02, 0.004, 3
MAX_SPEED_BIAS = len(LADDER) - 1
READY_SHARE = 0.25  # share of the free memory that may be prepared before the first save
WRITER_NICE = 10  # training has priority when cores are short
Write = Callable[[Node, Sequence[Leaf], Plans], Written]
_pipelines: weakref.WeakSet[Pipeline] = weakref.WeakSet()


@dataclass(eq=False)
class Job:
    """One checkpoint to save."""

    handle: CheckpointHandle
    node: Node
    leaves: list[Leaf]
    later: list[Leaf]  # to stage in the background
    buffer: StagingBuffer
    write: Write
    events: dict[Any, Any] = field(default_factory=dict)  # CUDA events, see Stager.prepare
    started: float = field(default_factory=time.perf_counter)
    watched: list[tuple[torch.Tensor, int]] = field(default_factory=list)  # tensors of `later` and their versions


class Pipeline:
    """Queue, threads, staging buffers and counters of a saver."""

    def __init__(self, on_durable: Callable[[Job, Written, float], None]) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.stager = Stager()
        self.staging = 0  # jobs not staged yet; read without the lock by the optimiser's hook
        self.counts = dict.fromkeys(("saves", "failures", "dropped", "skipped", "waits", "bytes_in", "bytes_out"), 0)
        self.unreported: list[BaseException] = []
        self.cpu_s = 0.0  # CPU time of both threads
        self.last_error: str | None = None
        self.last_durable: float | None = None
        self._on_durable = on_durable
        self._to_stage: deque[Job] = deque()
        self._to_prepare = 0  # expected bytes of the first save
        self._preparing = False
        self._wanted = False  # a buffer was taken: stop preparing one
        self.jobs: deque[Job] = deque()  # waiting to be written, in order, without the one being written
        self._writing: Job | None = None
        self.free: list[StagingBuffer] = []
        self.buffers: list[StagingBuffer] = []  # all, free or not
        self._plans = Plans()
        self._last_start: float | None = None
        self._idle_saves = 0  # consecutive saves below IDLE_SHARE
        self._closed = False
        self.dead: str | None = None  # the error that ended a thread
        _pipelines.add(self)
        roles = (
            ("fledge-stage", self._next_to_stage, self._stage, 0),
            ("fledge-write", self._next_to_write, self._write, WRITER_NICE),
        )
        self._threads = [threading.Thread(target=self._run, args=role, name=name, daemon=True) for name, *role in roles]
        for thread in self._threads:
            thread.start()

    @property
    def unfinished(self) -> int:
        """Number of jobs that wait to be written or are being written."""
        return len(self.jobs) + (self._writing is not None)

    def take_buffer(self) -> StagingBuffer:
        """Return a free staging buffer, or a new one."""
        with self.changed:
            self._to_prepare, self._wanted = 0, True
            self.changed.wait_for(lambda: not self._preparing)  # it stops early; what it has prepared is used
            if self.free:
                return self.free.pop()
            self.buffers.append(StagingBuffer())
            return self.buffers[-1]

    @property
    def before_first_save(self) -> bool:
        """True until the first buffer is taken; False in a forked child and after `close`."""
        return not (self._wanted or self._closed)

    def prepare(self, nbytes: int) -> None:
        """Prepare a staging buffer of at least this size in the background, before the first job."""
        with self.changed:
            if nbytes > self._to_prepare and self.before_first_save:
                self._to_prepare = nbytes
                self.changed.notify_all()

    def _make_ready(self) -> None:
        """Prepare the buffer that `prepare` requested; a second request enlarges the same buffer."""
        with self.changed:
            nbytes, self._to_prepare = self._to_prepare, 0
            if not nbytes or not self.before_first_save:
                return
            self._preparing = True
            if not self.free:
                self.free.append(StagingBuffer())
                self.buffers.append(self.free[0])
            buffer = self.free.pop()
        cpu = time.thread_time()
        with contextlib.suppress(MemoryError, OSError):  # then the save itself fails with it
            most = int(READY_SHARE * (available_bytes(torch.device("cpu")) + buffer.nbytes))
            buffer.prepare(min(nbytes, most), lambda: self.before_first_save)
        with self.changed:
            self.cpu_s += time.thread_time() - cpu
            self._preparing = False
            if not self._closed:
                self.free.append(buffer)
            self.changed.notify_all()

    def submit(self, job: Job) -> None:
        """Queue a job for staging and writing."""
        with self.changed:
            if self.dead is not None:
                raise StorageError(f"the saver's thread ended ({self.dead}): create a new AsyncCheckpointSaver.")
            if job.later:
                self.staging += 1
                self._to_stage.append(job)
            else:
                job.handle.set_staged()
            self.jobs.append(job)
            self.changed.notify_all()

    def drop_oldest(self, why: str) -> Job:
        """Remove the oldest waiting job from the queue, mark it as dropped for the reason `why`, and return it."""
        with self.changed:
            job = self.jobs.popleft()
            self.counts["dropped"] += 1
            if job.handle.staged:
                self.free.append(job.buffer)
            job.handle.finish("dropped", StorageError(f"{job.handle.path} was dropped: {why}."))
            return job

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all jobs are written; return False if that takes longer than `timeout` seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: not (self.jobs or self._writing or self.staging), timeout)

    def close(self) -> None:
        """End the threads once all jobs are done, and free the buffers."""
        with self.changed:
            self._closed = True
            self.free.clear()
            self.buffers.clear()
            self.changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=None if not self.jobs else 0)

    def _run(self, take: Callable[[], Job | None], work: Callable[[Job], None], nice: int) -> None:
        if nice and sys.platform == "linux":  # elsewhere a priority belongs to the whole process
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
        try:
            while self._step(take, work):
                pass
        except BaseException as error:  # not an error of a job: a bug in this class, or no memory left
            self._die(error)

    def _step(self, take: Callable[[], Job | None], work: Callable[[Job], None]) -> bool:
        """Wait for a job and do it, or prepare a buffer; return False if the pipeline is closed and has no jobs left."""
        with self.changed:
            while (job := take()) is None and not (self._to_prepare and take == self._next_to_stage):
                if self._closed and not self.jobs and not self._to_stage:
                    return False
                self.changed.wait()
        if job is None:
            self._make_ready()
        else:
            work(job)
        return True

    def _die(self, error: BaseException) -> None:
        """Fail every job, so that no caller waits for a thread that has ended."""
        with self.changed:
            self.dead = f"{type(error).__name__}: {error}"
            for job in self._take_all():
                reason = f"{job.handle.path} was not saved: the saver's thread ended ({self.dead})."
                self._fail(job, StorageError(reason))
            self.changed.notify_all()

    def _take_all(self) -> list[Job]:
        """Empty the queue and return all unfinished jobs."""
        jobs = list(self.jobs) + ([] if self._writing is None else [self._writing])
        self.jobs, self._to_stage, self._writing = deque(), deque(), None
        self.staging, self._to_prepare, self._preparing = 0, 0, False
        return jobs

    def forget(self, owner: str) -> None:
        """Empty the pipeline in a forked child; `owner` describes the process that continues with the jobs."""
        self.changed = threading.Condition(threading.RLock())
        self.free, self.buffers, self._threads, self._wanted = [], [], [], True
        for job in self._take_all():
            job.handle.leave_to(owner)

    def _next_to_stage(self) -> Job | None:
        return self._to_stage.popleft() if self._to_stage else None

    def _next_to_write(self) -> Job | None:
        if self._writing is None and self.jobs and self.jobs[0].handle.staged:
            self._writing = self.jobs.popleft()
            self._writing.handle.status = "writing"
            self.changed.notify_all()
            return self._writing
        return None

    def _stage(self, job: Job) -> None:
        error: BaseException | None = None
        cpu = time.thread_time()
        try:
            self.stager.copy(job.later, job.buffer, job.events)
            if any(tensor._version != version for tensor, version in job.watched):
                raise StorageError(
                    f"{job.handle.path} was not saved: a tensor of an attached optimiser was changed while it was copied. "
                    "Call fence() before you change such a tensor by anything but the optimiser's step()."
                )
        except BaseException as raised:
            error = raised
        with self.changed:
            self.cpu_s += time.thread_time() - cpu
            self.staging = max(self.staging - 1, 0)  # already 0 if the writer has ended meanwhile
            if job.handle.done:  # dropped meanwhile
                self.free.append(job.buffer)
            elif error is not None:
                self.jobs.remove(job)
                self.free.append(job.buffer)
                self._fail(job, error)
            else:
                job.handle.set_staged()
            self.changed.notify_all()

    def _write(self, job: Job) -> None:
        written, error, cpu = None, None, time.thread_time()
        try:
            written = job.write(job.node, job.leaves, self._plans)
        except BaseException as raised:  # a panic in Rust is not an Exception
            error = raised
        cpu = time.thread_time() - cpu
        self._pace(job, cpu)
        with self.changed:
            self.cpu_s += cpu
            self._writing = None
            self.free.append(job.buffer)
            if written is not None:
                self.counts["saves"] += 1
                self.counts["bytes_in"] += written.bytes_in
                self.counts["bytes_out"] += written.bytes_out
                self.last_durable = time.monotonic()
                job.handle.finish("durable")
            elif error is not None:
                self._fail(job, error)
            self.changed.notify_all()
        if written is not None:
            with contextlib.suppress(Exception):  # a closed stdout must not stop saving
                self._on_durable(job, written, time.perf_counter() - job.started)

    def _pace(self, job: Job, cpu_seconds: float) -> None:
        """Change to faster codecs if saving takes much CPU time, or to codecs that compress better if it takes little."""
        if self._last_start is not None:
            share = cpu_seconds / max(job.started - self._last_start, 1e-6)
            self._idle_saves = self._idle_saves + 1 if share < IDLE_SHARE else 0
            if share > BUSY_SHARE:
                self._plans.speed_bias = min(self._plans.speed_bias + 1, MAX_SPEED_BIAS)
            elif self._idle_saves >= IDLE_SAVES:
                self._plans.speed_bias, self._idle_saves = max(self._plans.speed_bias - 1, 0), 0
        self._last_start = job.started

    def _fail(self, job: Job, error: BaseException) -> None:
        if not isinstance(error, Exception):  # the caller that waits for the handle must be able to catch it
            raised, error = error, StorageError(f"{job.handle.path} was not saved ({type(error).__name__}: {error}).")
            error.__cause__ = raised
        self.counts["failures"] += 1
        self.last_error = str(error) or type(error).__name__
        self.unreported.append(error)
        job.handle.finish("failed", error)


def _after_fork() -> None:
    owner = f"process {os.getppid()}, from which this one was forked"
    for pipeline in list(_pipelines):
        pipeline.forget(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
