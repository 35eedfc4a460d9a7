"""Scans of sensors whose rays are cast one by one: cameras, tilting, non-repetitive or blind nearby. See `rays`."""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import uniform4
from fledge.tasks.navigation.physics.quadrotor import yaw_of
from fledge.tasks.navigation.physics.shapes import ray_distance, width_of
from fledge.tasks.navigation.physics.structs import Beams, Drones, Maps, Obs, Params, Result, has_landed
from fledge.tasks.navigation.physics.voxels import cast_voxels
from fledge.tasks.navigation.sensing.observe import noise_draw, takes_part
from fledge.tasks.navigation.sensing.peers import num_peers, peer, peer_distance
from fledge.tasks.navigation.sensing.raycast import cast_ray

P_RAY = wp.uint32(int(Purpose.LIDAR_RAY))
LISTED = 24  # movers that a column of rays may meet; if there are more, each ray is tested against all movers
SAMPLES = 8  # rays of a column by which its azimuths are found; they are at most 23 degrees apart
STEEP = 0.9  # sine of the elevation above which a column of rays counts as looking to all sides
LEVEL = 0.25  # smallest cosine of the elevation of a column whose sampled rays are not that steep
AROUND = 3.1415927

members = wp.types.vector(length=LISTED, dtype=wp.int32)


@wp.func
def ray_of(i: int, h: int, v: int, p: Params, maps: Maps, beams: Beams, drones: Drones) -> wp.vec3:
    """Return the unit vector of ray (h, v) in this scan, in the sensor's frame."""
    n = h * p.elevations + v
    if p.lidar_jitter == 0:
        return beams.rays[n]
    u = uniform4(wp.uint32(i + p.env_offset), wp.uint32(maps.clock[0]), P_RAY, noise_draw(n, drones, i), p.seed)
    around = beams.first[0] + (float(h) + u[0]) * beams.bin[0]
    up = beams.first[1] + (float(v) + u[1]) * beams.bin[1]
    return wp.vec3(wp.cos(up) * wp.cos(around), wp.cos(up) * wp.sin(around), wp.sin(up))


@wp.func
def azimuths_of(h: int, p: Params, beams: Beams, quat: wp.quat) -> wp.vec2:
    """Return the middle and half of the world azimuths, rad, that the rays of column h may have.

    Without jitter the rays lie on a great circle, along which the azimuth is monotonic; some of them are sampled.
    """
    low = wp.quat_rotate(quat, beams.rays[h * p.elevations])
    ray = low
    turn = float(0.0)
    steep = wp.abs(low[2])
    for k in range(1, SAMPLES + 1):
        up = wp.quat_rotate(quat, beams.rays[h * p.elevations + k * (p.elevations - 1) / SAMPLES])
        turn = turn + wp.atan2(ray[0] * up[1] - ray[1] * up[0], ray[0] * up[0] + ray[1] * up[1])
        steep = wp.max(steep, wp.abs(up[2]))
        ray = up
    if steep > STEEP:
        return wp.vec2(0.0, AROUND)
    slack = wp.where(p.lidar_jitter == 1, wp.max(beams.bin[0], beams.bin[1]) / LEVEL, 0.0)
    return wp.vec2(wp.atan2(low[1], low[0]) + 0.5 * turn, 0.5 * wp.abs(turn) + slack + 0.01)


@wp.func
def may_meet(kind: int, away: wp.vec3, span: wp.vec2, range_m: float) -> bool:
    """Return whether rays of these azimuths (middle and half) may hit a mover; `away` points to its centre, m, world."""
    reach = width_of(kind) * 0.70710678  # circumscribed circle of a square footprint
    flat = wp.sqrt(away[0] * away[0] + away[1] * away[1])
    if flat <= reach:
        return True
    if flat > range_m + reach:
        return False
    turn = wp.atan2(away[1], away[0]) - span[0]
    turn = wp.abs(turn - 2.0 * AROUND * wp.floor(turn / (2.0 * AROUND) + 0.5))
    return turn <= span[1] + wp.asin(reach / flat)


@wp.func
def passes_near(kind: int, away: wp.vec3, ray: wp.vec3) -> bool:
    """Return whether a ray, seen from above, passes through the circle around a mover; `away` points to its centre, m."""
    reach = width_of(kind) * 0.7072
    across = away[0] * ray[1] - away[1] * ray[0]
    return across * across <= reach * reach * (ray[0] * ray[0] + ray[1] * ray[1])


@wp.kernel(enable_backward=False)
def scan_rays(
    first: int, only_ended: int, p: Params, maps: Maps, beams: Beams, drones: Drones, result: Result, obs: Obs
):
    """Write the observation `lidar` with static obstacles, movers and other drones, one thread per column of rays."""
    tid = wp.tid()
    i = first + tid / p.lidar_azimuths
    h = tid - (i - first) * p.lidar_azimuths
    if not takes_part(i, only_ended, result):
        return
    pos = drones.pos[i]
    slot = drones.slot[i]
    last = p.decimation - 1
    quat = drones.quat[i]
    if p.lidar_tilts == 0:
        quat = wp.quat_from_axis_angle(wp.vec3(0.0, 0.0, 1.0), yaw_of(quat))
    movers = int(0)
    listed = int(0)
    near = members()
    if p.lidar_sees_movers == 1:
        movers = maps.crowd.count[slot]
        span = azimuths_of(h, p, beams, quat)
        for j in range(movers):
            away = maps.crowd.trail[last, slot, j] - pos
            if may_meet(maps.crowd.kinds[j], away, span, p.lidar_range_m):
                if listed < LISTED:
                    near[listed] = j
                listed = listed + 1
    if listed <= LISTED:
        movers = listed
    for v in range(p.elevations):
        ray = wp.quat_rotate(quat, ray_of(i, h, v, p, maps, beams, drones))
        d = float(p.lidar_range_m)
        for k in range(movers):
            j = k
            if listed <= LISTED:
                j = near[k]
            centre = maps.crowd.trail[last, slot, j]
            if passes_near(maps.crowd.kinds[j], centre - pos, ray):
                d = wp.min(d, ray_distance(maps.crowd.kinds[j], pos, ray, centre))
        if p.lidar_sees_movers == 1:
            for m in range(num_peers(p)):
                o = peer(p, i, m)
                if not has_landed(drones, o):
                    d = wp.min(d, peer_distance(p, pos, ray, drones.pos[o]))
        if p.voxels == 1:
            d = cast_voxels(maps.voxels, maps.voxels.world[slot], pos, ray, d)
        else:
            d = cast_ray(maps.grid, slot, pos, ray, d)
        obs.lidar[i, h * p.elevations + v] = wp.where(d < p.lidar_min_range_m, 0.0, p.lidar_range_m - d)
