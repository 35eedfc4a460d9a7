"""Cost-to-go: the length of the shortest path to the goal from every place around the drone, so that it leaves dead ends.

A grid of 64 x 64 places 0.2 m apart around the drone, at its height. A place holds the length of the shortest path from
there to the goal; beyond the grid, which is unknown, paths are straight. Lengths are multiplied by `slowness` near a
remembered hit, by much more inside a column. Solved every few decisions by sweeps back and forth over the grid (a weighted
chamfer distance).
"""

import warp as wp

from fledge.tasks.navigation.planner.local_map import LocalMap, bands_between, ring_at

PLACES = 64
PLACE_M = 0.2
INV_PLACE = 1.0 / PLACE_M
UNKNOWN = 1.0e6


@wp.struct
class CostToGo:
    """Cost-to-go grids of N drones, and their settings."""

    length: wp.array2d(dtype=wp.float32)  # [N, PLACES * PLACES] m to the goal
    slow: wp.array2d(dtype=wp.float32)  # [N, PLACES * PLACES] cost of crossing a place, m
    corner: wp.array(dtype=wp.vec2)  # [N] m: place (0, 0), goal frame
    age: wp.array(dtype=wp.int32)  # [N] decisions since the episode began
    slowness: wp.array(dtype=wp.float32)  # [9] factor on lengths, by ring
    every: int  # decisions between two searches; 0: never, paths are straight
    rounds: int  # largest number of sweeps, each forth and back


@wp.func
def clear_grid(w: CostToGo, m: LocalMap, i: int, pos: wp.vec3, body: float):
    """Initialise the grid of drone i: straight-line lengths at its border and near the goal, unknown lengths elsewhere."""
    x0 = wp.floor(pos[0] * INV_PLACE) * PLACE_M - 0.5 * float(PLACES) * PLACE_M + 0.5 * PLACE_M
    y0 = wp.floor(pos[1] * INV_PLACE) * PLACE_M - 0.5 * float(PLACES) * PLACE_M + 0.5 * PLACE_M
    w.corner[i] = wp.vec2(x0, y0)
    bands = bands_between(pos[2] - body, pos[2] + body)
    last = PLACES - 1
    for r in range(PLACES):
        x = x0 + float(r) * PLACE_M
        for c in range(PLACES):
            y = y0 + float(c) * PLACE_M
            at = r * PLACES + c
            w.slow[i, at] = PLACE_M * w.slowness[ring_at(m, i, x, y, bands)]
            away = wp.sqrt(x * x + y * y)
            known = r == 0 or c == 0 or r == last or c == last or away < 2.0 * PLACE_M
            w.length[i, at] = wp.where(known, away, UNKNOWN)


@wp.func
def sweep_once(w: CostToGo, i: int, step: int) -> bool:
    """Sweep the grid once (`step` 1 forth, -1 back): update places from those already passed; return whether any changed."""
    changed = bool(False)
    first = wp.where(step < 0, PLACES - 2, 1)
    for n in range(PLACES - 2):
        row = (first + step * n) * PLACES
        at = row + first
        # neighbours are carried along the row, so that each is read once
        behind = w.length[i, at - step * PLACES - step]
        beside = w.length[i, at - step * PLACES]
        last = w.length[i, at - step]
        for _q in range(PLACES - 2):
            ahead = w.length[i, at - step * PLACES + step]
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
    """Sweep the grid forth and back until no place changes, at most `rounds` times."""
    for k in range(w.rounds * 2):
        if not sweep_once(w, i, 1 - 2 * (k % 2)) and k > 0:
            return


@wp.func
def update_cost(w: CostToGo, m: LocalMap, i: int, pos: wp.vec3, body: float, fresh: bool):
    """Solve the grid of drone i again if `every` decisions have passed since the last time, or the episode is `fresh`."""
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
    u = (x - corner[0]) * INV_PLACE
    v = (y - corner[1]) * INV_PLACE
    r = int(wp.floor(u))
    c = int(wp.floor(v))
    if r < 0 or c < 0 or r >= PLACES - 1 or c >= PLACES - 1:
        return away
    at = r * PLACES + c
    a = u - float(r)
    b = v - float(c)
    low = (1.0 - b) * w.length[i, at] + b * w.length[i, at + 1]
    high = (1.0 - b) * w.length[i, at + PLACES] + b * w.length[i, at + PLACES + 1]
    return (1.0 - a) * low + a * high
