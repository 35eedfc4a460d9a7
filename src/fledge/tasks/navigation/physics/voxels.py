"""Voxel worlds for kernels: rays, and contacts of the drone's body.

A world is a box of voxels. Each voxel stores its Chebyshev distance in voxels to the nearest solid voxel, 0 if it is solid
itself. A ray skips free space by these distances, and goes voxel by voxel next to solid ones (Amanatides & Woo 1987). A solid
voxel is a box or, where triangles of a mesh overlap it, just these triangles. There is nothing outside of a world.
"""

import warp as wp

from fledge.tasks.navigation.physics.bodies import touches
from fledge.tasks.navigation.physics.structs import SPHERE, Params
from fledge.tasks.navigation.physics.triangles import column_distance, ray_triangle, triangle_distance
from fledge.tasks.navigation.physics.voxel_struct import Voxels

INF = 1.0e9
SPACING_M = 0.02  # of the points on a body's path at which contacts with triangles are tested: finds all but 0.2 mm


@wp.func
def voxel_index(size: wp.vec3i, x: int, y: int, z: int) -> int:
    """Return the flat index of a voxel, or -1 if it is outside of the world."""
    if x < 0 or y < 0 or z < 0 or x >= size[0] or y >= size[1] or z >= size[2]:
        return -1
    return (x * size[1] + y) * size[2] + z


@wp.func
def to_voxels(v: Voxels, w: int, point: wp.vec3) -> wp.vec3:
    """Return a point in units of voxels from the corner of world w; its floor is the voxel that the point is in."""
    return (point - v.corner[w]) / v.cell_m[w]


@wp.func
def distance_at(v: Voxels, w: int, point: wp.vec3) -> int:
    """Return the distance stored in the voxel at a point, in voxels; -1 outside of the world."""
    q = to_voxels(v, w, point)
    n = voxel_index(v.size[w], int(wp.floor(q[0])), int(wp.floor(q[1])), int(wp.floor(q[2])))
    if n < 0:
        return -1
    return int(v.cells[w, n])


@wp.func
def nearest_triangle(v: Voxels, w: int, n: int, origin: wp.vec3, ray: wp.vec3) -> float:
    """Return the distance along a ray to the nearest triangle in solid voxel n, m; INF: none; -1 if the voxel is a box."""
    if v.triangles == 0:
        return -1.0
    first = v.list_first[w, n]
    last = v.list_first[w, n + 1]
    if first == last:
        return -1.0
    least = float(INF)
    for k in range(first, last):
        t = 3 * v.lists[k]
        least = wp.min(least, ray_triangle(origin, ray, v.vertices[t], v.vertices[t + 1], v.vertices[t + 2]))
    return least


@wp.func
def leave_at(at: float, direction: float, voxel: int) -> float:
    """Return where a ray along one axis leaves a voxel, in units of voxels along the ray; INF if it runs across the axis."""
    if direction > 1.0e-9:
        return (float(voxel + 1) - at) / direction
    if direction < -1.0e-9:
        return (float(voxel) - at) / direction
    return INF


@wp.func
def cast_voxels(v: Voxels, w: int, origin: wp.vec3, ray: wp.vec3, range_m: float) -> float:
    """Return the distance along a unit ray to the nearest surface of world w, m; `range_m` if there is none within it."""
    cell = v.cell_m[w]
    size = v.size[w]
    q = to_voxels(v, w, origin)
    end = range_m / cell
    stride = 1.0 / wp.max(wp.max(wp.abs(ray[0]), wp.abs(ray[1])), wp.abs(ray[2]))
    s = float(0.0)
    x = int(wp.floor(q[0]))
    y = int(wp.floor(q[1]))
    z = int(wp.floor(q[2]))
    while s < end:
        n = voxel_index(size, x, y, z)
        if n < 0:
            return range_m
        free = int(v.cells[w, n])
        if free > 1:
            s = s + float(free - 1) * stride
            x = int(wp.floor(q[0] + s * ray[0]))
            y = int(wp.floor(q[1] + s * ray[1]))
            z = int(wp.floor(q[2] + s * ray[2]))
        else:
            tx = leave_at(q[0], ray[0], x)
            ty = leave_at(q[1], ray[1], y)
            tz = leave_at(q[2], ray[2], z)
            leave = wp.max(wp.min(wp.min(tx, ty), tz), s)
            if free == 0:
                d = nearest_triangle(v, w, n, origin, ray)
                if d < 0.0:
                    return wp.min(s * cell, range_m)
                if d <= (leave + 0.01) * cell:  # a triangle may be hit in a later voxel, behind another triangle there
                    return wp.min(d, range_m)
            s = leave
            if tx <= ty and tx <= tz:
                x = x + wp.where(ray[0] > 0.0, 1, -1)
            elif ty <= tz:
                y = y + wp.where(ray[1] > 0.0, 1, -1)
            else:
                z = z + wp.where(ray[2] > 0.0, 1, -1)
    return range_m


