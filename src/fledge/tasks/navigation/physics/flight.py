"""Kernels for the physics of a decision: commands, dynamics, collisions, goal. One thread per drone."""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import TWO_PI, normal2, uniform4
from fledge.tasks.navigation.physics.bodies import touches_columns, touches_movers
from fledge.tasks.navigation.physics.crowd import Crowd
from fledge.tasks.navigation.physics.quadrotor import DAMPING, Airframe, Body, step_first_order, step_quadrotor, yaw_of
from fledge.tasks.navigation.physics.shapes import WIDEST_M, is_touching
from fledge.tasks.navigation.physics.structs import (
    BEAMS,
    FIRST_ORDER,
    HEADINGS,
    LEE,
    SPHERE,
    Beams,
    Drones,
    Maps,
    Outcome,
    Params,
    Trail,
    goal_frame,
    step_limit,
    to_world,
    turned,
)
from fledge.tasks.navigation.physics.terrain import HALF_M, SOLID, cell_at, free_distance
from fledge.tasks.navigation.physics.voxels import is_outside, touches_voxels
from fledge.tasks.navigation.sensing.raycast import cast_four

SUCCESS = int(Outcome.SUCCESS)
STATIC = int(Outcome.COLLISION_STATIC)
MOVING = int(Outcome.COLLISION_MOVING)
BOUNDS = int(Outcome.OUT_OF_BOUNDS)
BODY_AZIMUTHS = 36  # as in NavRL, whose LiDAR detects collisions
P_WIND = wp.uint32(int(Purpose.WIND))
P_DOMAIN = wp.uint32(int(Purpose.DOMAIN))
CLIMB_GAIN = 1.0  # 1/s: gain that holds the height in the headings form


@wp.func
def beams_hit(p: Params, maps: Maps, beams: Beams, slot: int, pos: wp.vec3, yaw: float) -> bool:
    """Return whether a column is within the drone's radius by NavRL's rule: a fixed ring of beams, whatever the LiDAR is.

    Beams are cast only if the distance field allows a collision.
    """
    cell = cell_at(pos[0], pos[1])
    if cell < 0:
        return False
    value = int(maps.grid[slot, cell])
    radius = p.collision_radius_m
    if value < SOLID and free_distance(value) >= radius:
        return False
    for h in range(BODY_AZIMUTHS):
        angle = yaw + TWO_PI * float(h) / float(BODY_AZIMUTHS)
        d = cast_four(maps.grid, slot, pos, wp.cos(angle), wp.sin(angle), beams.body_slope, beams.body_cosine, radius)
        if wp.min(d) < radius:
            return True
    return False


@wp.func
def is_near_mover(p: Params, crowd: Crowd, k: int, slot: int, pos: wp.vec3) -> bool:
    """Return whether the drone touches a moving obstacle in physics step k of the decision, by NavRL's rule."""
    near = 0.5 * WIDEST_M + p.collision_radius_m
    j = int(0)
    while j < crowd.count[slot]:  # not range(), see `scan_columns`
        away = crowd.trail[k, slot, j] - pos
        if wp.abs(away[0]) <= near and is_touching(crowd.kinds[j], away, p.collision_radius_m):
            return True
        j += 1
    return False


@wp.func
def collision(p: Params, maps: Maps, beams: Beams, k: int, slot: int, was: wp.vec3, pos: wp.vec3, yaw: float) -> int:
    """Return STATIC or MOVING if the drone collides in physics step k, in which it flies from `was` to `pos`, else 0."""
    if p.collision == BEAMS:
        if beams_hit(p, maps, beams, slot, pos, yaw):
            return STATIC
        return wp.where(is_near_mover(p, maps.crowd, k, slot, pos), MOVING, 0)
    if p.voxels == 1:
        if touches_voxels(p, maps.voxels, maps.voxels.world[slot], was, pos):
            return STATIC
    elif touches_columns(p, maps.grid, slot, was, pos):
        return STATIC
    return wp.where(touches_movers(p, maps.crowd, k, slot, was, pos), MOVING, 0)


