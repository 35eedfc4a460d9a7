"""Workers: the threads that decode for a replay buffer.

Contract
    `run(tasks)` executes independent tasks, the first on the calling thread, and returns when all are done; an error of a
    task is raised to the caller, with its cause. Threads start with the first parallel run and end with `close()`, or with
    the object. A forked child and a copy start threads of their own.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from fledge.core.errors import ConfigError, FledgeError, StorageError
from fledge.core.machine import default_threads
from fledge.replay.checks import whole


class Workers:
    """Thread pool that includes the caller's thread; `threads=None` uses one thread per core, at most four."""

    def __init__(self, threads: int | None = None) -> None:
        threads = min(4, default_threads()) if threads is None else threads
        self.threads = whole("decode_threads", threads, 1, ConfigError)
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._closed = False

    def share(self, size: int, work: Callable[[int, int], None], least: int = 1) -> None:
        """Call `work(begin, end)` on parts of range(size), one per thread; a part has `least` items or more if size allows."""
        parts = max(1, min(self.threads, size // max(least, 1)))
        edges = [size * k // parts for k in range(parts + 1)]
        self.run([functools.partial(work, begin, end) for begin, end in itertools.pairwise(edges)])

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Execute tasks and wait for all of them."""
        if self._closed:
            raise StorageError("The replay buffer is closed: make a new one.")
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
        raise StorageError(f"Decoding the replay failed ({type(failure).__name__}: {failure}).") from failure

    def close(self) -> None:
        """Stop the threads."""
        self._closed = True
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown(wait=True)
        self._pool = None

    def __reduce__(self) -> tuple[type[Workers], tuple[int]]:
        return Workers, (self.threads,)
