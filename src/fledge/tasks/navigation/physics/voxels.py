"""Voxel worlds for kernels: rays, and contacts of the drone's body.

A world is a box of voxels. Each voxel stores its Chebyshev distance in voxels to the nearest solid voxel, 0 if it is solid
itself. Voxels are stored in bricks of 4 x 4 x 4, a cache line each; each brick has the least distance of its voxels. Around a
brick at distance d > 0, d - 1 voxels are free on all sides, and a ray leaves that box in one step. In bricks with solid voxels
it does the same with single voxels, and goes voxel by voxel next to solid ones (Amanatides & Woo 1987). A solid voxel is a
box or, where triangles of a mesh overlap it, just these triangles. There is nothing outside of a world.
"""

import warp as wp

from fledge.tasks.navigation.physics.bodies import touches
from fledge.tasks.navigation.physics.structs import SPHERE, Params
from fledge.tasks.navigation.physics.triangles import column_distance, ray_triangle, triangle_distance
from fledge.tasks.navigation.physics.voxel_struct import Voxels

INF = 1.0e9
SPACING_M = 0.02  # of the points on a body's path at which contacts with triangles are tested: finds all but 0.2 mm


@wp.func
def is_within(size: wp.vec3i, x: int, y: int, z: int) -> bool:
    """Return whether a voxel is in a world of this size."""
    return x >= 0 and y >= 0 and z >= 0 and x < size[0] and y < size[1] and z < size[2]


@wp.func
def brick_index(size: wp.vec3i, x: int, y: int, z: int) -> int:
    """Return the number of the brick of 4 x 4 x 4 voxels that voxel (x, y, z) is in."""
    return ((x >> 2) * ((size[1] + 3) >> 2) + (y >> 2)) * ((size[2] + 3) >> 2) + (z >> 2)


@wp.func
def cell_at(v: Voxels, w: int, brick: int, x: int, y: int, z: int) -> int:
    """Return the distance stored in a voxel of world w, in voxels."""
    return int(v.cells[w, (brick << 6) + ((x & 3) << 4) + ((y & 3) << 2) + (z & 3)])


@wp.func
def to_voxels(v: Voxels, w: int, point: wp.vec3) -> wp.vec3:
    """Return a point in units of voxels from the corner of world w; its floor is the voxel that the point is in."""
    return (point - v.corner[w]) / v.cell_m[w]


@wp.func
def distance_at(v: Voxels, w: int, point: wp.vec3) -> int:
    """Return the distance stored in the voxel at a point, in voxels; -1 outside of the world."""
    q = to_voxels(v, w, point)
    size = v.size[w]
    x = int(wp.floor(q[0]))
    y = int(wp.floor(q[1]))
    z = int(wp.floor(q[2]))
    if not is_within(size, x, y, z):
        return -1
    return cell_at(v, w, brick_index(size, x, y, z), x, y, z)


@wp.func
def surface_in(
    list_first: wp.array2d(dtype=wp.int32),
    lists: wp.array(dtype=wp.int32),
    vertices: wp.array(dtype=wp.vec3),
    w: int,
    n: int,
    origin: wp.vec3,
    ray: wp.vec3,
) -> float:
    """Return the distance along a ray to the nearest triangle in solid voxel n, m; INF: none; -1 if the voxel is a box.

    The arrays are those of `Voxels`, which as a whole is slow to pass.
    """
    first = list_first[w, n]
    last = list_first[w, n + 1]
    if first == last:
        return -1.0
    least = float(INF)
    for k in range(first, last):
        t = 3 * lists[k]
        least = wp.min(least, ray_triangle(origin, ray, vertices[t], vertices[t + 1], vertices[t + 2]))
    return least


@wp.func
def inverse(direction: float) -> float:
    """Return 1 / direction; INF with the sign of the direction if a ray runs across the axis."""
    return wp.where(wp.abs(direction) > 1.0e-9, 1.0 / direction, wp.where(direction < 0.0, -INF, INF))


@wp.func
def leave_at(q: float, direction: float, inv: float, voxel: int, grow: int, around: int) -> float:
    """Return where a ray leaves a free box along one axis, in voxels along the ray from q.

    The box is `around` voxels larger on both sides than a voxel, if `grow` is 0, or than the voxel's brick, if it is 3.
    """
    low = voxel - (voxel & grow)
    return (float(wp.where(direction < 0.0, low - around, low + grow + around + 1)) - q) * inv


@wp.func
def next_voxel(q: float, direction: float, voxel: int, grow: int, around: int, leave: float, s: float) -> int:
    """Return the voxel along one axis where a ray leaves the box of `leave_at` at s; along this axis it does so at `leave`."""
    low = voxel - (voxel & grow) - around
    high = low + grow + 2 * around
    inside = wp.clamp(int(wp.floor(q + s * direction)), low, high)
    return wp.where(leave <= s, wp.where(direction < 0.0, low - 1, high + 1), inside)