@wp.func
def velocity_command(p: Params, action: wp.array2d(dtype=wp.float32), i: int, pos: wp.vec3, goal: wp.vec3) -> wp.vec3:
    """Return the velocity that drone i's action commands, m/s in the goal frame."""
    if p.action_form == HEADINGS:
        angle = TWO_PI * action[i, 0] / float(p.num_headings)
        climb = wp.clamp(CLIMB_GAIN * (goal[2] - pos[2]), -p.speed_limit, p.speed_limit)
        return wp.vec3(p.speed_limit * wp.cos(angle), p.speed_limit * wp.sin(angle), climb)
    span = 2.0 * p.speed_limit
    return wp.vec3(
        span * wp.clamp(action[i, 0], 0.0, 1.0) - p.speed_limit,
        span * wp.clamp(action[i, 1], 0.0, 1.0) - p.speed_limit,
        span * wp.clamp(action[i, 2], 0.0, 1.0) - p.speed_limit,
    )


@wp.func
def world_command(p: Params, drones: Drones, action: wp.array2d(dtype=wp.float32), i: int) -> wp.vec3:
    """Return the velocity that drone i's action commands, m/s, world."""
    drift = drones.drift[i]
    goal = drones.goal[i]
    estimate = drones.pos[i] + wp.vec3(drift[0], drift[1], drift[2])
    command = to_world(velocity_command(p, action, i, estimate, goal), goal_frame(drones.start[i], goal))
    if drift[3] != 0.0:
        command = turned(command, -drift[3])  # the drone turns it into the world by its estimated yaw
    return command


@wp.func
def late_command(p: Params, drones: Drones, i: int, step: int, command: wp.vec3) -> wp.vec3:
    """Remember a command of drone i, and return the one that it receives in this physics step."""
    if p.latency_steps == 0:
        return command
    ring = p.latency_steps + 1
    drones.commands[i, step % ring] = command
    return drones.commands[i, (step - drones.latency[i] + ring) % ring]


@wp.func
def airframe_of(drones: Drones, i: int) -> Airframe:
    factors = drones.frame[i]
    tuning = drones.tuning[i]
    frame = Airframe()
    frame.mass = factors[0]
    frame.thrust = factors[1]
    frame.damping = factors[2]
    frame.velocity_gain = tuning[0]
    frame.attitude_gain = tuning[1]
    frame.drag = tuning[2]
    frame.lag = tuning[3]
    frame.wind = drones.wind[i]
    return frame


@wp.func
def gust(p: Params, drone: wp.uint32, episode: wp.uint32, time: int, wind: wp.vec3, keep: float) -> wp.vec3:
    """Return the acceleration by wind at a time, m/s², from that of `wind` before: an Ornstein-Uhlenbeck process.

    `keep` is the correlation of the two; with keep = 0, the result is drawn from the stationary distribution.
    """
    strength = p.wind_m_s2 * uniform4(drone, episode, P_DOMAIN, wp.uint32(2), p.seed)[0]
    u = uniform4(drone, wp.uint32(time), P_WIND, episode, p.seed)
    a = normal2(u[0], u[1])
    b = normal2(u[2], u[3])
    return keep * wind + strength * wp.sqrt(1.0 - keep * keep) * wp.vec3(a[0], a[1], 0.5 * b[0])


@wp.func
def is_out(p: Params, maps: Maps, slot: int, pos: wp.vec3) -> bool:
    """Return whether a drone is too low or too high, a sphere on the ground or, on maps with walls, off the map.

    In worlds of voxels: whether it is outside of the world, in scenes also whether it is too low or too high.
    """
    if p.scene == 1 and (pos[2] < p.min_height_m or pos[2] > p.max_height_m):
        return True
    if p.voxels == 1:
        return is_outside(maps.voxels, maps.voxels.world[slot], pos)
    if p.collision == SPHERE and pos[2] < p.collision_radius_m:
        return True
    if pos[2] < p.min_height_m or pos[2] > p.max_height_m:
        return True
    return p.walls == 1 and wp.max(wp.abs(pos[0]), wp.abs(pos[1])) > HALF_M


