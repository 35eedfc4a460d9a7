"""LiDAR in worlds of voxels in object order, as `scan_columns`: each box near a drone shortens the beams that it covers.

The boxes are those of `physics.near_boxes`. Distances equal those of `voxels.cast_four_voxels` within float32 rounding. That
one walks from voxel to voxel, and serves where there is no list of boxes.
"""

import warp as wp

from fledge.tasks.navigation.physics.quadrotor import heading_of
from fledge.tasks.navigation.physics.structs import Beams, Drones, Maps, Obs, Params, Result
from fledge.tasks.navigation.physics.voxels import is_outside
from fledge.tasks.navigation.sensing.observe import scan_azimuth, takes_part
from fledge.tasks.navigation.sensing.scan_columns import INF, TINY, covered, see_box


@wp.func
def see_faces(
    i: int, p: Params, beams: Beams, pos: wp.vec3, head: wp.vec2, low: wp.vec3, high: wp.vec3, faces: int, obs: Obs
):
    """Shorten the beams of drone i that hit a face of a hollow box; `faces` are bits of x0, x1, y0, y1, z0, z1."""
    a = low - pos
    b = high - pos
    gap_x = wp.max(wp.max(a[0], -b[0]), 0.0)
    gap_y = wp.max(wp.max(a[1], -b[1]), 0.0)
    if gap_x * gap_x + gap_y * gap_y >= p.lidar_range_m * p.lidar_range_m:
        return
    span = wp.vec2i(0, p.lidar_azimuths - 1)
    if gap_x > 0.0 or gap_y > 0.0:
        span = covered(p, head, a[0], a[1], b[0], b[1])
    n = span[0]
    while n <= span[1]:
        h = n
        if n < 0:
            h = n + p.lidar_azimuths
        elif n >= p.lidar_azimuths:
            h = n - p.lidar_azimuths
        ray = beams.around[h]
        dx = head[0] * ray[0] - head[1] * ray[1]
        dy = head[1] * ray[0] + head[0] * ray[1]
        inv_x = 1.0 / wp.where(wp.abs(dx) > TINY, dx, TINY)
        inv_y = 1.0 / wp.where(wp.abs(dy) > TINY, dy, TINY)
        enter_x = wp.min(a[0] * inv_x, b[0] * inv_x)
        enter_y = wp.min(a[1] * inv_y, b[1] * inv_y)
        leave_x = wp.max(a[0] * inv_x, b[0] * inv_x)
        leave_y = wp.max(a[1] * inv_y, b[1] * inv_y)
        if wp.max(enter_x, enter_y) <= wp.min(leave_x, leave_y) and wp.min(leave_x, leave_y) >= 0.0:
            # the faces through which the beam would enter and leave along each axis
            first_x = (faces >> wp.where(inv_x > 0.0, 0, 1)) & 1
            last_x = (faces >> wp.where(inv_x > 0.0, 1, 0)) & 1
            first_y = (faces >> wp.where(inv_y > 0.0, 2, 3)) & 1
            last_y = (faces >> wp.where(inv_y > 0.0, 3, 2)) & 1
            v = int(0)
            while v < p.elevations:
                rise = beams.rise[v]
                inv_z = 1.0 / wp.where(wp.abs(rise[0]) > TINY, rise[0], TINY)
                enter_z = wp.min(a[2] * inv_z, b[2] * inv_z)
                leave_z = wp.max(a[2] * inv_z, b[2] * inv_z)
                enter = wp.max(wp.max(enter_x, enter_y), enter_z)
                leave = wp.min(wp.min(leave_x, leave_y), leave_z)
                if enter <= leave:
                    first_z = (faces >> wp.where(inv_z > 0.0, 4, 5)) & 1
                    last_z = (faces >> wp.where(inv_z > 0.0, 5, 4)) & 1
                    s = float(INF)
                    if leave >= 0.0 and (
                        (leave == leave_x and last_x == 1)
                        or (leave == leave_y and last_y == 1)
                        or (leave == leave_z and last_z == 1)
                    ):
                        s = leave
                    if enter >= 0.0 and (
                        (enter == enter_x and first_x == 1)
                        or (enter == enter_y and first_y == 1)
                        or (enter == enter_z and first_z == 1)
                    ):
                        s = enter
                    k = h * p.elevations + v
                    obs.lidar[i, k] = wp.max(obs.lidar[i, k], p.lidar_range_m - s / rise[1])
                v += 1
        n += 1


@wp.kernel(enable_backward=False)
def scan_boxes(
    first: int, only_ended: int, p: Params, maps: Maps, beams: Beams, drones: Drones, result: Result, obs: Obs
):
    """Write the observation `lidar` of upright beams all around the drone, one thread per drone."""
    i = first + wp.tid()
    if not takes_part(i, only_ended, result):
        return
    pos = drones.pos[i]
    head = heading_of(drones.quat[i])
    w = maps.voxels.world[drones.slot[i]]
    n = int(0)
    while n < p.lidar_azimuths * p.elevations:
        obs.lidar[i, n] = 0.0
        n += 1
    if is_outside(maps.voxels, w, pos) or head[0] != head[0]:  # NaN
        return
    shape = maps.voxels.near_shape[w]
    at = (pos - maps.voxels.corner[w]) / maps.voxels.near_m[w]
    x = wp.min(int(at[0]), shape[0] - 1)
    y = wp.min(int(at[1]), shape[1] - 1)
    span = maps.voxels.near[w, x * shape[1] + y]
    if span[1] < 0:
        for h in range(p.lidar_azimuths):
            scan_azimuth(i, h, p, maps, beams, drones, obs)
    b = span[0]
    while b < span[1]:
        low = maps.voxels.box_low[b]
        high = maps.voxels.box_high[b]
        faces = maps.voxels.box_faces[b]
        if faces == 0:
            edges = wp.vec4(low[0], low[1], high[0], high[1])
            see_box(i, p, beams, pos, head, edges, low[2], high[2], obs)
        else:
            see_faces(i, p, beams, pos, head, low, high, faces, obs)
        b += 1
