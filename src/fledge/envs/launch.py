"""Run kernels over ranges of envs: split over threads on the CPU, as one launch on CUDA.

Warp runs a CPU kernel on the calling thread and releases the GIL, so the same launches can run over disjoint
ranges on several threads. Kernels take the first element of their range as first argument.
A `Program` is a list of recorded launches for each range, which is cheap to repeat.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import warp as wp


@dataclass(frozen=True)
class Call:
    """One kernel launch in a program: `per_item` threads for every element of the range."""

    kernel: Any
    args: Sequence[Any]
    per_item: int = 1


Program = list[list[Any]]  # [shard][launch]


class Launcher:
    """Worker threads of one env, which run kernel launches over ranges of its elements."""

    def __init__(self, device: str, num_threads: int) -> None:
        self.device = wp.get_device(device)
        self.num_threads = 1 if self.device.is_cuda else max(1, num_threads)
        # One worker less than threads, since the caller works too; and one that builds maps in the background.
        self._pool = ThreadPoolExecutor(max_workers=max(1, self.num_threads - 1), thread_name_prefix="fledge-sim")
        self._builder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fledge-maps")

    def shards(self, size: int) -> list[tuple[int, int]]:
        """Split range(size) into contiguous, non-empty parts (first, count), one per thread."""
        parts = min(self.num_threads, size)
        edges = [size * k // parts for k in range(parts + 1)]
        return [(a, b - a) for a, b in itertools.pairwise(edges)]

    def record(self, calls: Sequence[Call], size: int, group: int = 1) -> Program:
        """Return the program that launches `calls` in order over range(size * group); no group is split over threads."""

        def prepare(call: Call, first: int, count: int) -> Any:
            size, inputs = count * group * call.per_item, [first * group, *call.args]
            return wp.launch(call.kernel, dim=size, inputs=inputs, device=self.device, record_cmd=True)

        return [[prepare(call, *shard) for call in calls] for shard in self.shards(size)]

    def run(self, program: Program) -> None:
        """Run a program. On the CPU, return when it is complete; on CUDA, return when it is queued on torch's stream."""
        stream = wp.stream_from_torch(torch.cuda.current_stream(self.device.ordinal)) if self.device.is_cuda else None

        def launch_all(launches: Sequence[Any]) -> None:
            for launch in launches:
                launch.launch(stream=stream)

        self.run_tasks([functools.partial(launch_all, launches) for launches in program])

    def run_tasks(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run independent tasks, the first on the calling thread, and wait for all."""
        futures: list[Future[None]] = [self._pool.submit(task) for task in tasks[1:]]
        try:
            tasks[0]()
        finally:
            for future in futures:
                future.result()

    def run_in_background(self, task: Callable[[], None]) -> Future[None]:
        """Run a task on the background thread, in order of submission; return its future."""
        return self._builder.submit(task)

    def close(self) -> None:
        """Stop the worker threads."""
        self._pool.shutdown(wait=True)
        self._builder.shutdown(wait=True)
