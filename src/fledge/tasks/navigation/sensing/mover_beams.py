"""LiDAR beams that hit moving obstacles and other drones (`env.lidar_sees_movers`)."""

import warp as wp

from fledge.envs.kernel_random import TWO_PI
from fledge.tasks.navigation.physics.quadrotor import yaw_of
from fledge.tasks.navigation.physics.shapes import ray_distance, width_of
from fledge.tasks.navigation.physics.structs import Beams, Drones, Maps, Obs, Params, has_landed
from fledge.tasks.navigation.sensing.peers import num_peers, peer, peer_distance


@wp.func
def beam_ray(beams: Beams, angle: float, v: int) -> wp.vec3:
    """Return the unit vector of the beam at elevation number v and an azimuth in radians, world."""
    cosine = beams.cosine[v / 4][v % 4]
    return wp.vec3(cosine * wp.cos(angle), cosine * wp.sin(angle), cosine * beams.slope[v / 4][v % 4])


@wp.func
def covered_azimuths(p: Params, pos: wp.vec3, yaw: float, c: wp.vec3, reach: float) -> wp.vec2i:
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
    centre = (wp.atan2(dy, dx) - yaw) / pitch
    low = int(wp.floor(centre - half / pitch))
    high = wp.min(int(wp.ceil(centre + half / pitch)), low + p.lidar_azimuths - 1)
    return wp.vec2i(low, high)


@wp.func
def scan_movers(i: int, p: Params, maps: Maps, beams: Beams, drones: Drones, obs: Obs):
    """Shorten the beams that hit moving obstacles; each obstacle is tested only at the azimuths that it can cover."""
    slot = drones.slot[i]
    pos = drones.pos[i]
    yaw = yaw_of(drones.quat[i])
    last = p.decimation - 1
    for j in range(maps.crowd.count[slot]):
        c = maps.crowd.trail[last, slot, j]
        kind = maps.crowd.kinds[j]
        reach = width_of(kind) * 0.70710678  # circumscribed circle of a square footprint
        covered = covered_azimuths(p, pos, yaw, c, reach)
        for b in range(covered[0], covered[1] + 1):
            h = ((b % p.lidar_azimuths) + p.lidar_azimuths) % p.lidar_azimuths
            angle = yaw + TWO_PI * float(h) / float(p.lidar_azimuths)
            for v in range(p.elevations):
                d = ray_distance(kind, pos, beam_ray(beams, angle, v), c)
                n = h * p.elevations + v
                obs.lidar[i, n] = wp.max(obs.lidar[i, n], p.lidar_range_m - d)
    for m in range(num_peers(p)):
        o = peer(p, i, m)
        if not has_landed(drones, o):
            covered = covered_azimuths(p, pos, yaw, drones.pos[o], p.collision_radius_m)
            for b in range(covered[0], covered[1] + 1):
                h = ((b % p.lidar_azimuths) + p.lidar_azimuths) % p.lidar_azimuths
                angle = yaw + TWO_PI * float(h) / float(p.lidar_azimuths)
                for v in range(p.elevations):
                    d = peer_distance(p, pos, beam_ray(beams, angle, v), drones.pos[o])
                    n = h * p.elevations + v
                    obs.lidar[i, n] = wp.max(obs.lidar[i, n], p.lidar_range_m - d)