@wp.func
def outside_band(z: float, start: wp.vec3, goal: wp.vec3) -> float:
    """Return the distance, m, of height z from the band between start and goal ± 0.2 m; 0 inside the band."""
    low = wp.min(start[2], goal[2]) - 0.2
    high = wp.max(start[2], goal[2]) + 0.2
    return wp.max(wp.max(low - z, z - high), 0.0)


@wp.kernel(enable_backward=False)
def command(
    first: int, p: Params, action: wp.array2d(dtype=wp.float32), drones: Drones, commands: wp.array2d(dtype=wp.vec3)
):
    """Write the velocity command of every physics step of a decision, [decimation, N], for another simulator."""
    i = first + wp.tid()
    wanted = world_command(p, drones, action, i)
    for k in range(p.decimation):
        commands[k, i] = late_command(p, drones, i, drones.step[i] + k, wanted)


@wp.kernel(enable_backward=False)
def fly(
    first: int,
    p: Params,
    maps: Maps,
    beams: Beams,
    action: wp.array2d(dtype=wp.float32),
    drones: Drones,
    trail: Trail,
):
    """Fly all drones for one decision of `decimation` physics steps, each only until an event ends its episode."""
    i = first + wp.tid()
    slot = drones.slot[i]
    start = drones.start[i]
    goal = drones.goal[i]
    frame = airframe_of(drones, i)
    body = Body()
    body.pos = drones.pos[i]
    body.vel = drones.vel[i]
    body.quat = drones.quat[i]
    body.rate = drones.rate[i]
    body.throttle = drones.throttle[i]
    wanted = world_command(p, drones, action, i)
    before = wp.length(goal - body.pos)
    step = drones.step[i]
    limit = step_limit(p, start, goal, drones.route[i])
    outside = float(0.0)
    elapsed = float(0.0)
    crash = drones.crash[i]  # not 0 only for one of several drones, which rests
    reached = drones.reached[i]
    if p.drones > 1:
        drones.track[i, 0] = body.pos
    for k in range(p.decimation):
        if crash == 0 and (reached == 0 or p.success_ends_episode == 0) and step < limit:
            was = body.pos
            current = late_command(p, drones, i, step, wanted)
            if p.wind_m_s2 > 0.0:
                time = maps.clock[0] - p.decimation + k + 1
                keep = wp.exp(-p.dt_s / p.gust_s)
                frame.wind = gust(p, wp.uint32(i + p.env_offset), wp.uint32(drones.episode[i]), time, frame.wind, keep)
            if p.dynamics == LEE:
                body = step_quadrotor(body, current, frame, DAMPING, p.dt_s)
            elif p.dynamics == FIRST_ORDER:
                body = step_first_order(body, current, frame, DAMPING, p.dt_s)
            else:
                body.pos = trail.pos[k, i]
                body.vel = trail.vel[k, i]
                body.quat = trail.quat[k, i]
                body.rate = trail.rate[k, i]
            step = step + 1
            elapsed = elapsed + p.dt_s
            band = outside_band(body.pos[2], start, goal)
            outside = outside + band * band * p.dt_s
            if is_out(p, maps, slot, body.pos):
                crash = BOUNDS
            else:
                crash = collision(p, maps, beams, k, slot, was, body.pos, yaw_of(body.quat))
            if crash == 0 and wp.length(goal - body.pos) < p.goal_radius_m:
                reached = 1
            if p.drones > 1:
                drones.track[i, k + 1] = body.pos
    drones.pos[i] = body.pos
    drones.vel[i] = body.vel
    drones.quat[i] = body.quat
    drones.rate[i] = body.rate
    drones.throttle[i] = body.throttle
    drones.wind[i] = frame.wind
    drones.step[i] = step
    drones.reached[i] = reached
    drones.crash[i] = crash
    drones.progress[i] = before - wp.length(goal - body.pos)
    drones.outside[i] = outside
    drones.elapsed[i] = elapsed
