"""Kernels that write the observations declared in `observations.py`. Their layouts are NavRL's."""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import TWO_PI, normal2, uniform4
from fledge.tasks.navigation.physics.quadrotor import yaw_of
from fledge.tasks.navigation.physics.shapes import is_standing, overlaps_height, width_class, width_of
from fledge.tasks.navigation.physics.structs import (
    Beams,
    Drones,
    Maps,
    Obs,
    Params,
    Result,
    goal_frame,
    to_goal_frame,
    to_world,
)
from fledge.tasks.navigation.physics.terrain import HEIGHT_STEP, SOLID, cell_at
from fledge.tasks.navigation.physics.voxels import cast_four_voxels, is_solid_around
from fledge.tasks.navigation.sensing.observations import ATTITUDE, DYNAMIC_OBSTACLE, NEAREST, POSE, STATE
from fledge.tasks.navigation.sensing.peers import PEER_KIND, num_peers, peer, peer_class, sees_peer
from fledge.tasks.navigation.sensing.raycast import cast_four

P_LIDAR = wp.uint32(int(Purpose.LIDAR_NOISE))
P_STATE = wp.uint32(int(Purpose.STATE_NOISE))
FIRST = wp.uint32(0x80000000)

# columns
TO_GOAL, FLAT, UP, VEL = STATE.starts
M_UNIT, M_FLAT, M_UP, M_VEL, M_WIDTH, M_BOX = DYNAMIC_OBSTACLE.starts
M_COLUMNS = DYNAMIC_OBSTACLE.width
HEIGHT, YAW = POSE.starts
ROLL, PITCH = ATTITUDE.starts

distances = wp.types.vector(length=NEAREST, dtype=wp.float32)
indices = wp.types.vector(length=NEAREST, dtype=wp.int32)


@wp.func
def takes_part(i: int, only_ended: int, result: Result) -> bool:
    """Return whether a kernel handles drone i: always, or with `only_ended` if the drone's episode ended in this step."""
    return only_ended == 0 or result.terminated[i] or result.truncated[i]


@wp.func
def scan_azimuth(i: int, h: int, p: Params, maps: Maps, beams: Beams, drones: Drones, obs: Obs):
    """Write the beams of azimuth h of drone i; four elevations are cast together."""
    angle = yaw_of(drones.quat[i]) + TWO_PI * float(h) / float(p.lidar_azimuths)
    dx = wp.cos(angle)
    dy = wp.sin(angle)
    if dx != dx:
        return  # a walk along NaN would not end
    pos = drones.pos[i]
    for g in range((p.elevations + 3) / 4):
        d = wp.vec4()
        if p.voxels == 1:
            w = maps.voxels.world[drones.slot[i]]
            d = cast_four_voxels(maps.voxels, w, pos, dx, dy, beams.slope[g], beams.cosine[g], p.lidar_range_m)
        else:
            d = cast_four(maps.grid, drones.slot[i], pos, dx, dy, beams.slope[g], beams.cosine[g], p.lidar_range_m)
        for k in range(4):
            v = 4 * g + k
            if v < p.elevations:
                obs.lidar[i, h * p.elevations + v] = p.lidar_range_m - d[k]


@wp.kernel(enable_backward=False)
def scan(first: int, only_ended: int, p: Params, maps: Maps, beams: Beams, drones: Drones, result: Result, obs: Obs):
    """Write the observation `lidar`, one thread per azimuth."""
    tid = wp.tid()
    i = first + tid / p.lidar_azimuths
    if takes_part(i, only_ended, result):
        scan_azimuth(i, tid - (i - first) * p.lidar_azimuths, p, maps, beams, drones, obs)


@wp.func
def clear_observations(i: int, p: Params, obs: Obs):
    """Write zeros to the observations of drone i, except to `direction` and `pose`: no hits, no movers, goal reached."""
    for n in range(p.lidar_azimuths * p.elevations):
        obs.lidar[i, n] = 0.0
    for n in range(NEAREST * M_COLUMNS):
        obs.dynamic_obstacle[i, n] = 0.0
    for n in range(obs.state.shape[1]):
        obs.state[i, n] = 0.0


@wp.func
def noise_draw(n: int, drones: Drones, i: int) -> wp.uint32:
    """Return the fourth word of the random-number counter (`core.random`) for noise value n.

    It differs between the first observation of an episode and the last of the previous episode, which have the same clock.
    """
    return wp.uint32(n) + wp.where(drones.step[i] == 0, FIRST, wp.uint32(0))


