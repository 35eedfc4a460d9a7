"""LiDAR beams that hit moving obstacles and other drones (`env.lidar_sees_movers`)."""

import warp as wp

from fledge.envs.kernel_random import TWO_PI
from fledge.tasks.navigation.physics.quadrotor import heading_of
from fledge.tasks.navigation.physics.shapes import ray_distance, width_of
from fledge.tasks.navigation.physics.structs import Beams, Drones, Maps, Obs, Params, Result, has_landed
from fledge.tasks.navigation.sensing.observe import takes_part
from fledge.tasks.navigation.sensing.peers import num_peers, peer, peer_distance


@wp.func
def beam_ray(beams: Beams, head: wp.vec2, h: int, v: int) -> wp.vec3:
    """Return the unit vector of beam (h, v) of a drone with the heading `head`, world."""
    ray = beams.around[h]
    rise = beams.rise[v]
    x = head[0] * ray[0] - head[1] * ray[1]
    y = head[1] * ray[0] + head[0] * ray[1]
    return rise[1] * wp.vec3(x, y, rise[0])


@wp.func
def covered_azimuths(p: Params, pos: wp.vec3, head: wp.vec2, c: wp.vec3, reach: float) -> wp.vec2i:
    """Return the first and the last azimuth, as numbers of beams, that an obstacle within `reach` of point c can cover.

    They may be negative; (0, -1) if the obstacle is out of range.
    """
    dx = c[0] - pos[0]
    dy = c[1] - pos[1]
    away = wp.sqrt(dx * dx + dy * dy)
    if away >= p.lidar_range_m + reach:
        return wp.vec2i(0, -1)
    half = wp.where(away > reach, wp.asin(wp.min(reach / away, 1.0)), 3.1415927)
    pitch = TWO_PI / float(p.lidar_azimuths)
    centre = wp.atan2(head[0] * dy - head[1] * dx, head[0] * dx + head[1] * dy) / pitch
    low = int(wp.floor(centre - half / pitch))
    high = wp.min(int(wp.ceil(centre + half / pitch)), low + p.lidar_azimuths - 1)
    return wp.vec2i(low, high)


@wp.kernel(enable_backward=False)
def scan_movers(
    first: int, only_ended: int, p: Params, maps: Maps, beams: Beams, drones: Drones, result: Result, obs: Obs
):
    """Shorten the beams that hit movers or peers, each tested only at the azimuths that it can cover; a thread per drone."""
    i = first + wp.tid()
    if not takes_part(i, only_ended, result):
        return
    slot = drones.slot[i]
    pos = drones.pos[i]
    head = heading_of(drones.quat[i])
    last = p.decimation - 1
    for j in range(maps.crowd.count[slot]):
        c = maps.crowd.trail[last, slot, j]
        kind = maps.crowd.kinds[j]
        reach = width_of(kind) * 0.70710678  # circumscribed circle of a square footprint
        covered = covered_azimuths(p, pos, head, c, reach)
        for b in range(covered[0], covered[1] + 1):
            h = ((b % p.lidar_azimuths) + p.lidar_azimuths) % p.lidar_azimuths
            for v in range(p.elevations):
                d = ray_distance(kind, pos, beam_ray(beams, head, h, v), c)
                n = h * p.elevations + v
                obs.lidar[i, n] = wp.max(obs.lidar[i, n], p.lidar_range_m - d)
    for m in range(num_peers(p)):
        o = peer(p, i, m)
        if not has_landed(drones, o):
            covered = covered_azimuths(p, pos, head, drones.pos[o], p.collision_radius_m)
            for b in range(covered[0], covered[1] + 1):
                h = ((b % p.lidar_azimuths) + p.lidar_azimuths) % p.lidar_azimuths
                for v in range(p.elevations):
                    d = peer_distance(p, pos, beam_ray(beams, head, h, v), drones.pos[o])
                    n = h * p.elevations + v
                    obs.lidar[i, n] = wp.max(obs.lidar[i, n], p.lidar_range_m - d)
