"""A coarse map of the whole flight, and the shortest path on it: leads through rooms and around long walls.

The map has 128 x 128 cells of 0.4 m, 51 m in all, around the middle between the start and the goal. It does not move and
forgets nothing. A cell is blocked once a LiDAR hit near the drone's height lies in it; unknown cells count as free. From
time to time the length of the shortest path to the goal is computed for all cells; beyond the map paths are straight.
"""

import warp as wp

from fledge.envs.kernel_random import TWO_PI
from fledge.tasks.navigation.planner.readings import Seen

CELLS = 128
CELL_M = 0.4
INV_CELL = 1.0 / CELL_M
BLOCKED = 20.0  # factor on lengths in blocked cells; a path through them is better than none
NEAR_Z_M = 0.4  # hits this far above or below the drone block a cell
UNKNOWN = 1.0e6


@wp.struct
class FarMap:
    """Coarse maps of N drones in the goal frame, with the goal at (0, 0)."""

    every: int  # decisions between two searches; 0: no map
    rounds: int  # largest number of sweeps, each forth and back
    blocked: wp.array2d(dtype=wp.uint8)  # [N, CELLS * CELLS]
    length: wp.array2d(dtype=wp.float32)  # [N, CELLS * CELLS] m to the goal
    corner: wp.array(dtype=wp.vec2)  # [N] m: lower corner of cell (0, 0)


@wp.func
def far_cell(f: FarMap, i: int, x: float, y: float) -> int:
    """Return the index of the cell at a point, or -1 if it is off the map or on its border."""
    corner = f.corner[i]
    r = int(wp.floor((x - corner[0]) * INV_CELL))
    c = int(wp.floor((y - corner[1]) * INV_CELL))
    if r < 1 or c < 1 or r >= CELLS - 1 or c >= CELLS - 1:
        return -1
    return r * CELLS + c


@wp.func
def begin_far(f: FarMap, i: int, pos: wp.vec3):
    """Clear the map of drone i and lay it around the middle between the drone and the goal."""
    half = 0.5 * float(CELLS) * CELL_M
    f.corner[i] = wp.vec2(0.5 * pos[0] - half, 0.5 * pos[1] - half)
    for n in range(CELLS * CELLS):
        f.blocked[i, n] = wp.uint8(0)


@wp.func
def block_hits(f: FarMap, i: int, seen: Seen, pos: wp.vec3, yaw: float):
    """Block the cells that the present scan hits near the drone's height."""
    elevations = seen.cosine.shape[0]
    for h in range(seen.azimuths):
        angle = yaw + TWO_PI * float(h) / float(seen.azimuths)
        for v in range(elevations):
            value = seen.lidar[i, h * elevations + v]
            d = seen.range_m - value
            if value > 0.0 and wp.abs(d * seen.sine[v]) < NEAR_Z_M:
                flat = d * seen.cosine[v]
                n = far_cell(f, i, pos[0] + flat * wp.cos(angle), pos[1] + flat * wp.sin(angle))
                if n >= 0:
                    f.blocked[i, n] = wp.uint8(1)


@wp.func
def sweep_far(f: FarMap, i: int, step: int) -> bool:
    """Sweep the map once, forth (`step` 1) or back (-1), and return whether a length changed."""
    changed = bool(False)
    first = wp.where(step < 0, CELLS - 2, 1)
    for n in range(CELLS - 2):
        at = (first + step * n) * CELLS + first
        for _q in range(CELLS - 2):
            slow = CELL_M * wp.where(f.blocked[i, at] > wp.uint8(0), BLOCKED, 1.0)
            back = at - step * CELLS
            straight = wp.min(f.length[i, back], f.length[i, at - step]) + slow
            diagonal = wp.min(f.length[i, back - step], f.length[i, back + step]) + 1.41421356 * slow
            found = wp.min(straight, diagonal)
            if found < f.length[i, at]:
                f.length[i, at] = found
                changed = True
            at = at + step
    return changed


@wp.func
def solve_far(f: FarMap, i: int):
    """Compute the lengths of drone i's shortest paths from all cells."""
    corner = f.corner[i]
    last = CELLS - 1
    for r in range(CELLS):
        x = corner[0] + (float(r) + 0.5) * CELL_M
        for c in range(CELLS):
            y = corner[1] + (float(c) + 0.5) * CELL_M
            away = wp.sqrt(x * x + y * y)
            known = r == 0 or c == 0 or r == last or c == last or away < CELL_M
            f.length[i, r * CELLS + c] = wp.where(known, away, UNKNOWN)
    for k in range(f.rounds * 2):
        if not sweep_far(f, i, 1 - 2 * (k % 2)) and k > 0:
            return


@wp.func
def update_far(f: FarMap, i: int, seen: Seen, pos: wp.vec3, yaw: float, age: int):
    """Take the present scan into drone i's map, and search again if it is time; `age` counts the flight's decisions."""
    if f.every == 0:
        return
    if age == 0:
        begin_far(f, i, pos)
    block_hits(f, i, seen, pos, yaw)
    if age % f.every == 0:
        solve_far(f, i)


@wp.func
def far_length(f: FarMap, i: int, x: float, y: float) -> float:
    """Return the length of the shortest path from a point to the goal, m; off the map, of a straight line."""
    away = wp.sqrt(x * x + y * y)
    if f.every == 0:
        return away
    n = far_cell(f, i, x, y)
    if n < 0:
        return away
    return wp.max(f.length[i, n], away)
