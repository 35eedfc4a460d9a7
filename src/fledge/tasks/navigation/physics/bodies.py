"""Collisions of a drone's body, exact and swept over each physics step.

The body is an upright cylinder or a sphere around the drone's centre; obstacles are upright boxes and cylinders. The gap
between body and obstacle is a convex function of the drone's position relative to the obstacle, and it changes by at most
1 m per metre of motion. Within a physics step that relative position moves on a straight line. So a gap wider than the line
is long excludes a contact, and otherwise a ternary search finds the smallest gap on the line.
"""

import warp as wp

from fledge.tasks.navigation.physics.crowd import Crowd
from fledge.tasks.navigation.physics.shapes import WIDEST_M, height_of, is_standing, width_of
from fledge.tasks.navigation.physics.structs import SPHERE, Params
from fledge.tasks.navigation.physics.terrain import (
    CELL_M,
    CELLS,
    HALF_M,
    HEIGHT_STEP,
    INV_CELL,
    SOLID,
    cell_at,
    free_distance,
)

CORNER_M = 0.75 * WIDEST_M  # farther than any point of a mover is from its middle, seen from above
MOVER_STEP_M = 0.6  # farther than any moving obstacle moves in a physics step (at most 5 m/s for 0.1 s)
SEARCHES = 24  # a third of the line is dropped each time: 1e-4 of its length is left


@wp.func
def body_gap(p: Params, is_round: bool, half: wp.vec3, away: wp.vec3) -> float:
    """Return the gap between the drone's body and an obstacle, m; 0 or less if they touch.

    `half` has half the obstacle's sizes along x, y, z (its radius twice if `is_round`); `away` is its centre minus the
    drone's. For a cylindrical body it is the larger of the horizontal and the vertical gap.
    """
    flat = float(0.0)
    if is_round:
        flat = wp.max(wp.sqrt(away[0] * away[0] + away[1] * away[1]) - half[0], 0.0)
    else:
        x = wp.max(wp.abs(away[0]) - half[0], 0.0)
        y = wp.max(wp.abs(away[1]) - half[1], 0.0)
        flat = wp.sqrt(x * x + y * y)
    up = wp.abs(away[2]) - half[2]
    if p.collision == SPHERE:
        up = wp.max(up, 0.0)
        return wp.sqrt(flat * flat + up * up) - p.collision_radius_m
    return wp.max(flat - p.collision_radius_m, up - 0.5 * p.body_height_m)


@wp.func
def touches(p: Params, is_round: bool, half: wp.vec3, before: wp.vec3, after: wp.vec3) -> bool:
    """Return whether the body touches an obstacle while `away`, as in `body_gap`, moves on a line from `before` to `after`."""
    gap = body_gap(p, is_round, half, after)
    move = after - before
    length = wp.length(move)
    if gap <= 0.0:
        return True
    low = float(0.0)
    high = float(1.0)
    for _k in range(SEARCHES):
        if gap > (high - low) * length:
            return False
        third = (high - low) / 3.0
        left = body_gap(p, is_round, half, before + (low + third) * move)
        right = body_gap(p, is_round, half, before + (high - third) * move)
        gap = wp.min(left, right)
        if gap <= 0.0:
            return True
        if left < right:
            high = high - third
        else:
            low = low + third
    return False


@wp.func
def touches_columns(p: Params, grid: wp.array2d(dtype=wp.uint8), slot: int, was: wp.vec3, pos: wp.vec3) -> bool:
    """Return whether the body touches a column of a map on its way from `was` to `pos`, m, world.

    Every solid cell is a box. The distance field of the map excludes most contacts without a look at the cells.
    """
    cell = cell_at(pos[0], pos[1])
    if cell < 0:
        return False
    value = int(grid[slot, cell])
    radius = p.collision_radius_m
    if value < SOLID and free_distance(value) > radius + wp.length(pos - was):
        return False
    x0 = wp.max(int(wp.floor((wp.min(was[0], pos[0]) - radius + HALF_M) * INV_CELL)), 0)
    y0 = wp.max(int(wp.floor((wp.min(was[1], pos[1]) - radius + HALF_M) * INV_CELL)), 0)
    x1 = wp.min(int(wp.floor((wp.max(was[0], pos[0]) + radius + HALF_M) * INV_CELL)), CELLS - 1)
    y1 = wp.min(int(wp.floor((wp.max(was[1], pos[1]) + radius + HALF_M) * INV_CELL)), CELLS - 1)
    for ix in range(x0, x1 + 1):
        for iy in range(y0, y1 + 1):
            value = int(grid[slot, ix * CELLS + iy])
            if value >= SOLID:
                top = 0.5 * float(value - SOLID) * HEIGHT_STEP
                centre = wp.vec3((float(ix) + 0.5) * CELL_M - HALF_M, (float(iy) + 0.5) * CELL_M - HALF_M, top)
                half = wp.vec3(0.5 * CELL_M, 0.5 * CELL_M, top)
                if touches(p, False, half, centre - was, centre - pos):
                    return True
    return False


@wp.func
def touches_movers(p: Params, crowd: Crowd, k: int, slot: int, was: wp.vec3, pos: wp.vec3) -> bool:
    """Return whether the body touches a moving obstacle in physics step k of the decision, flying from `was` to `pos`."""
    near = CORNER_M + p.collision_radius_m + wp.length(pos - was) + MOVER_STEP_M
    j = int(0)
    while j < crowd.count[slot]:  # not range(), see `scan_columns`
        away = crowd.trail[k, slot, j] - pos
        if wp.abs(away[0]) < near and wp.abs(away[1]) < near:
            then = crowd.before[slot, j]
            if k > 0:
                then = crowd.trail[k - 1, slot, j]
            kind = crowd.kinds[j]
            half = wp.vec3(0.5 * width_of(kind), 0.5 * width_of(kind), 0.5 * height_of(kind))
            if touches(p, is_standing(kind), half, then - was, away):
                return True
        j += 1
    return False
