"""PerformanceMonitor: measure how long each phase of a loop takes, at little cost.

Contract
    `timer(name)` is a context manager that adds one duration to `name`; timers nest, with the same or other names, and
    run on any number of threads. It costs about a microsecond. With `cuda=True` it marks the current CUDA stream with
    two events and reads them later, so that nothing waits for the GPU; a duration appears once the GPU has reached both.
    Durations are seconds; `get_summary` prints milliseconds. The last `history` durations of each name are kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

import numpy as np

HISTORY = 10_000
TITLE, NAME_WIDTH = "=== Performance Summary ===", 25  # as NavRL's add-on prints it


class _Timer:
    """Measures one block. Each use has its own object, so nested timers and threads need no lock."""

    __slots__ = ("_add", "_start")

    def __init__(self, add: Callable[[float], None]) -> None:
        self._add = add

    def __enter__(self) -> _Timer:
        self._start = perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self._add(perf_counter() - self._start)


class _CudaTimer:
    """Measures one block with two events on the current CUDA stream."""

    __slots__ = ("_begin", "_monitor", "_name")

    def __init__(self, monitor: PerformanceMonitor, name: str) -> None:
        self._monitor, self._name = monitor, name

    def __enter__(self) -> _CudaTimer:
        self._begin = self._monitor._event()
        self._begin.record()
        return self

    def __exit__(self, *exc: object) -> None:
        end = self._monitor._event()
        end.record()
        self._monitor._pending.append((self._name, self._begin, end))


class PerformanceMonitor:
    """Measures the durations of named phases.

    Example:
        >>> monitor = PerformanceMonitor()
        >>> with monitor.timer("data_collection"):
        ...     collect()
        >>> print(monitor.get_summary())

    Args:
        cuda: Measure the time on the GPU, with CUDA events.
        history: Durations kept per name.
    """

    def __init__(self, cuda: bool = False, history: int = HISTORY) -> None:
        self.cuda, self.history = cuda, history
        self._times: dict[str, deque[float]] = {}
        self._adders: dict[str, Callable[[float], None]] = {}
        self._pending: deque[tuple[str, Any, Any]] = deque()
        self._events: list[Any] = []
        self._lock = threading.Lock()

    def timer(self, name: str) -> AbstractContextManager[Any]:
        """Return a context manager that measures its block under `name`."""
        if self.cuda:
            return _CudaTimer(self, name)
        add = self._adders.get(name)
        return _Timer(add if add is not None else self._series(name))

    def record(self, name: str, seconds: float) -> None:
        """Add a duration that was measured elsewhere."""
        self._series(name)(seconds)

    def _series(self, name: str) -> Callable[[float], None]:
        with self._lock:
            if name not in self._adders:
                self._times[name] = deque(maxlen=self.history)
                self._adders[name] = self._times[name].append
            return self._adders[name]

    def _event(self) -> Any:
        import torch

        with self._lock:
            return self._events.pop() if self._events else torch.cuda.Event(enable_timing=True)

    def _collect_events(self) -> None:
        """Turn events that the GPU has reached into durations."""
        waiting = []
        while self._pending:
            name, begin, end = self._pending.popleft()
            if end.query():
                self._series(name)(begin.elapsed_time(end) / 1e3)
                with self._lock:
                    self._events += [begin, end]
            else:
                waiting.append((name, begin, end))
        self._pending.extend(waiting)

    def get_stats(self, window: int | None = None) -> dict[str, dict[str, float]]:
        """Return mean, std, min, max, p50, p99 (in seconds) and count for each name, over its last `window` durations.

        Without `window`, all durations that are kept count.
        """
        self._collect_events()
        with self._lock:
            series = {name: list(times) for name, times in self._times.items()}
        stats = {}
        for name, times in series.items():
            values = np.asarray(times[-window:] if window else times)
            if values.size == 0:
                continue
            p50, p99 = np.percentile(values, [50, 99])
            stats[name] = {key: float(getattr(values, key)()) for key in ("mean", "std", "min", "max")}
            stats[name] |= {"p50": float(p50), "p99": float(p99), "count": int(values.size)}
        return stats

    def get_summary(self, window: int | None = None) -> str:
        """Return a title and a line per name, `name: mean ms (± std ms) [min, max]`; "" if there are no durations."""
        stats = self.get_stats(window)
        if not stats:
            return ""
        wide = max(NAME_WIDTH, *map(len, stats))
        lines = [TITLE]
        for name, stat in stats.items():
            mean, std, low, high = (1e3 * stat[key] for key in ("mean", "std", "min", "max"))
            lines.append(f"{name:<{wide}}: {mean:7.2f} ms (± {std:5.2f} ms) [{low:6.2f}, {high:6.2f}]")
        return "\n".join(lines)

    def reset(self) -> None:
        """Forget all durations."""
        with self._lock:
            for times in self._times.values():
                times.clear()
        self._pending.clear()