@wp.func
def cast_voxels(v: Voxels, w: int, origin: wp.vec3, ray: wp.vec3, range_m: float) -> float:
    """Return the distance along a unit ray to the nearest surface of world w, m; `range_m` if there is none within it."""
    cell = v.cell_m[w]
    size = v.size[w]
    q = to_voxels(v, w, origin)
    end = range_m / cell
    inv = wp.vec3(inverse(ray[0]), inverse(ray[1]), inverse(ray[2]))
    x = int(wp.floor(q[0]))
    y = int(wp.floor(q[1]))
    z = int(wp.floor(q[2]))
    s = float(0.0)
    while s < end:
        if not is_within(size, x, y, z):
            return range_m
        brick = brick_index(size, x, y, z)
        free = int(v.bricks[w, brick])
        grow = int(3)
        if free == 0:
            free = cell_at(v, w, brick, x, y, z)
            grow = int(0)
        around = wp.max(free - 1, 0)
        tx = leave_at(q[0], ray[0], inv[0], x, grow, around)
        ty = leave_at(q[1], ray[1], inv[1], y, grow, around)
        tz = leave_at(q[2], ray[2], inv[2], z, grow, around)
        leave = wp.max(wp.min(wp.min(tx, ty), tz), s)
        if free == 0:
            d = float(-1.0)
            if v.triangles == 1:
                n = (x * size[1] + y) * size[2] + z
                d = surface_in(v.list_first, v.lists, v.vertices, w, n, origin, ray)
            if d < 0.0:
                return wp.min(s * cell, range_m)
            if d <= (leave + 0.01) * cell:  # a triangle may be hit in a later voxel, behind another triangle there
                return wp.min(d, range_m)
        s = leave
        x = next_voxel(q[0], ray[0], x, grow, around, tx, s)
        y = next_voxel(q[1], ray[1], y, grow, around, ty, s)
        z = next_voxel(q[2], ray[2], z, grow, around, tz, s)
    return range_m


@wp.func
def cast_four_voxels(
    v: Voxels, w: int, origin: wp.vec3, dx: float, dy: float, slope: wp.vec4, cosine: wp.vec4, range_m: float
) -> wp.vec4:
    """Return what `cast_voxels` does for four beams in the horizontal direction (dx, dy), a unit vector, m.

    `slope` is the tangent and `cosine` the cosine of each beam's elevation. The beams go through the columns of voxels
    together, in steps that all of them can make, because they mostly need the same bricks.
    """
    cell = v.cell_m[w]
    size = v.size[w]
    q = to_voxels(v, w, origin)
    inv_x = inverse(dx)
    inv_y = inverse(dy)
    x = int(wp.floor(q[0]))
    y = int(wp.floor(q[1]))
    inv_z = wp.vec4()
    z = wp.vec4i()
    tz = wp.vec4()
    distance = wp.vec4()
    for k in range(4):
        inv_z[k] = inverse(slope[k])
        z[k] = int(wp.floor(q[2]))
        distance[k] = range_m
    limit = range_m / cell * cosine  # in voxels along the ground, as s; 0 once a beam has ended
    end = wp.max(limit)
    s = float(0.0)
    while s < end:
        if x < 0 or y < 0 or x >= size[0] or y >= size[1]:
            return distance
        column = brick_index(size, x, y, 0)
        around = int(255)
        grow = int(3)
        for k in range(4):
            if s < limit[k]:
                if z[k] < 0 or z[k] >= size[2]:
                    limit[k] = 0.0
                else:
                    brick = column + (z[k] >> 2)
                    free = int(v.bricks[w, brick])
                    mixed = free == 0
                    if mixed:
                        free = cell_at(v, w, brick, x, y, z[k])
                    if free == 0:
                        d = float(-1.0)
                        leave = float(s)
                        if v.triangles == 1:
                            n = (x * size[1] + y) * size[2] + z[k]
                            ray = cosine[k] * wp.vec3(dx, dy, slope[k])
                            d = surface_in(v.list_first, v.lists, v.vertices, w, n, origin, ray)
                            leave = wp.min(leave_at(q[0], dx, inv_x, x, 0, 0), leave_at(q[1], dy, inv_y, y, 0, 0))
                            leave = wp.max(wp.min(leave, leave_at(q[2], slope[k], inv_z[k], z[k], 0, 0)), s)
                        if d < 0.0:
                            d = s * cell / cosine[k]
                        if d * cosine[k] <= (leave + 0.01) * cell:
                            limit[k] = 0.0
                            distance[k] = wp.min(d, range_m)
                    if limit[k] > 0.0:
                        around = wp.min(around, wp.max(free - 1, 0))
                        if mixed:
                            grow = int(0)
        tx = leave_at(q[0], dx, inv_x, x, grow, around)
        ty = leave_at(q[1], dy, inv_y, y, grow, around)
        leave = wp.min(tx, ty)
        end = 0.0
        for k in range(4):
            if s < limit[k]:
                tz[k] = leave_at(q[2], slope[k], inv_z[k], z[k], grow, around)
                leave = wp.min(leave, tz[k])
                end = wp.max(end, limit[k])
        s = wp.max(leave, s)
        x = next_voxel(q[0], dx, x, grow, around, tx, s)
        y = next_voxel(q[1], dy, y, grow, around, ty, s)
        for k in range(4):
            z[k] = next_voxel(q[2], slope[k], z[k], grow, around, tz[k], s)
    return distance


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
                if cell_at(v, w, brick_index(size, x, y, z), x, y, z) == 0:
                    first = int(0)
                    last = int(0)
                    if v.triangles == 1:
                        n = (x * size[1] + y) * size[2] + z
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
