"""Sample memory, handles, threads and disk of processes, and judge whether they grow.

A figure is judged by a straight line through the medians of equal blocks of time, after a warm-up. Blocks are long compared
with the time over which samples depend on each other, so the usual 95 % interval of the slope holds.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

WARM_UP = 0.25  # share of the time that is not judged: caches fill, the replay too
BLOCKS, STUDENT = 12, 2.228  # blocks of time, and the 97.5 % point of Student's t for BLOCKS - 2 degrees of freedom
MIN_MINUTES = 15.0  # a shorter test is not judged: caches still fill, and blocks are too short to be independent
LIMITS = {"memory_mb": 12.0, "handles": 2.0, "threads": 2.0, "disk_mb": 12.0}  # growth per hour that counts as flat
UNITS = {"memory_mb": "MB", "handles": "handles", "threads": "threads", "disk_mb": "MB of disk"}
LOGS = re.compile(r"metrics\.(csv|jsonl)(\.new)?")  # grow with the length of a run
CHECKPOINT = re.compile(r"checkpoint_\d+\.fledge")
FILLER = "filler"  # fills the disk of the starved training
WHOLE = 3  # newest checkpoints of a run, which are complete; weights of all older ones are kept
RESTARTED = ("killed", "full disk")  # processes whose names begin so are restarted: the peak of each one counts


def look_at(process: int) -> dict[str, float] | None:
    """Return the memory, open files and threads of a process; None if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        found = {name: re.search(rf"{name}:\s+(\d+)", status) for name in ("VmRSS", "Threads")}
        handles = len(os.listdir(f"/proc/{process}/fd"))
    except OSError:
        return None
    memory, threads = found["VmRSS"], found["Threads"]
    if memory is None or threads is None:  # it is ending
        return None
    return {"memory_mb": int(memory[1]) / 1000, "handles": handles, "threads": int(threads[1])}


def disk_use(folder: Path) -> tuple[float, float]:
    """Return the megabytes of all files in a folder, and of those that must not add up.

    The metrics of a run and the weights of its older checkpoints are kept for good, so they only count as part of the whole.
    """
    total = bounded = 0
    for place, _, names in os.walk(folder):
        checkpoints = sorted(name for name in names if CHECKPOINT.fullmatch(name))
        kept = {*checkpoints[:-WHOLE], *filter(LOGS.fullmatch, names)}
        for name in names:
            if name == FILLER:
                continue
            try:
                size = os.stat(os.path.join(place, name), follow_symlinks=False).st_size
            except OSError:  # just removed
                continue
            total += size
            bounded += 0 if name in kept else size
    return total / 1e6, bounded / 1e6


class Samples:
    """Samples of all processes, and of the disk.

    Attributes:
        rows: For each name, its figures as lists of equal length; "minute" and "process" are among them.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, list[float]]] = {}

    def _append(self, name: str, figures: dict[str, float]) -> None:
        row = self.rows.setdefault(name, {key: [] for key in figures})
        for key, value in figures.items():
            row[key].append(round(value, 3))

    def add(self, minute: float, name: str, process: int) -> None:
        """Sample a process, unless it has ended."""
        if (found := look_at(process)) is not None:
            self._append(name, {"minute": minute, "process": process, **found})

    def add_disk(self, minute: float, folder: Path) -> None:
        total, bounded = disk_use(folder)
        self._append("files", {"minute": minute, "total_mb": total, "disk_mb": bounded})

    def last(self, name: str, figure: str) -> float:
        """Return the newest value of a figure; NaN if there is none."""
        return self.rows.get(name, {}).get(figure, [float("nan")])[-1]

    def verdicts(self, minutes: float) -> list[dict[str, Any]]:
        """Return a verdict on every figure of every process, the browser server's first."""
        found = []
        for name in sorted(self.rows, key=lambda name: (name != "browser server", name == "files", name)):
            row = peaks(self.rows[name]) if name.startswith(RESTARTED) else self.rows[name]
            for figure in LIMITS:
                if figure in row:
                    verdict = judge(row["minute"], row[figure], minutes, LIMITS[figure])
                    found.append({"process": name, "figure": figure, **verdict})
        return found


def peaks(row: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the highest figures of each process in a row, at the mean of its times."""
    order = np.array(row["process"])
    groups = [order == process for process in dict.fromkeys(row["process"])]
    return {
        name: [float((np.mean if name == "minute" else np.max)(np.array(values)[group])) for group in groups]
        for name, values in row.items()
    }


def judge(minutes: list[float], values: list[float], length: float, limit: float) -> dict[str, Any]:
    """Judge whether a figure grows by more than `limit` per hour, in a test of `length` minutes.

    Returns:
        The median, the change per hour after the warm-up with its 95 % interval (None if there are too few samples), and the
        verdict: flat, grows, unclear (the interval is too wide) or too short.
    """
    when, what = np.array(minutes), np.array(values)
    edges = np.linspace(WARM_UP * length, length, BLOCKS + 1)
    late = what[when >= edges[0]]
    result: dict[str, Any] = {"median": round(float(np.median(late if len(late) else what)), 2)}
    blocks = [what[(when >= low) & (when < high)] for low, high in itertools.pairwise(edges)]
    if length < MIN_MINUTES or not all(map(len, blocks)):
        return {**result, "per_hour": None, "low": None, "high": None, "verdict": "too short"}
    x, y = (edges[:-1] + edges[1:]) / 2 / 60, np.array([np.median(block) for block in blocks])
    slope, offset = np.polyfit(x, y, 1)
    rest = y - (slope * x + offset)
    spread = STUDENT * np.sqrt((rest @ rest) / (BLOCKS - 2) / ((x - x.mean()) @ (x - x.mean())))
    low, high = slope - spread, slope + spread
    half = BLOCKS // 2
    goes_on = np.polyfit(x[half:], y[half:], 1)[0] > 0  # a cache that has filled is not a leak
    verdict = "flat" if high <= limit else "grows" if low > 0 and slope > limit and goes_on else "unclear"
    figures = {"per_hour": slope, "low": low, "high": high}
    return {**result, **{name: round(float(value), 2) for name, value in figures.items()}, "verdict": verdict}
