"""Read a run's metrics for charts while they are written, and keep at most MAX_POINTS points of each.

A point is the mean, minimum and maximum of `size` rows. When there are more than `MAX_POINTS`, pairs are merged and `size`
doubles, so memory does not grow with the run; `generation` changes whenever earlier points do. An unfinished last line is read
when it is complete. Lines that are not JSON objects, values that are not finite numbers, and unprintable names are ignored. A
file that was replaced is read from the start.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fledge.monitor.metrics_file import is_number, parse_row

MAX_POINTS = 1000
MAX_READ = 16_000_000  # bytes at a time, so that other requests are answered in between
MAX_LINE = 1_000_000
MAX_COLUMNS = 200
MAX_NAME = 200  # characters of a metric's name
AXES = ("step", "frames", "seconds")
DIGITS = 6  # significant digits that are sent

Row = dict[str, float]

# a point of a metric: sum, count, minimum, maximum of its rows
EMPTY = np.array([[0.0], [0.0], [np.inf], [-np.inf]])
JOIN = (np.add, np.add, np.minimum, np.maximum)


class Curves:
    """Points of the metrics of one run, read from its metrics.jsonl; thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        self._lock = threading.RLock()
        self._begin()

    def _begin(self) -> None:
        self.generation += 1
        self.size = 1  # rows per point
        self.rows = 0
        self.columns: dict[str, np.ndarray] = {}  # metric -> its points, [4, MAX_POINTS]
        self.outcomes: list[str] = []
        self.last: Row = {}
        self._axes = np.zeros((len(AXES), MAX_POINTS))
        # the last point while it grows: plain numbers are faster than arrays
        self._open: dict[str, tuple[float, int, float, float]] = {}
        self._place = 0  # bytes read
        self._torn = b""
        self._file: tuple[int, int] | None = None
        self.bytes = 0

    @property
    def points(self) -> int:
        """Return the number of points of each metric."""
        return -(-self.rows // self.size)

    def refresh(self, most: int = MAX_READ) -> bool:
        """Read at most `most` bytes that were written since the last call; return whether there is more to read."""
        with self._lock:
            try:
                with open(self.path, "rb") as stream:
                    stat = os.fstat(stream.fileno())
                    self.bytes = stat.st_size
                    if self._file not in (None, (stat.st_dev, stat.st_ino)) or self.bytes < self._place:
                        self._begin()
                        self.bytes = stat.st_size
                    self._file = stat.st_dev, stat.st_ino
                    stream.seek(self._place)
                    new = stream.read(min(most, max(self.bytes - self._place, 0)))
            except OSError:
                return False  # not written yet, or just being replaced
            self._place += len(new)
            *lines, self._torn = (self._torn + new).split(b"\n")
            if len(self._torn) > MAX_LINE:
                self._torn = b"x"  # not a row; its rest is not JSON either
            for line in lines:
                self._add(line)
            self._note_point()
            return self._place < self.bytes

    def _add(self, line: bytes) -> None:
        if (numbers := numbers_in(line)) is None:
            return
        if not self.outcomes and "episodes" in numbers:
            names = list(numbers)
            self.outcomes = names[1 : names.index("episodes")]
        if self.rows % self.size == 0:
            self._note_point()
            self._open = {}
            if self.rows == MAX_POINTS * self.size:
                self._halve()
        self.rows += 1
        for name, value in numbers.items():
            if name not in self.columns:
                if len(self.columns) >= MAX_COLUMNS:
                    continue
                self.columns[name] = np.repeat(EMPTY, MAX_POINTS, axis=1)
            self.last[name] = value
            total, count, least, greatest = self._open.get(name, (0.0, 0, math.inf, -math.inf))
            self._open[name] = (total + value, count + 1, min(least, value), max(greatest, value))

    def _note_point(self) -> None:
        """Copy the last point into the arrays of points; rows may still be added to it later."""
        if not self._open:
            return
        at = (self.rows - 1) // self.size
        self._axes[:, at] = [self.last.get(name, self.last["step"]) for name in AXES]
        for name, point in self._open.items():
            self.columns[name][:, at] = point

    def _halve(self) -> None:
        """Merge pairs of neighbouring points, so that half as many remain."""
        half = MAX_POINTS // 2
        for points in self.columns.values():
            pairs = points.reshape(4, half, 2)
            with np.errstate(over="ignore"):  # a mean that is too large for a float is not drawn
                joined = [join.reduce(pairs[row], axis=1) for row, join in enumerate(JOIN)]
            points[:, :half], points[:, half:] = joined, EMPTY
        self._axes[:, :half] = self._axes[:, 1::2]
        self.size *= 2
        self.generation += 1

    def since(self, generation: int = 0, start: int = 0) -> dict[str, Any]:
        """Return the points from number `start` on, as JSON-able values; all points if `generation` is not the present one."""
        with self._lock:
            stop = self.points
            first = start if generation == self.generation and 0 <= start <= stop else 0
            return {
                "generation": self.generation,
                "start": first,
                "size": self.size,
                "rows": self.rows,
                "read": round(self._place / self.bytes, 4) if self.bytes else 1.0,
                "x": {name: rounded(self._axes[i, first:stop], 12) for i, name in enumerate(AXES)},
                "values": {
                    name: as_dict(points[:, first:stop], self.size > 1)
                    for name, points in self.columns.items()
                    if name not in AXES
                },
            }


def as_dict(points: np.ndarray, spread: bool) -> dict[str, list[float | None]]:
    """Return the means of n points as {"mean": [...]}; with `spread`, also their "min" and "max".

    Args:
        points: [4, n]: sum, count, minimum and maximum of the rows of each point.
    """
    total, count, least, greatest = points
    means = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return {"mean": rounded(means), **({"min": rounded(least), "max": rounded(greatest)} if spread else {})}


def primary_metric_of(names: Iterable[str]) -> str:
    """Return the primary metric of a run: the NAME for which there is a metric NAME_recent, else `return`."""
    return next((name.removesuffix("_recent") for name in names if name.endswith("_recent")), "return")


def numbers_in(line: bytes) -> Row | None:
    """Return the numbers in a line of metrics.jsonl; None if it is not a JSON object with a number `step`."""
    if len(line) > MAX_LINE:
        return None
    row = parse_row(line)
    return row and {name: float(value) for name, value in row.items() if is_number(value) and len(name) <= MAX_NAME}


def read_last(path: Path, most: int) -> Row:
    """Return the newest value of every metric in the last `most` bytes of a metrics.jsonl."""
    last: Row = {}
    with suppress(OSError), open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(max(size - most, 0))
        for line in stream.read(most).split(b"\n"):
            last |= numbers_in(line) or {}  # the first line may be incomplete, and then is not JSON
    return last


def rounded(values: np.ndarray, digits: int = DIGITS) -> list[float | None]:
    """Return numbers for JSON, rounded to `digits` significant digits; None for NaN and infinities."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.tolist()]
