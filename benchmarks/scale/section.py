"""A section of the scale benchmark: its sizes, figures and checks, and the bend of a cost per item.

A section measures one size at a time, after it has verified the result. Costs are per item (a drone's physics step, a
transition, a MB, a run), so a flat curve means that the whole grows in proportion to the size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

SLACK = 1.25  # a cost within this factor of the best counts as flat
GB = 1e9
CPU = "_cpu"  # ending of the key of a cost in CPU time, beside the same by the clock


@dataclass(frozen=True)
class Figure:
    """A figure of each size: a column of the table, and a curve of the picture if it has a panel."""

    key: str
    label: str
    unit: str
    panel: Literal["time", "space"] | None = "time"
    cpu: bool = False
    """True if rows also have the CPU time, under `key + "_cpu"`."""


@dataclass(frozen=True)
class Need:
    """Free memory and disk space that a size needs, in bytes."""

    memory: float = 0.0
    disk: float = 0.0

    def lacking(self, memory: float, disk: float) -> str:
        """Return why a size does not fit into the free `memory` and `disk`; "" if it fits."""
        for what, needed, free in (("memory", self.memory, memory), ("disk", self.disk, disk)):
            if needed > free:
                return f"needs {needed / GB:.1f} GB of {what}, but {free / GB:.1f} GB are free"
        return ""


class Section(ABC):
    """One subject, measured at growing sizes."""

    name: str
    title: str
    items: str
    """The things that are counted, for tables and axes: "drones", "MB of state"."""
    per: str
    """The item of the costs: "drone and physics step"."""
    sizes: Sequence[int]
    quick_sizes: Sequence[int]
    verified: str
    """The check at each size before it is timed."""
    figures: Sequence[Figure]

    @abstractmethod
    def need(self, size: int) -> Need:
        """Return the memory and disk space that this size needs."""

    @abstractmethod
    def measure(self, size: int, seconds: float, folder: Path) -> dict[str, float]:
        """Verify and time one size; return its figures by key.

        Args:
            seconds: Time to spend on each timing.
            folder: Folder for files, which are deleted afterwards.

        Raises:
            FledgeError: if the result is wrong; nothing is timed then.
        """

    def describe(self) -> dict[str, Any]:
        """Return the names and figures of this section; JSON-able."""
        told = {name: getattr(self, name) for name in ("title", "items", "per", "verified")}
        return {**told, "figures": [asdict(figure) for figure in self.figures]}


def costs_of(figures: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the key and the label of the costs whose bends count: in CPU time if there is one, else by the clock."""
    drawn = [figure for figure in figures if figure["panel"]]
    return {f["key"] + CPU if f["cpu"] else f["key"]: f["label"] + (", CPU time" if f["cpu"] else "") for f in drawn}


def find_bend(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, float] | None:
    """Return where the cost `key` per item is flat; None if fewer than two rows have it.

    `to` is the bend: the largest size whose cost is within SLACK of the best; `start` is the smallest such size, and
    `at_largest` is the cost at the largest size relative to the best.
    """
    costs = [(row["size"], row[key]) for row in rows if row.get(key, 0.0) > 0.0]
    if len(costs) < 2:
        return None
    best = min(cost for _, cost in costs)
    flat = [size for size, cost in costs if cost <= SLACK * best]
    last = max(costs)
    return {"best": best, "start": min(flat), "to": max(flat), "largest": last[0], "at_largest": last[1] / best}
