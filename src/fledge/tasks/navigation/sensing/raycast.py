"""LiDAR on a column map: one walk over the grid per azimuth serves four elevations at once.

The walk advances along the horizontal ray by the free distance stored in each cell, and cell by cell
(Amanatides & Woo 1987) next to columns. Every solid cell it enters is tested against the four beams, which differ only
in slope. Distances are along the beam, in metres; `range_m` when nothing is hit. The ground is flat (z = 0).
"""

import warp as wp

from fledge.tasks.navigation.physics.terrain import CELL_M, CELLS, HALF_M, HEIGHT_STEP, INV_CELL, SOLID

INF = 1.0e9
TINY = 1.0e-9
TOP_M = HEIGHT_STEP * (255 - SOLID)  # no column is taller


@wp.func
def cast_four(
    grid: wp.array2d(dtype=wp.uint8),
    slot: int,
    pos: wp.vec3,
    dx: float,
    dy: float,
    slope: wp.vec4,
    cosine: wp.vec4,
    range_m: float,
) -> wp.vec4:
    """Return the beam distances of four elevations, m, in the horizontal direction (dx, dy), a unit vector.

    `slope` is the tangent and `cosine` the cosine of each elevation.
    """
    # limit[k]: horizontal distance at which beam k ends: by range, ground or a column
    limit = wp.vec4()
    hit = wp.vec4()
    end = float(0.0)
    for k in range(4):
        limit[k] = range_m * cosine[k]
        if slope[k] < 0.0:
            ground = pos[2] / -slope[k]
            gx = pos[0] + ground * dx
            gy = pos[1] + ground * dy
            if ground < limit[k] and wp.abs(gx) < HALF_M and wp.abs(gy) < HALF_M:
                limit[k] = wp.max(ground, 0.0)
                hit[k] = 1.0
        end = wp.max(end, limit[k])

    ix = int(wp.floor((pos[0] + HALF_M) * INV_CELL))
    iy = int(wp.floor((pos[1] + HALF_M) * INV_CELL))
    inv_dx = wp.where(wp.abs(dx) > 1.0e-9, 1.0 / dx, INF)
    inv_dy = wp.where(wp.abs(dy) > 1.0e-9, 1.0 / dy, INF)
    edge_x = wp.where(dx < 0.0, 0, 1)
    edge_y = wp.where(dy < 0.0, 0, 1)
    stride = CELL_M / wp.max(wp.abs(dx), wp.abs(dy))  # metres along the ray per cell of Chebyshev distance

    s = float(0.0)
    while s < end:
        if ix < 0 or iy < 0 or ix >= CELLS or iy >= CELLS:
            break
        value = int(grid[slot, ix * CELLS + iy])
        if value > 1 and value < SOLID:
            s = s + float(value - 1) * stride
            ix = int(wp.floor((pos[0] + s * dx + HALF_M) * INV_CELL))
            iy = int(wp.floor((pos[1] + s * dy + HALF_M) * INV_CELL))
        else:
            tx = (float(ix + edge_x) * CELL_M - HALF_M - pos[0]) * inv_dx
            ty = (float(iy + edge_y) * CELL_M - HALF_M - pos[1]) * inv_dy
            if inv_dx == INF:
                tx = INF
            if inv_dy == INF:
                ty = INF
            leave = wp.max(wp.min(tx, ty), s)
            if value >= SOLID:
                height = float(value - SOLID) * HEIGHT_STEP
                end = 0.0
                for k in range(4):
                    if s < limit[k]:
                        z = pos[2] + s * slope[k]
                        if z < height:
                            limit[k] = s
                            hit[k] = 1.0
                        elif slope[k] < 0.0:
                            top = (height - pos[2]) / slope[k]
                            if top <= leave and top < limit[k]:
                                limit[k] = top
                                hit[k] = 1.0
                        end = wp.max(end, limit[k])
            s = leave
            if tx < ty:
                ix = ix + 2 * edge_x - 1
            else:
                iy = iy + 2 * edge_y - 1

    distance = wp.vec4()
    for k in range(4):
        distance[k] = range_m
        if hit[k] > 0.0:
            distance[k] = wp.min(limit[k] / cosine[k], range_m)
    return distance


@wp.func
def cast_ray(grid: wp.array2d(dtype=wp.uint8), slot: int, pos: wp.vec3, ray: wp.vec3, range_m: float) -> float:
    """Return the distance along a unit ray of any direction to columns and ground, m; `range_m` if nothing is hit."""
    end = float(range_m)
    last = float(range_m)  # the walk ends here
    if ray[2] < 0.0:
        ground = wp.max(pos[2] / -ray[2], 0.0)
        if ground < end:
            last = ground
            if wp.abs(pos[0] + ground * ray[0]) < HALF_M and wp.abs(pos[1] + ground * ray[1]) < HALF_M:
                end = ground
    elif ray[2] > 0.0:
        last = wp.min(last, (TOP_M - pos[2]) / ray[2])
    ix = int(wp.floor((pos[0] + HALF_M) * INV_CELL))
    iy = int(wp.floor((pos[1] + HALF_M) * INV_CELL))
    inv_x = 1.0 / wp.where(wp.abs(ray[0]) > TINY, ray[0], TINY)
    inv_y = 1.0 / wp.where(wp.abs(ray[1]) > TINY, ray[1], TINY)
    edge_x = wp.where(inv_x < 0.0, 0, 1)
    edge_y = wp.where(inv_y < 0.0, 0, 1)
    stride = CELL_M * wp.min(wp.abs(inv_x), wp.abs(inv_y))  # metres along the ray per cell of Chebyshev distance
    s = float(0.0)
    while s < last:
        if ix < 0 or iy < 0 or ix >= CELLS or iy >= CELLS:
            return end
        value = int(grid[slot, ix * CELLS + iy])
        if value > 1 and value < SOLID:
            s = s + float(value - 1) * stride
            ix = int(wp.floor((pos[0] + s * ray[0] + HALF_M) * INV_CELL))
            iy = int(wp.floor((pos[1] + s * ray[1] + HALF_M) * INV_CELL))
        else:
            tx = (float(ix + edge_x) * CELL_M - HALF_M - pos[0]) * inv_x
            ty = (float(iy + edge_y) * CELL_M - HALF_M - pos[1]) * inv_y
            leave = wp.max(wp.min(tx, ty), s)
            if value >= SOLID:
                height = float(value - SOLID) * HEIGHT_STEP
                if pos[2] + s * ray[2] < height:
                    return s
                if ray[2] < 0.0:
                    top = (height - pos[2]) / ray[2]
                    if top <= leave and top < end:
                        return top
            s = leave
            if tx < ty:
                ix = ix + 2 * edge_x - 1
            else:
                iy = iy + 2 * edge_y - 1
    return end
