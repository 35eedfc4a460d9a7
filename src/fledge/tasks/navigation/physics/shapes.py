"""Shapes of moving obstacles, for kernels and views.

An obstacle's kind is 4 * shape + width class: kinds 0-3 are boxes .25, .5, .75 and 1 m wide and 1 m tall, 4-7 upright
cylinders of the same diameters, 5 m tall. Kind 8 is SANDO's cube of .8 m. To add a shape, give it a number and handle it in
every function here.
"""

from typing import Any

import numpy as np
import warp as wp

WIDTHS = 4
SHAPES = ("box", "cylinder")
CYLINDER = SHAPES.index("cylinder")
KINDS = WIDTHS * len(SHAPES)  # of the crowd in forests
CUBE, CUBE_M = KINDS, 0.8
WIDEST_M = 0.25 * WIDTHS
BOX_M, CYLINDER_M = 1.0, 5.0  # heights
STANDING_Z_M = 2.5  # centre of an obstacle that stands on the ground
INF = 1.0e9


def widths(kinds: Any) -> Any:
    """Return the widths of these kinds of obstacles (an array or tensor), m."""
    return 0.25 * (kinds % WIDTHS + 1) + (CUBE_M - 0.25) * (kinds == CUBE)


def sizes(kinds: np.ndarray) -> np.ndarray:
    """Return the sizes of these kinds of obstacles along x, y and z, m, [n, 3] float32."""
    heights = np.array((BOX_M, CYLINDER_M, CUBE_M))[kinds // WIDTHS]
    return np.stack([widths(kinds), widths(kinds), heights], axis=1).astype(np.float32)


def is_round(kinds: np.ndarray) -> np.ndarray:
    """Return whether these kinds of obstacles are upright cylinders, [n] bool."""
    return kinds // WIDTHS == CYLINDER


@wp.func
def width_of(kind: int) -> float:
    return wp.where(kind == CUBE, CUBE_M, 0.25 * float(kind % WIDTHS + 1))


@wp.func
def width_class(kind: int) -> float:
    """Return the number by which policies observe a width: 0, 1, 2, 3 for .25, .5, .75, 1 m, a fraction for others."""
    return 4.0 * width_of(kind) - 1.0


@wp.func
def is_standing(kind: int) -> bool:
    """Return whether an obstacle stands on the ground and is taller than the flight ceiling."""
    return kind / WIDTHS == CYLINDER


@wp.func
def height_of(kind: int) -> float:
    return wp.where(is_standing(kind), CYLINDER_M, wp.where(kind == CUBE, CUBE_M, BOX_M))


@wp.func
def overlaps_height(kind: int, dz: float, radius: float) -> bool:
    """Return whether an obstacle is within `radius` of a drone's height; its centre is `dz` m above the drone."""
    return is_standing(kind) or wp.abs(dz) <= 0.5 * height_of(kind) + radius


@wp.func
def is_touching(kind: int, away: wp.vec3, radius: float) -> bool:
    """Return whether an obstacle is within `radius` of a drone; `away` points from the drone to the obstacle's centre, m."""
    reach = 0.5 * width_of(kind) + radius
    level = away[0] * away[0] + away[1] * away[1] <= reach * reach
    return level and overlaps_height(kind, away[2], radius)


@wp.func
def slab(o: float, d: float, half: float) -> wp.vec2:
    """Return the distances t at which a ray o + t * d enters and leaves the interval ±half; (INF, -INF) if it misses."""
    if wp.abs(d) > 1.0e-9:
        t0 = (-half - o) / d
        t1 = (half - o) / d
        return wp.vec2(wp.min(t0, t1), wp.max(t0, t1))
    if wp.abs(o) > half:
        return wp.vec2(INF, -INF)
    return wp.vec2(-INF, INF)


@wp.func
def circle(o: wp.vec3, d: wp.vec3, radius: float) -> wp.vec2:
    """Return the distances at which a ray enters and leaves an upright cylinder at the origin; (INF, -INF) if it misses."""
    a = d[0] * d[0] + d[1] * d[1]
    c = o[0] * o[0] + o[1] * o[1] - radius * radius
    if a > 1.0e-12:
        b = o[0] * d[0] + o[1] * d[1]
        root = b * b - a * c
        if root < 0.0:
            return wp.vec2(INF, -INF)
        root = wp.sqrt(root)
        return wp.vec2((-b - root) / a, (-b + root) / a)
    if c > 0.0:
        return wp.vec2(INF, -INF)
    return wp.vec2(-INF, INF)


@wp.func
def ray_distance(kind: int, origin: wp.vec3, direction: wp.vec3, centre: wp.vec3) -> float:
    """Return the distance along a unit ray to an obstacle: 0 if the origin is inside, INF if the ray misses it."""
    half = 0.5 * width_of(kind)
    o = origin - centre
    span = slab(o[2], direction[2], 0.5 * height_of(kind))
    if kind / WIDTHS == CYLINDER:
        level = circle(o, direction, half)
        span = wp.vec2(wp.max(span[0], level[0]), wp.min(span[1], level[1]))
    else:
        for k in range(2):
            level = slab(o[k], direction[k], half)
            span = wp.vec2(wp.max(span[0], level[0]), wp.min(span[1], level[1]))
    if span[0] > span[1] or span[1] < 0.0:
        return INF
    return wp.max(span[0], 0.0)
