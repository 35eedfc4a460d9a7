"""Pictures of flights: paths over the map, seen from above."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fledge.sim.terrain import CELLS, HALF_M, HEIGHT_STEP, SOLID
from fledge.tasks.base import Track

COLOURS = {
    "success": "#1b9e5a",
    "collision_static": "#d1495b",
    "collision_moving": "#e08e1b",
    "out_of_bounds": "#6b4fa0",
    "timeout": "#4a6fa5",
}


def draw_flights(axes: Any, tracks: Sequence[Track], title: str) -> None:
    """Draw flights over one map into matplotlib axes."""
    cells = tracks[0].scene["cells"].reshape(CELLS, CELLS)
    height = np.where(cells >= SOLID, (cells.astype(np.float32) - SOLID) * HEIGHT_STEP, np.nan)
    extent = (-HALF_M, HALF_M, -HALF_M, HALF_M)
    axes.imshow(height.T, origin="lower", extent=extent, cmap="Greys", vmin=-1.0, vmax=7.0, interpolation="nearest")
    seen: set[str] = set()
    for track in tracks:
        path, goal, outcome = track.frames["pos"], track.scene["goal"], track.outcome
        colour = COLOURS[outcome]
        label = outcome.replace("_", " ") if outcome not in seen else None
        seen.add(outcome)
        axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=1.1, alpha=0.9, label=label)
        axes.plot(path[0, 0], path[0, 1], "o", color=colour, markersize=3)
        axes.plot(goal[0], goal[1], "*", color=colour, markersize=6)
        if outcome not in ("success", "timeout"):
            axes.plot(path[-1, 0], path[-1, 1], "x", color=colour, markersize=6, markeredgewidth=1.8)
    axes.set_xlim(-HALF_M, HALF_M)
    axes.set_ylim(-HALF_M, HALF_M)
    axes.set_aspect("equal")
    axes.set_xlabel("x, m")
    axes.set_ylabel("y, m")
    axes.set_title(title, fontsize=10)
    if seen:
        axes.legend(loc="upper right", fontsize=7, framealpha=0.9)


def flights_figure(tracks: Sequence[Track], title: str = "", maps: int = 2) -> Any:
    """A matplotlib figure of the flights over the `maps` maps that most of them crossed."""
    from matplotlib.figure import Figure

    counts = Counter(sorted(track.scene["map"] for track in tracks))
    chosen = [number for number, _ in counts.most_common(maps)]
    figure = Figure(figsize=(6.4 * len(chosen), 6.4), dpi=100, layout="constrained")
    for k, number in enumerate(chosen):
        axes = figure.add_subplot(1, len(chosen), k + 1)
        over = [track for track in tracks if track.scene["map"] == number]
        draw_flights(axes, over, f"map {number}: {counts[number]} flights")
    if title:
        figure.suptitle(title, fontsize=12)
    return figure
