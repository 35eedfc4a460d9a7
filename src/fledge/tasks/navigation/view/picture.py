"""Pictures of flights: paths over the map, seen from above."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle

from fledge.tasks.navigation.physics.terrain import CELLS, HALF_M, HEIGHT_STEP, SOLID
from fledge.tasks.navigation.view.world_scene import scene_world
from fledge.tasks.view.trajectory import Trajectory

BOX_CELL_M = 0.1
COLOURS = {
    "success": "#1b9e5a",
    "collision_static": "#d1495b",
    "collision_moving": "#e08e1b",
    "out_of_bounds": "#6b4fa0",
    "timeout": "#4a6fa5",
}


def heights_of(tracks: Sequence[Trajectory]) -> tuple[np.ndarray, tuple[float, float, float, float]]:
    """Return the heights of the map's solid cells [X, Y], m, NaN where it is free, and the map's extent in x and y, m.

    Of a world of voxels only what lies at the heights of the flights counts, as if its ceiling were taken off.
    """
    scene = tracks[0].scene
    world = scene_world(scene)
    if "boxes" in scene:
        (x0, y0, _), (x1, y1, _) = scene["bounds"]
        drawn = np.full((round((x1 - x0) / BOX_CELL_M), round((y1 - y0) / BOX_CELL_M)), np.nan)
        for x, y, z, *size in sorted(scene["boxes"].tolist(), key=lambda box: box[2] + box[5] / 2):
            a, b = (round((x + side * size[0] / 2 - x0) / BOX_CELL_M) for side in (-1, 1))
            c, d = (round((y + side * size[1] / 2 - y0) / BOX_CELL_M) for side in (-1, 1))
            drawn[max(a, 0) : b, max(c, 0) : d] = z + size[2] / 2
        return drawn, (x0, x1, y0, y1)
    if world is None:
        cells = tracks[0].scene["cells"].reshape(CELLS, CELLS)
        height = np.where(cells >= SOLID, (cells.astype(np.float32) - SOLID) * HEIGHT_STEP, np.nan)
        return height, (-HALF_M, HALF_M, -HALF_M, HALF_M)
    flown = np.concatenate([track.frames["pos"][:, 2] for track in tracks])
    low, high = world.bounds
    layers = np.clip((np.quantile(flown, [0.25, 0.75]) - low[2]) // world.cell_m, 0, world.solid.shape[2] - 1).astype(
        int
    )
    cut = world.solid[:, :, : layers[1] + 1]
    top = low[2] + (cut.shape[2] - np.argmax(cut[:, :, ::-1], axis=2)) * world.cell_m
    shown = cut[:, :, layers[0] :].any(axis=2)
    return np.where(shown, top, np.nan), (low[0], high[0], low[1], high[1])


def draw_flights(axes: Any, tracks: Sequence[Trajectory], title: str) -> None:
    """Draw flights on one map into matplotlib axes, with limits that contain every path."""
    height, extent = heights_of(tracks)
    axes.imshow(height.T, origin="lower", extent=extent, cmap="Greys", vmin=-1.0, vmax=7.0, interpolation="nearest")
    for track in tracks:
        path, goal, colour = track.frames["pos"], track.scene["goal"], COLOURS[track.outcome]
        axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=1.1, alpha=0.9)
        axes.plot(path[0, 0], path[0, 1], "o", color=colour, markersize=3)
        axes.plot(goal[0], goal[1], "*", color=colour, markersize=6)
        if track.outcome != "success":
            axes.plot(path[-1, 0], path[-1, 1], "x", color=colour, markersize=6, markeredgewidth=1.8)
        if track.outcome == "collision_moving" and np.isfinite(track.frames["mover"][-1]).all():
            x, y, _, width = track.frames["mover"][-1]
            axes.add_patch(Circle((x, y), width / 2, facecolor=colour, edgecolor="none", alpha=0.45))
    low = np.min([track.frames["pos"][:, :2].min(axis=0) for track in tracks], axis=0) - 0.5
    high = np.max([track.frames["pos"][:, :2].max(axis=0) for track in tracks], axis=0) + 0.5
    if np.isnan(height).all():  # nothing but flights to show
        extent = (low[0], high[0], low[1], high[1])
    axes.set_xlim(min(extent[0], low[0]), max(extent[1], high[0]))
    axes.set_ylim(min(extent[2], low[1]), max(extent[3], high[1]))
    axes.set_aspect("equal")
    axes.set_xlabel("x, m")
    axes.set_ylabel("y, m")
    axes.set_title(title, fontsize=10)


def legend_entries(tracks: Sequence[Trajectory]) -> list[Line2D]:
    """Return legend entries for the colours and markers that are drawn."""
    met = [name for name in COLOURS if any(track.outcome == name for track in tracks)]
    entries = [Line2D([], [], color=COLOURS[name], label=name.replace("_", " ")) for name in met]
    signs = [("o", "start", 4), ("*", "goal", 8)]
    if any(name != "success" for name in met):
        signs.append(("x", "end of a failed flight", 6))
    entries += [Line2D([], [], color="#333", marker=m, linestyle="", markersize=k, label=t) for m, t, k in signs]
    if "collision_moving" in met:
        colour = COLOURS["collision_moving"]
        spot = Line2D([], [], color=colour, marker="o", linestyle="", markersize=9, label="the mover it hit")
        spot.set(alpha=0.45, markeredgewidth=0)
        entries.append(spot)
    return entries


def flights_figure(tracks: Sequence[Trajectory], title: str = "", maps: int = 2) -> Any:
    """Return a matplotlib figure of the flights on the `maps` maps that have the most flights."""
    counts = Counter(sorted(track.scene["map"] for track in tracks))
    chosen = [number for number, _ in counts.most_common(maps)]
    figure = Figure(figsize=(6.4 * len(chosen), 7.0), dpi=100, layout="constrained")
    shown = []
    for k, number in enumerate(chosen):
        axes = figure.add_subplot(1, len(chosen), k + 1)
        over = [track for track in tracks if track.scene["map"] == number]
        draw_flights(axes, over, f"map {number}: {counts[number]} flights")
        shown += over
    tallest = max(np.ptp(axes.get_ylim()) / np.ptp(axes.get_xlim()) for axes in figure.axes)
    figure.set_figheight(1.4 + 5.6 * min(max(tallest, 0.25), 2.0))  # no empty space above and below wide worlds
    figure.legend(handles=legend_entries(shown), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    if title:
        figure.suptitle(title, fontsize=12)
    return figure
