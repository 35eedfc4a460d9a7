"""A picture of a world: from above coloured by height with some routes, a plan at flight height, and a section."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fledge.tasks.navigation.worlds.boxes import ceiling_of
from fledge.tasks.navigation.worlds.check import WorldReport
from fledge.tasks.navigation.worlds.free_space import FreeSpace
from fledge.tasks.navigation.worlds.routes import Routes
from fledge.tasks.navigation.worlds.voxels import World

SHOWN = 12  # routes
FLIGHT_M = 1.2  # height of the plan above the ground
FREE, REACHABLE, SOLID = "#ffffff", "#dff0e4", "#3b4252"
ROUTE_COLOURS = ("#d1495b", "#e08e1b", "#6b4fa0", "#1b7e9e", "#b03a8f", "#4a6fa5")


def world_figure(world: World, report: WorldReport, routes: Routes | None, space: FreeSpace | None) -> Any:
    """Return a matplotlib figure of a world; `routes` and `space` are those of `examine`."""
    (x0, y0, z0), (x1, y1, z1) = world.bounds
    aspect = (y1 - y0) / (x1 - x0)
    width = 15.0
    tall = min(max(width * 0.44 * aspect, 3.5), 10.0) + 1.6
    figure = Figure(figsize=(width, tall), dpi=100, layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.15, 1.0), height_ratios=(1.0, 0.42))
    above, plan, section = (figure.add_subplot(place) for place in (grid[:, 0], grid[0, 1], grid[1, 1]))
    chosen = pick(routes)
    drawn = _draw_above(above, world, (x0, x1, y0, y1))
    figure.colorbar(drawn, ax=above, label="height of the surface, m", shrink=0.7, pad=0.02)
    layer = flight_layer(world)
    level = z0 + (layer + 0.5) * world.cell_m
    _draw_kinds(plan, _kinds(world, space, np.s_[:, :, layer]), (x0, x1, y0, y1), f"plan at a height of {level:.1f} m")
    row = section_row(world, space)
    middle = y0 + (row + 0.5) * world.cell_m
    _draw_kinds(section, _kinds(world, space, np.s_[:, row]), (x0, x1, z0, z1), f"section at y = {middle:.1f} m")
    plan.axhline(middle, color="#888", linewidth=0.7, linestyle=":")
    for number, route in enumerate(chosen):
        assert routes is not None
        colour, path = ROUTE_COLOURS[number % len(ROUTE_COLOURS)], routes.paths[route]
        for axes in (above, plan):
            axes.plot(path[:, 0], path[:, 1], color="white", linewidth=3.0, alpha=0.7, solid_capstyle="round")
            axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=1.4)
            axes.plot(*path[0, :2], "o", color=colour, markersize=4, markeredgecolor="white", markeredgewidth=0.6)
            axes.plot(*path[-1, :2], "*", color=colour, markersize=9, markeredgecolor="white", markeredgewidth=0.6)
    for axes, labels in ((above, ("x, m", "y, m")), (plan, ("x, m", "y, m")), (section, ("x, m", "z, m"))):
        axes.set(xlabel=labels[0], ylabel=labels[1], aspect="equal")
    handles = [_patch(SOLID, "solid"), _patch(FREE, "free, but too narrow or not connected")]
    if space is not None:
        handles.insert(1, _patch(REACHABLE, f"reachable with {space.clearance_m:g} m clearance"))
    if chosen:
        handles += [
            Line2D([], [], color="#333", marker=m, linestyle="", label=t) for m, t in (("o", "start"), ("*", "goal"))
        ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    size = " x ".join(f"{side:.1f}" for side in report.size_m)
    title = f"{world.name}: {size} m, {report.solid_share:.1%} solid"
    title += f", {report.routes} routes of {report.route_mean_m:.0f} m on average" if report.routes else ", no routes"
    figure.suptitle(title, fontsize=12)
    return figure


def _patch(colour: str, label: str) -> Line2D:
    return Line2D([], [], marker="s", color=colour, markeredgecolor="#999", linestyle="", markersize=9, label=label)


def pick(routes: Routes | None) -> list[int]:
    """Return the numbers of the routes to draw: to different goals, and of different lengths."""
    if routes is None:
        return []
    order = np.argsort(-routes.length, kind="stable")
    chosen: dict[bytes, int] = {}
    for route in order[:: max(1, len(order) // (4 * SHOWN))].tolist():
        chosen.setdefault(routes.goal[route].tobytes(), route)
    return list(chosen.values())[:SHOWN]


def _draw_above(axes: Any, world: World, extent: tuple[float, ...]) -> Any:
    """Draw the height of the highest solid voxel below the ceiling, shaded as if lit from the north-west."""
    below = world.solid[:, :, : ceiling_of(world.solid)]
    levels = np.arange(1, below.shape[2] + 1)
    top = np.where(below, levels, 0).max(axis=2) * world.cell_m
    height = np.where(top > 0, world.origin[2] + top, np.nan)
    drawn = axes.imshow(height.T, origin="lower", extent=extent, cmap="viridis", interpolation="nearest")
    slope = np.diff(top, axis=0, append=top[-1:]) - np.diff(top, axis=1, append=top[:, -1:])
    shade = np.clip(-slope / 1.5, 0.0, 0.5)  # darker where the surface falls away from the light
    axes.imshow(
        np.dstack([np.zeros((*shade.T.shape, 3)), shade.T]), origin="lower", extent=extent, interpolation="nearest"
    )
    axes.set_title(
        "from above, without the ceiling" if below.shape[2] < world.solid.shape[2] else "from above", fontsize=10
    )
    axes.set_facecolor("#f4f4f4")
    return drawn


def flight_layer(world: World) -> int:
    """Return the layer that is FLIGHT_M above the usual height of the ground."""
    solid = world.solid
    has = solid.any(axis=2)
    ground = float(np.median(solid.argmax(axis=2)[has])) + 1.0 if has.any() else 0.0
    return int(min(ground + FLIGHT_M / world.cell_m, solid.shape[2] - 1))


def section_row(world: World, space: FreeSpace | None) -> int:
    """Return the row along y, in the middle half, through which most of the reachable space passes and something is solid."""
    rows = world.solid.shape[1]
    if space is None:
        return rows // 2
    low, high = rows // 4, max(rows // 4 + 1, 3 * rows // 4)
    return low + int(space.inside[:, low:high].sum(axis=(0, 2)).argmax())


def _kinds(world: World, space: FreeSpace | None, part: Any) -> np.ndarray:
    kinds = np.where(world.solid[part], 2, 0)
    return kinds if space is None else np.where(space.inside[part], 1, kinds)


def _draw_kinds(axes: Any, kinds: np.ndarray, extent: tuple[float, ...], title: str) -> None:
    colours = ListedColormap([FREE, REACHABLE, SOLID])
    axes.imshow(kinds.T, origin="lower", extent=extent, cmap=colours, vmin=0, vmax=2, interpolation="nearest")
    axes.set_title(title, fontsize=10)
