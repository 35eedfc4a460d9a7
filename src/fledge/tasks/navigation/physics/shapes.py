"""Shapes of moving obstacles: what kernels and views must know of each.

An obstacle's kind is 4 * shape + width class: kinds 0-3 are boxes .25, .5, .75 and 1 m wide and 1 m tall, 4-7 upright
cylinders of the same diameters, 5 m tall. To add a shape, give it a number and an answer in every function here.
"""

from typing import Any

import numpy as np
import warp as wp

WIDTHS = 4
SHAPES = ("box", "cylinder")
CYLINDER = SHAPES.index("cylinder")
KINDS = WIDTHS * len(SHAPES)
BOX_M, CYLINDER_M = 1.0, 5.0  # heights
STANDING_Z_M = 2.5  # centre of an obstacle that stands on the ground
INF = 1.0e9


def widths(kinds: Any) -> Any:
    """Return the widths of kinds, m, of an array or tensor."""
    return 0.25 * (kinds % WIDTHS + 1)


def sizes(kinds: np.ndarray) -> np.ndarray:
    """Return the sizes of kinds along x, y and z, m, [n, 3] float32."""
    heights = np.array((BOX_M, CYLINDER_M))[kinds // WIDTHS]
    return np.stack([widths(kinds), widths(kinds), heights], axis=1).astype(np.float32)


def is_round(kinds: np.ndarray) -> np.ndarray:
    """Return whether kinds are drawn as upright cylinders, [n] bool."""
    return kinds // WIDTHS == CYLINDER


@wp.func
def width_class(kind: int) -> int:
    return kind % WIDTHS


@wp.func
def width_of(kind: int) -> float:
    return 0.25 * float(width_class(kind) + 1)


@wp.func
def is_standing(kind: int) -> bool:
    """Whether an obstacle stands on the ground and is taller than any flight is high."""
    return kind / WIDTHS == CYLINDER


@wp.func
def height_of(kind: int) -> float:
    if is_standing(kind):
        return CYLINDER_M
    return BOX_M


@wp.func
def overlaps_height(kind: int, dz: float, radius: float) -> bool:
    """Whether an obstacle with its centre `dz` above a drone is within `radius` of it vertically."""
    return is_standing(kind) or wp.abs(dz) <= 0.5 * height_of(kind) + radius


@wp.func
def is_touching(kind: int, away: wp.vec3, radius: float) -> bool:
    """Whether an obstacle, its centre `away` from a drone, is within `radius` of it, horizontally and vertically."""
    reach = 0.5 * width_of(kind) + radius
    level = away[0] * away[0] + away[1] * away[1] <= reach * reach
    return level and overlaps_height(kind, away[2], radius)


@wp.func
def ray_cylinder(origin: wp.vec3, direction: wp.vec3, centre: wp.vec3, radius: float, half_height: float) -> float:
    """Distance along a unit ray to an upright cylinder, or INF. Zero from inside."""
    ox = origin[0] - centre[0]
    oy = origin[1] - centre[1]
    oz = origin[2] - centre[2]
    a = direction[0] * direction[0] + direction[1] * direction[1]
    c = ox * ox + oy * oy - radius * radius
    near = float(-INF)
    far = float(INF)
    if a > 1.0e-12:
        b = ox * direction[0] + oy * direction[1]
        root = b * b - a * c
        if root < 0.0:
            return INF
        root = wp.sqrt(root)
        near = (-b - root) / a
        far = (-b + root) / a
    elif c > 0.0:
        return INF
    if wp.abs(direction[2]) > 1.0e-9:
        t0 = (-half_height - oz) / direction[2]
        t1 = (half_height - oz) / direction[2]
        near = wp.max(near, wp.min(t0, t1))
        far = wp.min(far, wp.max(t0, t1))
    elif wp.abs(oz) > half_height:
        return INF
    if near > far or far < 0.0:
        return INF
    return wp.max(near, 0.0)


@wp.func
def ray_box(origin: wp.vec3, direction: wp.vec3, centre: wp.vec3, half: wp.vec3) -> float:
    """Distance along a unit ray to an axis-aligned box, or INF. Zero from inside."""
    near = float(-INF)
    far = float(INF)
    for k in range(3):
        o = origin[k] - centre[k]
        if wp.abs(direction[k]) > 1.0e-9:
            t0 = (-half[k] - o) / direction[k]
            t1 = (half[k] - o) / direction[k]
            near = wp.max(near, wp.min(t0, t1))
            far = wp.min(far, wp.max(t0, t1))
        elif wp.abs(o) > half[k]:
            return INF
    if near > far or far < 0.0:
        return INF
    return wp.max(near, 0.0)


@wp.func
def ray_distance(kind: int, origin: wp.vec3, direction: wp.vec3, centre: wp.vec3) -> float:
    """Distance along a unit ray to an obstacle, or INF. Zero from inside."""
    half_width = 0.5 * width_of(kind)
    half_height = 0.5 * height_of(kind)
    if kind / WIDTHS == CYLINDER:
        return ray_cylinder(origin, direction, centre, half_width, half_height)
    return ray_box(origin, direction, centre, wp.vec3(half_width, half_width, half_height))
