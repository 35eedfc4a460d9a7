"""Returns and clusters of a scan: what the LiDAR hit that is not known to be static.

A return is the nearest such surface in one azimuth. Neighbouring returns that are close to each other form a cluster, the
visible side of one obstacle.
"""

import warp as wp

from fledge.tasks.navigation.planner.local_map import GROUND_M, INSIDE_M, bands_between
from fledge.tasks.navigation.planner.readings import Seen, sensor_turn
from fledge.tasks.navigation.tracking.memory import CAME, STATIC, free_cells, stamp
from fledge.tasks.navigation.tracking.structs import CLUSTERS, Tracker

DEPTH_M = 0.35  # hits of an azimuth within this distance belong to one surface
JOIN_M = 0.35  # returns of neighbouring azimuths within this distance belong to one obstacle
JOIN_PITCHES = 1.6  # or within this many spacings of azimuths
SKIPPED = 2  # azimuths from one return to the next, at most
WIDEST_M = 1.7  # a wider cluster is no mover
OPEN = 1.0e6
HIGHEST_TOP_M = 4.6  # an obstacle whose top is seen below this height is a box
LOWEST_BOTTOM_M = 0.3
HALF_BOX_M = 0.5


@wp.func
def passed(i: int, seen: Seen, turn: wp.quat, n: int, flat: float, z: float) -> float:
    """Return the height at which ray n passes beyond a surface at a horizontal distance; OPEN if it does not.

    `z` is the drone's height, m.
    """
    ray = wp.quat_rotate(turn, seen.rays[n])
    level = wp.sqrt(ray[0] * ray[0] + ray[1] * ray[1])
    value = seen.lidar[i, n]
    if value > 0.0 and (seen.range_m - value) * level < flat + DEPTH_M:
        return OPEN
    return z + flat * ray[2] / wp.max(level, 1.0e-3)


@wp.func
def read_azimuth(t: Tracker, i: int, seen: Seen, turn: wp.quat, pos: wp.vec3, h: int, now: int):
    """Store the hits of azimuth h of drone i, and write its return: the nearest surface that is not static."""
    sum_x = float(0.0)
    sum_y = float(0.0)
    sum_flat = float(0.0)
    count = float(0.0)
    came = float(0.0)
    first_hit = float(seen.reach_m)
    nearest = float(OPEN)
    low = float(0.0)
    high = float(0.0)
    bottom = int(-1)
    top = int(-1)
    for v in range(t.elevations):
        n = h * t.elevations + v
        value = seen.lidar[i, n]
        if value > 0.0:
            hit = (seen.range_m - value + INSIDE_M) * wp.quat_rotate(turn, seen.rays[n])
            flat = wp.sqrt(hit[0] * hit[0] + hit[1] * hit[1])
            z = pos[2] + hit[2]
            if flat < seen.reach_m and z > GROUND_M + seen.angle_error * flat:
                x = pos[0] + hit[0]
                y = pos[1] + hit[1]
                bands = bands_between(wp.where(seen.standing == 1, 0.0, z), z)
                first_hit = wp.min(first_hit, flat)
                kind = stamp(t, i, x, y, z, bands, now)
                if kind != STATIC and flat < nearest + DEPTH_M:
                    if flat < nearest - DEPTH_M:
                        came = float(0.0)
                        sum_x = float(0.0)
                        sum_y = float(0.0)
                        sum_flat = float(0.0)
                        count = float(0.0)
                        bottom = -1
                    nearest = wp.min(nearest, flat)
                    sum_x = sum_x + x
                    sum_y = sum_y + y
                    sum_flat = sum_flat + flat
                    count = count + 1.0
                    came = came + wp.where(kind == CAME, 1.0, 0.0)
                    high = z
                    top = v
                    if bottom < 0:
                        bottom = v
                        low = z
    level = wp.quat_rotate(turn, seen.rays[h * t.elevations + t.elevations / 2])
    length = wp.sqrt(level[0] * level[0] + level[1] * level[1])
    lowest = wp.quat_rotate(turn, seen.rays[h * t.elevations])
    slope = lowest[2] / wp.max(wp.sqrt(lowest[0] * lowest[0] + lowest[1] * lowest[1]), 1.0e-3)
    t.open[i, h] = wp.vec4(level[0] / length, level[1] / length, first_hit, slope)
    t.returns[i, h] = wp.vec4(sum_x, sum_y, sum_flat, 0.0)
    if count == 0.0:
        return
    flat = sum_flat / count
    below = float(OPEN)
    above = float(OPEN)
    if bottom > 0:
        below = passed(i, seen, turn, h * t.elevations + bottom - 1, flat, pos[2])
    if top < t.elevations - 1:
        above = passed(i, seen, turn, h * t.elevations + top + 1, flat, pos[2])
    t.returns[i, h] = wp.vec4(sum_x / count, sum_y / count, flat, count)
    t.fresh[i, h] = came / count
    t.heights[i, h] = wp.vec4(low, high, below, above)