@wp.func
def add_lidar_noise(i: int, p: Params, maps: Maps, drones: Drones, obs: Obs):
    """Add a Gaussian error to the LiDAR hits of drone i, and drop some of them."""
    if p.lidar_noise_m == 0.0 and p.lidar_noise_per_m2 == 0.0 and p.lidar_dropout == 0.0:
        return
    drone = wp.uint32(i + p.env_offset)
    when = wp.uint32(maps.clock[0])
    for n in range(p.lidar_azimuths * p.elevations):
        if obs.lidar[i, n] > 0.0:
            u = uniform4(drone, when, P_LIDAR, noise_draw(n, drones, i), p.seed)
            distance = p.lidar_range_m - obs.lidar[i, n]
            sigma = p.lidar_noise_m + p.lidar_noise_per_m2 * distance * distance
            noisy = obs.lidar[i, n] + sigma * normal2(u[0], u[1])[0]
            obs.lidar[i, n] = wp.clamp(noisy, 0.0, p.lidar_range_m)
            if u[2] < p.lidar_dropout:
                obs.lidar[i, n] = 0.0


@wp.func
def observe_self(i: int, p: Params, maps: Maps, drones: Drones, obs: Obs):
    """Write the observations `state`, `direction`, `pose` and `attitude` of drone i."""
    start = drones.start[i]
    goal = drones.goal[i]
    x_axis = goal_frame(start, goal)
    to_goal = goal - drones.pos[i]
    vel = to_goal_frame(drones.vel[i], x_axis)
    if p.state_noise > 0.0:
        drone = wp.uint32(i + p.env_offset)
        when = wp.uint32(maps.clock[0])
        a = uniform4(drone, when, P_STATE, noise_draw(0, drones, i), p.seed)
        b = uniform4(drone, when, P_STATE, noise_draw(1, drones, i), p.seed)
        n0 = normal2(a[0], a[1])
        n1 = normal2(a[2], a[3])
        n2 = normal2(b[0], b[1])
        to_goal = to_goal + p.state_noise * wp.vec3(n0[0], n0[1], n1[0])
        vel = vel + p.state_noise * wp.vec3(n1[1], n2[0], n2[1])
    unit = to_goal_frame(to_goal / wp.max(wp.length(to_goal), 1.0e-6), x_axis)
    for k in range(3):
        obs.state[i, TO_GOAL + k] = unit[k]
        obs.state[i, VEL + k] = vel[k]
    obs.state[i, FLAT] = wp.sqrt(to_goal[0] * to_goal[0] + to_goal[1] * to_goal[1])
    obs.state[i, UP] = to_goal[2]
    obs.direction[i, 0] = goal[0] - start[0]
    obs.direction[i, 1] = goal[1] - start[1]
    obs.direction[i, 2] = 0.0
    if obs.pose.shape[1] > 0:
        turned = yaw_of(drones.quat[i]) - wp.atan2(x_axis[1], x_axis[0])
        obs.pose[i, HEIGHT] = drones.pos[i][2]
        obs.pose[i, YAW] = turned - TWO_PI * wp.floor(turned / TWO_PI + 0.5)
    if p.lidar_tilts == 1:
        q = drones.quat[i]
        obs.attitude[i, ROLL] = wp.atan2(2.0 * (q[3] * q[0] + q[1] * q[2]), 1.0 - 2.0 * (q[0] * q[0] + q[1] * q[1]))
        obs.attitude[i, PITCH] = wp.asin(wp.clamp(2.0 * (q[3] * q[1] - q[2] * q[0]), -1.0, 1.0))


@wp.func
def clear_mover(i: int, k: int, obs: Obs):
    """Write an empty row k of the observation `dynamic_obstacle`."""
    for m in range(M_COLUMNS):
        obs.dynamic_obstacle[i, M_COLUMNS * k + m] = 0.0


@wp.func
def write_mover(
    i: int, k: int, kind: int, offset: wp.vec3, flat: float, vel: wp.vec3, width: float, x_axis: wp.vec2, obs: Obs
):
    """Write row k of the observation `dynamic_obstacle`; `offset` (m) and `vel` (m/s) are in the world's frame.

    `flat` is the horizontal length of `offset`, m, `width` the width class.
    """
    row = M_COLUMNS * k
    unit = to_goal_frame(offset / wp.max(wp.length(offset), 1.0e-6), x_axis)
    vel_g = to_goal_frame(vel, x_axis)
    for m in range(3):
        obs.dynamic_obstacle[i, row + M_UNIT + m] = unit[m]
        obs.dynamic_obstacle[i, row + M_VEL + m] = vel_g[m]
    obs.dynamic_obstacle[i, row + M_FLAT] = flat
    obs.dynamic_obstacle[i, row + M_UP] = offset[2]
    obs.dynamic_obstacle[i, row + M_WIDTH] = width
    obs.dynamic_obstacle[i, row + M_BOX] = wp.where(is_standing(kind), 0.0, 1.0)


