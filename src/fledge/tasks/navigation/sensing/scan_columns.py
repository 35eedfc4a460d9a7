"""LiDAR on a column map in object order: each column near a drone shortens the beams that it covers.

Columns are boxes (`physics.columns`). Seen from above, the drone's azimuths enter and leave a box at two horizontal distances;
from these, the slope of a beam tells whether it hits the box's side, its top or nothing. The ground is flat (z = 0) and as
large as the map. Distances equal those of `raycast.cast_four`, which walks over the grid, within float32 rounding.

Loops over beams and boxes are `while` loops: on the CPU, an iteration of Warp's range() costs more than what they compute.
"""

import warp as wp

from fledge.envs.kernel_random import TWO_PI
from fledge.tasks.navigation.physics.columns import BUCKETS, LONG_M, SIDE, bucket_at
from fledge.tasks.navigation.physics.quadrotor import heading_of
from fledge.tasks.navigation.physics.structs import Beams, Drones, Maps, Obs, Params, Result
from fledge.tasks.navigation.physics.terrain import HALF_M, cell_at
from fledge.tasks.navigation.sensing.observe import takes_part

TINY = 1.0e-9
INF = 1.0e9
PI = 0.5 * TWO_PI
SLACK = 0.002  # rad, more than the error of `rough_angle`


@wp.func
def rough_angle(x: float, y: float) -> float:
    """Return the angle of a vector, rad, -pi to pi, with an error below 0.001: a polynomial fitted to the arctangent."""
    ax = wp.abs(x)
    ay = wp.abs(y)
    t = wp.min(ax, ay) / wp.max(wp.max(ax, ay), TINY)
    q = t * t
    angle = t * (0.99535795 + q * (0.0793393 * q - 0.28868))
    if ay > ax:
        angle = 0.5 * PI - angle
    if x < 0.0:
        angle = PI - angle
    return wp.where(y < 0.0, -angle, angle)


@wp.func
def covered(p: Params, head: wp.vec2, x0: float, y0: float, x1: float, y1: float) -> wp.vec2i:
    """Return the first and the last azimuth that a footprint beside the drone may cover, as numbers of beams.

    The numbers are between -H and 2 H; the footprint is relative to the drone, m.
    """
    # corners at which the footprint begins and ends, counter-clockwise
    begin_x = wp.where(y0 > 0.0, x1, wp.where(y1 < 0.0 or x1 >= 0.0, x0, x1))
    begin_y = wp.where(x1 < 0.0, y1, wp.where(x0 > 0.0 or y0 > 0.0, y0, y1))
    end_x = wp.where(y0 > 0.0, x0, wp.where(y1 < 0.0 or x0 <= 0.0, x1, x0))
    end_y = wp.where(x0 > 0.0, y1, wp.where(x1 < 0.0 or y0 > 0.0, y0, y1))
    begin = rough_angle(head[0] * begin_x + head[1] * begin_y, head[0] * begin_y - head[1] * begin_x)
    end = rough_angle(head[0] * end_x + head[1] * end_y, head[0] * end_y - head[1] * end_x)
    if end < begin:
        end = end + TWO_PI
    beams = float(p.lidar_azimuths) / TWO_PI
    low = int(wp.ceil((begin - SLACK) * beams))
    return wp.vec2i(low, wp.min(int(wp.floor((end + SLACK) * beams)), low + p.lidar_azimuths - 1))


@wp.func
def see_box(
    i: int, p: Params, beams: Beams, pos: wp.vec3, head: wp.vec2, box: wp.vec4, bottom: float, top: float, obs: Obs
):
    """Shorten the beams of drone i that hit a box, given by its footprint and the heights of its bottom and top."""
    x0 = box[0] - pos[0]
    y0 = box[1] - pos[1]
    x1 = box[2] - pos[0]
    y1 = box[3] - pos[1]
    gap_x = wp.max(wp.max(x0, -x1), 0.0)
    gap_y = wp.max(wp.max(y0, -y1), 0.0)
    if gap_x * gap_x + gap_y * gap_y >= p.lidar_range_m * p.lidar_range_m:
        return
    span = wp.vec2i(0, p.lidar_azimuths - 1)
    if gap_x > 0.0 or gap_y > 0.0:
        span = covered(p, head, x0, y0, x1, y1)
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
        enter_x = wp.min(x0 * inv_x, x1 * inv_x)
        enter_y = wp.min(y0 * inv_y, y1 * inv_y)
        enter = wp.max(wp.max(enter_x, enter_y), 0.0)
        leave = wp.min(wp.max(x0 * inv_x, x1 * inv_x), wp.max(y0 * inv_y, y1 * inv_y))
        if enter <= leave:
            v = int(0)
            while v < p.elevations:
                rise = beams.rise[v]
                s = enter
                if pos[2] + enter * rise[0] >= top:  # above the box where it begins
                    s = wp.where(rise[0] < 0.0, (top - pos[2]) / rise[0], INF)
                elif pos[2] + enter * rise[0] < bottom:
                    s = wp.where(rise[0] > 0.0, (bottom - pos[2]) / rise[0], INF)
                if s <= leave:
                    k = h * p.elevations + v
                    obs.lidar[i, k] = wp.max(obs.lidar[i, k], p.lidar_range_m - s / rise[1])
                v += 1
        n += 1


@wp.func
def see_ground(i: int, p: Params, beams: Beams, pos: wp.vec3, head: wp.vec2, obs: Obs):
    """Write the beams of drone i as if there were nothing but the ground."""
    n = int(0)
    while n < p.lidar_azimuths * p.elevations:
        obs.lidar[i, n] = 0.0
        n += 1
    for v in range(p.elevations):
        rise = beams.rise[v]
        flat = wp.where(rise[0] < 0.0, wp.max(pos[2] / -rise[0], 0.0), INF)
        seen = p.lidar_range_m - flat / rise[1]
        if seen > 0.0:
            for h in range(p.lidar_azimuths):
                ray = beams.around[h]
                x = pos[0] + flat * (head[0] * ray[0] - head[1] * ray[1])
                y = pos[1] + flat * (head[1] * ray[0] + head[0] * ray[1])
                if wp.max(wp.abs(x), wp.abs(y)) < HALF_M:
                    obs.lidar[i, h * p.elevations + v] = seen


@wp.kernel(enable_backward=False)
def scan_columns(
    first: int, only_ended: int, p: Params, maps: Maps, beams: Beams, drones: Drones, result: Result, obs: Obs
):
    """Write the observation `lidar` of upright beams all around the drone, one thread per drone."""
    i = first + wp.tid()
    if not takes_part(i, only_ended, result):
        return
    pos = drones.pos[i]
    slot = drones.slot[i]
    head = heading_of(drones.quat[i])
    see_ground(i, p, beams, pos, head, obs)
    if cell_at(pos[0], pos[1]) < 0 or head[0] != head[0]:  # off the map, or NaN
        return
    reach = p.lidar_range_m
    low = bucket_at(pos[1] - reach - LONG_M)
    high = bucket_at(pos[1] + reach)
    last = bucket_at(pos[0] + reach)
    for row in range(bucket_at(pos[0] - reach - LONG_M), last + 2):
        begin = BUCKETS - 1  # after the rows, the bucket of long boxes
        end = BUCKETS
        if row <= last:
            begin = row * SIDE + low
            end = row * SIDE + high + 1
        b = maps.columns.first[slot, begin]
        while b < maps.columns.first[slot, end]:
            see_box(i, p, beams, pos, head, maps.columns.edges[slot, b], -INF, maps.columns.tops[slot, b], obs)
            b += 1
