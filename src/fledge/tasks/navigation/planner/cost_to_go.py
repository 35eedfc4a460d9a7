"""Cost-to-go: the length of the shortest path to the goal from every point around the drone. It leads out of dead ends.

A grid of 64 x 64 points 0.2 m apart lies around the drone, at its height. It stores the length of the shortest path from
each point to the goal. Obstacles beyond the grid are unknown, so paths there are straight. Lengths are multiplied by
`slowness` near a remembered hit, and by much more inside a column. The grid is solved every few decisions, by sweeps back
and forth (a weighted chamfer distance).
"""

import warp as wp

from fledge.tasks.navigation.planner.local_map import LocalMap, bands_between, ring_at

POINTS = 64
SPACING_M = 0.2
INV_SPACING = 1.0 / SPACING_M
UNKNOWN = 1.0e6


@wp.struct
class CostToGo:
    """Cost-to-go grids of N drones, and their settings."""

    length: wp.array2d(dtype=wp.float32)  # [N, POINTS * POINTS] m to the goal
    slow: wp.array2d(dtype=wp.float32)  # [N, POINTS * POINTS] cost of a step to a neighbouring point, m
    corner: wp.array(dtype=wp.vec2)  # [N] m: point (0, 0), goal frame
    age: wp.array(dtype=wp.int32)  # [N] decisions since the episode began
    slowness: wp.array(dtype=wp.float32)  # [9] factor on lengths, by ring
    every: int  # decisions between two searches; 0: never, paths are straight
    rounds: int  # largest number of sweeps, each forth and back


@wp.func
def clear_grid(w: CostToGo, m: LocalMap, i: int, pos: wp.vec3, body: float):
    """Initialise the grid of drone i: straight-line lengths at its border and near the goal, unknown lengths elsewhere."""
    x0 = wp.floor(pos[0] * INV_SPACING) * SPACING_M - 0.5 * float(POINTS) * SPACING_M + 0.5 * SPACING_M
    y0 = wp.floor(pos[1] * INV_SPACING) * SPACING_M - 0.5 * float(POINTS) * SPACING_M + 0.5 * SPACING_M
    w.corner[i] = wp.vec2(x0, y0)
    bands = bands_between(pos[2] - body, pos[2] + body)
    last = POINTS - 1
    for r in range(POINTS):
        x = x0 + float(r) * SPACING_M
        for c in range(POINTS):
            y = y0 + float(c) * SPACING_M
            at = r * POINTS + c
            w.slow[i, at] = SPACING_M * w.slowness[ring_at(m, i, x, y, bands)]
            away = wp.sqrt(x * x + y * y)
            known = r == 0 or c == 0 or r == last or c == last or away < 2.0 * SPACING_M
            w.length[i, at] = wp.where(known, away, UNKNOWN)


@wp.func
def sweep_once(w: CostToGo, i: int, step: int) -> bool:
    """Sweep the grid once, forth (`step` 1) or back (-1), and return whether a length changed.

    Each point is updated from the neighbours that the sweep has already passed.
    """
    changed = bool(False)
    first = wp.where(step < 0, POINTS - 2, 1)
    for n in range(POINTS - 2):
        row = (first + step * n) * POINTS
        at = row + first
        # neighbours are carried along the row, so that each is read once
        behind = w.length[i, at - step * POINTS - step]
        beside = w.length[i, at - step * POINTS]
        last = w.length[i, at - step]
        for _q in range(POINTS - 2):
            ahead = w.length[i, at - step * POINTS + step]
            slow = w.slow[i, at]
            found = wp.min(wp.min(beside, last) + slow, wp.min(behind, ahead) + 1.41421356 * slow)
            last = w.length[i, at]
            if found < last:
                last = found
                w.length[i, at] = found
                changed = True
            behind = beside
            beside = ahead
            at = at + step
    return changed


@wp.func
def sweep(w: CostToGo, i: int):
    """Sweep the grid forth and back until no grid point changes, at most `rounds` times."""
    for k in range(w.rounds * 2):
        if not sweep_once(w, i, 1 - 2 * (k % 2)) and k > 0:
            return


@wp.func
def update_cost(w: CostToGo, m: LocalMap, i: int, pos: wp.vec3, body: float, fresh: bool):
    """Solve the grid of drone i again if the episode is new (`fresh`) or `every` decisions have passed since the last time."""
    if fresh:
        w.age[i] = 0
    if w.every > 0:
        if w.age[i] % w.every == 0:
            clear_grid(w, m, i, pos, body)
            sweep(w, i)
    w.age[i] = w.age[i] + 1


@wp.func
def cost_from(w: CostToGo, i: int, x: float, y: float) -> float:
    """Return the length of the shortest path from a point to the goal, m, interpolated in the grid; off the grid, the
    length of a straight line."""
    away = wp.sqrt(x * x + y * y)
    if w.every == 0 or away < 1.0:
        return away
    corner = w.corner[i]
    u = (x - corner[0]) * INV_SPACING
    v = (y - corner[1]) * INV_SPACING
    r = int(wp.floor(u))
    c = int(wp.floor(v))
    if r < 0 or c < 0 or r >= POINTS - 1 or c >= POINTS - 1:
        return away
    at = r * POINTS + c
    a = u - float(r)
    b = v - float(c)
    low = (1.0 - b) * w.length[i, at] + b * w.length[i, at + 1]
    high = (1.0 - b) * w.length[i, at + POINTS] + b * w.length[i, at + POINTS + 1]
    return (1.0 - a) * low + a * high