@wp.func
def observe_obstacles(i: int, p: Params, maps: Maps, drones: Drones, obs: Obs) -> wp.vec2:
    """Write the observation `dynamic_obstacle`, the nearest moving obstacles within range, and return two numbers.

    They are the mean logarithm of the distances to the obstacles' surfaces, where a missing obstacle counts as being
    at the LiDAR's range, and the smallest of these distances, m.
    """
    slot = drones.slot[i]
    pos = drones.pos[i]
    last = p.decimation - 1
    near = distances(1.0e9)
    index = indices(-1)
    reach = p.lidar_range_m * p.lidar_range_m
    crowd = maps.crowd.count[slot]
    j = int(0)
    while j < crowd + num_peers(p):  # not range(), see `scan_columns`
        c = wp.vec3()
        if j < crowd:
            c = maps.crowd.trail[last, slot, j]
        else:
            c = drones.pos[peer(p, i, j - crowd)]
        d = (c[0] - pos[0]) * (c[0] - pos[0]) + (c[1] - pos[1]) * (c[1] - pos[1])
        shown = d <= reach and d < near[NEAREST - 1]
        if j >= crowd and shown:
            shown = sees_peer(p, maps, drones, i, peer(p, i, j - crowd))
        if shown:
            carried = j
            for k in range(NEAREST):
                if d < near[k]:
                    shifted = near[k]
                    near[k] = d
                    d = shifted
                    moved = index[k]
                    index[k] = carried
                    carried = moved
        j += 1
    x_axis = goal_frame(drones.start[i], drones.goal[i])
    logs = float(0.0)
    missing = wp.log(p.lidar_range_m)
    closest = float(p.lidar_range_m)
    for k in range(NEAREST):
        j = index[k]
        if j < 0:
            clear_mover(i, k, obs)
            logs = logs + missing
        elif j >= crowd:
            o = peer(p, i, j - crowd)
            offset = drones.pos[o] - pos
            write_mover(i, k, PEER_KIND, offset, wp.sqrt(near[k]), drones.vel[o], peer_class(p), x_axis, obs)
            surface = wp.length(offset) - p.collision_radius_m
            logs = logs + wp.log(wp.clamp(surface, 1.0e-6, p.lidar_range_m))
            closest = wp.min(closest, surface)
        else:
            offset = maps.crowd.trail[last, slot, j] - pos
            kind = maps.crowd.kinds[j]
            if is_standing(kind):
                offset = wp.vec3(offset[0], offset[1], 0.0)
            away = wp.length(offset)
            vel = maps.crowd.vel[slot, j]
            write_mover(i, k, kind, offset, wp.sqrt(near[k]), vel, width_class(kind), x_axis, obs)
            surface = away - 0.5 * width_of(kind)
            logs = logs + wp.log(wp.clamp(surface, 1.0e-6, p.lidar_range_m))
            closest = wp.min(closest, surface)
    return wp.vec2(logs / float(NEAREST), closest)


@wp.kernel(enable_backward=False)
def draw_grid(first: int, only_ended: int, p: Params, maps: Maps, drones: Drones, result: Result, obs: Obs):
    """Write the observation `grid_map`, one thread per row. The drone is in the centre.

    The row index grows along x of the goal frame, the column index along y.
    A cell is occupied if a column or moving obstacle covers it at the drone's height, give or take the drone's radius.
    """
    tid = wp.tid()
    i = first + tid / p.grid_size
    r = tid - (i - first) * p.grid_size
    if not takes_part(i, only_ended, result):
        return
    slot = drones.slot[i]
    pos = drones.pos[i]
    x_axis = goal_frame(drones.start[i], drones.goal[i])
    half = 0.5 * float(p.grid_size)
    last = p.decimation - 1
    for c in range(p.grid_size):
        local = wp.vec3(
            (float(r) + 0.5 - half) * p.grid_resolution_m, (float(c) + 0.5 - half) * p.grid_resolution_m, 0.0
        )
        point = pos + to_world(local, x_axis)
        occupied = wp.uint8(0)
        cell = cell_at(point[0], point[1])
        if p.voxels == 1:
            if is_solid_around(maps.voxels, maps.voxels.world[slot], point, p.collision_radius_m):
                occupied = wp.uint8(1)
        elif cell >= 0:
            value = int(maps.grid[slot, cell])
            if value >= SOLID and float(value - SOLID) * HEIGHT_STEP > pos[2] - p.collision_radius_m:
                occupied = wp.uint8(1)
        obs.grid_map[i, r * p.grid_size + c] = occupied
    for j in range(maps.crowd.count[slot]):
        centre = maps.crowd.trail[last, slot, j]
        offset = to_goal_frame(centre - pos, x_axis)
        kind = maps.crowd.kinds[j]
        w = 0.5 * width_of(kind)
        along = (float(r) + 0.5 - half) * p.grid_resolution_m - offset[0]
        if overlaps_height(kind, offset[2], p.collision_radius_m) and wp.abs(along) <= w:
            across = wp.sqrt(wp.max(w * w - along * along, 0.0))
            low = int(wp.ceil((offset[1] - across) / p.grid_resolution_m + half - 0.5))
            high = int(wp.floor((offset[1] + across) / p.grid_resolution_m + half - 0.5))
            for c in range(wp.max(low, 0), wp.min(high, p.grid_size - 1) + 1):
                obs.grid_map[i, r * p.grid_size + c] = wp.uint8(1)
