"""Threads that decode, for as long as the buffer lives.

Contract
    `run(tasks)` carries out independent tasks, the first on the calling thread, and returns when all are done; what a
    task raises reaches the caller, with its cause. Threads start with the first parallel run and none outlives `close()`,
    nor the object itself. A forked child has none of its parent's threads, and starts its own; so does a copy.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from fledge.core.errors import ConfigError, FledgeError, StorageError

Task = Callable[[], None]


def default_threads() -> int:
    """Cores this process may use, at most four: batches are small."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(4, cores)


class Workers:
    """A pool that includes the caller's thread."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = default_threads() if threads is None else threads
        if not isinstance(self.threads, int) or self.threads < 1:
            raise ConfigError(
                f"decode_threads is {threads}, but must be a whole number of at least 1 (the caller's own)."
            )
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._closed = False

    def shards(self, size: int, least: int = 1) -> list[tuple[int, int]]:
        """Split range(size) into (begin, end), one per thread, none with fewer than `least` unless it is the only one."""
        parts = max(1, min(self.threads, size // max(least, 1)))
        edges = [size * k // parts for k in range(parts + 1)]
        return list(itertools.pairwise(edges))

    def run(self, tasks: Sequence[Task]) -> None:
        """Carry out tasks and wait for all of them."""
        if self._closed:
            raise StorageError("the replay buffer is closed: make a new one.")
        futures: list[Future[None]] = []
        if len(tasks) > 1:
            if self._pool is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._pool = ThreadPoolExecutor(max(1, self.threads - 1), thread_name_prefix="fledge-replay")
            futures = [self._pool.submit(task) for task in tasks[1:]]
        failure: BaseException | None = None
        for call in [tasks[0], *(future.result for future in futures)]:
            try:
                call()
            except BaseException as error:  # the others must end before their buffers go away
                failure = failure or error
        if failure is None:
            return
        if isinstance(failure, FledgeError) or not isinstance(failure, Exception):
            raise failure
        raise StorageError(f"decoding the replay failed ({type(failure).__name__}: {failure}).") from failure

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown(wait=True)
        self._pool = None

    def __reduce__(self) -> tuple[type[Workers], tuple[int]]:
        return Workers, (self.threads,)