@wp.func
def touches_triangles(p: Params, v: Voxels, first: int, last: int, was: wp.vec3, pos: wp.vec3) -> bool:
    """Return whether the body touches one of the triangles `first` to `last` - 1 of the lists on its way to `pos`."""
    points = int(wp.ceil(wp.length(pos - was) / SPACING_M))
    for k in range(first, last):
        t = 3 * v.lists[k]
        for m in range(wp.max(points, 1)):
            at = pos + (float(m) * SPACING_M / wp.max(wp.length(pos - was), SPACING_M)) * (was - pos)
            if p.collision == SPHERE:
                d = triangle_distance(at, v.vertices[t], v.vertices[t + 1], v.vertices[t + 2])
            else:
                d = column_distance(at, 0.5 * p.body_height_m, v.vertices[t], v.vertices[t + 1], v.vertices[t + 2])
            if d <= p.collision_radius_m:
                return True
    return False


@wp.func
def touches_voxels(p: Params, v: Voxels, w: int, was: wp.vec3, pos: wp.vec3) -> bool:
    """Return whether the body touches anything solid of world w on its way from `was` to `pos`."""
    cell = v.cell_m[w]
    size = v.size[w]
    radius = p.collision_radius_m
    free = distance_at(v, w, pos)
    if free < 0 or float(free - 1) * cell > radius + wp.length(pos - was):
        return False
    up = wp.where(p.collision == SPHERE, radius, 0.5 * p.body_height_m)
    reach = wp.vec3(radius, radius, up)
    low = to_voxels(v, w, wp.min(was, pos) - reach)
    high = to_voxels(v, w, wp.max(was, pos) + reach)
    half = wp.vec3(0.5 * cell, 0.5 * cell, 0.5 * cell)
    for x in range(wp.max(int(wp.floor(low[0])), 0), wp.min(int(wp.floor(high[0])), size[0] - 1) + 1):
        for y in range(wp.max(int(wp.floor(low[1])), 0), wp.min(int(wp.floor(high[1])), size[1] - 1) + 1):
            for z in range(wp.max(int(wp.floor(low[2])), 0), wp.min(int(wp.floor(high[2])), size[2] - 1) + 1):
                n = (x * size[1] + y) * size[2] + z
                if v.cells[w, n] == wp.uint8(0):
                    first = int(0)
                    last = int(0)
                    if v.triangles == 1:
                        first = v.list_first[w, n]
                        last = v.list_first[w, n + 1]
                    if first < last:
                        if touches_triangles(p, v, first, last, was, pos):
                            return True
                    else:
                        centre = v.corner[w] + cell * wp.vec3(float(x) + 0.5, float(y) + 0.5, float(z) + 0.5)
                        if touches(p, False, half, centre - was, centre - pos):
                            return True
    return False


@wp.func
def is_outside(v: Voxels, w: int, point: wp.vec3) -> bool:
    """Return whether a point is outside of world w."""
    return distance_at(v, w, point) < 0


@wp.func
def is_solid_around(v: Voxels, w: int, point: wp.vec3, up: float) -> bool:
    """Return whether a voxel at a point, or up to `up` above or below it, is solid."""
    steps = int(wp.ceil(up / v.cell_m[w]))
    for k in range(-steps, steps + 1):
        if distance_at(v, w, point + wp.vec3(0.0, 0.0, float(k) * v.cell_m[w])) == 0:
            return True
    return False