@wp.struct
class Cluster:
    """Sums over the returns of a cluster."""

    count: float
    came: float
    sum: wp.vec3  # x, y, horizontal distance
    first: wp.vec2
    last: wp.vec2
    top: wp.vec2  # sum of the heights of seen tops, number of them
    bottom: wp.vec2


@wp.func
def with_return(c: Cluster, at: wp.vec4, came: float, z: wp.vec4) -> Cluster:
    """Return the cluster with one more return, of these `returns`, `fresh` and `heights`."""
    point = wp.vec2(at[0], at[1])
    if c.count == 0.0:
        c.first = point
    c.last = point
    c.count = c.count + 1.0
    c.came = c.came + came
    c.sum = c.sum + wp.vec3(at[0], at[1], at[2])
    if z[2] < OPEN and z[2] < z[0]:
        c.bottom = c.bottom + wp.vec2(0.5 * (z[0] + z[2]), 1.0)
    if z[3] < OPEN and z[3] > z[1]:
        c.top = c.top + wp.vec2(0.5 * (z[1] + z[3]), 1.0)
    return c


@wp.func
def write_cluster(t: Tracker, i: int, n: int, c: Cluster) -> int:
    """Write a cluster as number n, unless it is empty or too wide; return the number of clusters."""
    if c.count == 0.0 or n >= CLUSTERS:
        return n
    flat = c.sum[2] / c.count
    width = wp.length(c.last - c.first) + t.pitch * flat
    if width > WIDEST_M:
        return n
    top = c.top[0] / wp.max(c.top[1], 1.0)
    bottom = c.bottom[0] / wp.max(c.bottom[1], 1.0)
    has_top = 2.0 * c.top[1] > c.count and top < HIGHEST_TOP_M
    has_bottom = 2.0 * c.bottom[1] > c.count and bottom > LOWEST_BOTTOM_M
    z = float(0.0)
    if has_top and has_bottom:
        z = 0.5 * (top + bottom)
    elif has_top:
        z = top - HALF_BOX_M
    elif has_bottom:
        z = bottom + HALF_BOX_M
    t.clusters[i, n] = wp.vec4(c.sum[0] / c.count, c.sum[1] / c.count, width, flat)
    t.uprights[i, n] = wp.vec3(z, wp.where(has_top or has_bottom, 1.0, 0.0), c.came / c.count)
    return n + 1


@wp.func
def first_azimuth(t: Tracker, i: int) -> int:
    """Return an azimuth at which no cluster is cut: the first without a return, and so are those skipped after it."""
    if t.wraps == 0:
        return 0
    empty = int(0)
    for h in range(t.azimuths):
        empty = wp.where(t.returns[i, h][3] == 0.0, empty + 1, 0)
        if empty == SKIPPED:
            return h
    return 0


@wp.func
def find_clusters(t: Tracker, i: int, seen: Seen, pos: wp.vec3, yaw: float, now: int) -> int:
    """Read the scan of drone i, taken at `pos` and `yaw`; write its clusters and return their number."""
    turn = sensor_turn(seen, i, yaw)
    for h in range(t.azimuths):
        read_azimuth(t, i, seen, turn, pos, h, now)
    free_cells(t, i, pos, now)
    start = first_azimuth(t, i)
    n = int(0)
    c = Cluster()
    last = int(-SKIPPED - 1)
    for k in range(t.azimuths):
        h = (start + k) % t.azimuths
        at = t.returns[i, h]
        if at[3] > 0.0:
            apart = wp.length(wp.vec2(at[0], at[1]) - c.last)
            if k - last > SKIPPED or apart > wp.max(JOIN_M, JOIN_PITCHES * t.pitch * at[2]):
                n = write_cluster(t, i, n, c)
                c = Cluster()
            c = with_return(c, at, t.fresh[i, h], t.heights[i, h])
            last = k
    return write_cluster(t, i, n, c)
