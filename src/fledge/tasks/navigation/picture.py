"""Pictures of flights: paths over the map, seen from above."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fledge.evaluate.episodes import Flights
from fledge.sim.terrain import CELLS, HALF_M, HEIGHT_STEP, SOLID
from fledge.tasks.navigation import Outcome

COLOURS = {
    Outcome.SUCCESS: "#1b9e5a",
    Outcome.COLLISION_STATIC: "#d1495b",
    Outcome.COLLISION_MOVING: "#e08e1b",
    Outcome.OUT_OF_BOUNDS: "#6b4fa0",
    Outcome.TIMEOUT: "#4a6fa5",
}


def draw_flights(axes: Any, flights: Flights, slot: int, title: str) -> None:
    """Draw the flights over one map into matplotlib axes.

    Args:
        slot: Which map; flights over others are left out.
    """
    cells = flights.grids[slot].reshape(CELLS, CELLS)
    height = np.where(cells >= SOLID, (cells.astype(np.float32) - SOLID) * HEIGHT_STEP, np.nan)
    extent = (-HALF_M, HALF_M, -HALF_M, HALF_M)
    axes.imshow(height.T, origin="lower", extent=extent, cmap="Greys", vmin=-1.0, vmax=7.0, interpolation="nearest")
    seen: set[int] = set()
    for path, outcome, where, goal in zip(flights.paths, flights.outcomes, flights.slots, flights.goals, strict=True):
        if where != slot:
            continue
        colour = COLOURS[Outcome(outcome)]
        label = Outcome(outcome).name.lower().replace("_", " ") if outcome not in seen else None
        seen.add(outcome)
        axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=1.1, alpha=0.9, label=label)
        axes.plot(path[0, 0], path[0, 1], "o", color=colour, markersize=3)
        axes.plot(goal[0], goal[1], "*", color=colour, markersize=6)
        if outcome not in (Outcome.SUCCESS, Outcome.TIMEOUT):
            axes.plot(path[-1, 0], path[-1, 1], "x", color=colour, markersize=6, markeredgewidth=1.8)
    axes.set_xlim(-HALF_M, HALF_M)
    axes.set_ylim(-HALF_M, HALF_M)
    axes.set_aspect("equal")
    axes.set_xlabel("x, m")
    axes.set_ylabel("y, m")
    axes.set_title(title, fontsize=10)
    if seen:
        axes.legend(loc="upper right", fontsize=7, framealpha=0.9)


def flights_figure(flights: Flights, maps: int = 2) -> Any:
    """A matplotlib figure of the flights over the `maps` maps that most of them crossed."""
    from matplotlib.figure import Figure

    slots, counts = np.unique(np.asarray(flights.slots), return_counts=True)
    chosen = slots[np.argsort(-counts, kind="stable")][:maps]
    figure = Figure(figsize=(6.4 * len(chosen), 6.4), dpi=100, layout="constrained")
    for k, slot in enumerate(chosen):
        axes = figure.add_subplot(1, len(chosen), k + 1)
        draw_flights(axes, flights, int(slot), f"map {slot}: {counts[slots == slot][0]} flights")
    return figure


def save_flights(path: Path, flights: Flights, title: str) -> None:
    """Write a PNG of the flights."""
    figure = flights_figure(flights)
    figure.suptitle(title, fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
