"""Kernels for the reward, the end of an episode and the start of the next one. One thread per drone.

Several drones in one world (`env.drones`) share an episode: `conclude` writes how each drone's flight ended, and
`end_together` keeps it only once the flights of all have ended. Until then a drone that reached its goal or crashed rests:
it is no obstacle to others, observes zeros, and gets no reward.
"""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import uniform4
from fledge.tasks.navigation.physics.arena import LANE_HEIGHT_M, LANE_M
from fledge.tasks.navigation.physics.flight import SUCCESS, gust, outside_band
from fledge.tasks.navigation.physics.quadrotor import HOVER_THROTTLE, ROTOR_FILTER
from fledge.tasks.navigation.physics.starts import (
    P_GOAL,
    P_START,
    clear_inside,
    deal_map,
    deal_route,
    edge_point,
    place_in_formation,
    side_point,
)
from fledge.tasks.navigation.physics.structs import (
    CIRCLE,
    CROSSING,
    EDGE_M,
    LANE,
    MIXED,
    ROWS,
    Drones,
    Maps,
    Obs,
    Outcome,
    Params,
    Result,
    has_landed,
    step_limit,
)
from fledge.tasks.navigation.physics.terrain import open_axis
from fledge.tasks.navigation.rewards import KINDS, RewardKind, Step, total_reward
from fledge.tasks.navigation.sensing.observe import (
    add_lidar_noise,
    clear_observations,
    observe_obstacles,
    observe_self,
    takes_part,
)

TIMEOUT = int(Outcome.TIMEOUT)
NAVRL = KINDS.index(RewardKind.navrl)
ROW_WIDTH_M = 32.0
P_DOMAIN = wp.uint32(int(Purpose.DOMAIN))


@wp.func
def read_beams(i: int, p: Params, obs: Obs) -> wp.vec2:
    """Return the shortest LiDAR distance of drone i, m, and the mean of the logarithms of all distances (in m).

    The logarithms are 0 unless the reward is NavRL's. Four distances share a logarithm, which is that of their product.
    """
    beams = p.lidar_azimuths * p.elevations
    missed = wp.log(p.lidar_range_m)
    nearest = float(0.0)
    logs = float(0.0)
    n = int(0)
    while n < beams:  # not range(), see `scan_columns`
        seen = wp.vec4()
        for k in range(4):
            if n + k < beams:
                seen[k] = obs.lidar[i, n + k]
        most = wp.max(seen)
        nearest = wp.max(nearest, most)
        if most == 0.0:
            logs = logs + 4.0 * missed
        elif p.reward_kind == NAVRL:
            product = float(1.0)
            for k in range(4):
                product = product * wp.max(p.lidar_range_m - seen[k], 1.0e-6)
            logs = logs + wp.log(product)
        n += 4
    logs = logs - float(n - beams) * missed  # of the last four, those beyond the last beam
    return wp.vec2(p.lidar_range_m - nearest, logs / float(beams))


@wp.func
def read_step(i: int, p: Params, drones: Drones, logs: wp.vec2) -> Step:
    """Return the inputs of the reward terms; `logs` is the result of `complete`."""
    s = Step()
    to_goal = drones.goal[i] - drones.pos[i]
    s.seconds = drones.elapsed[i]
    s.progress = drones.progress[i]
    s.towards = wp.dot(drones.vel[i], to_goal / wp.max(wp.length(to_goal), 1.0e-6))
    s.outside = outside_band(drones.pos[i][2], drones.start[i], drones.goal[i])
    s.outside_m2s = drones.outside[i]
    s.mover_logs = logs[0]
    if p.reward_kind == NAVRL:
        s.column_logs = logs[1]
    else:
        s.gap = drones.gap[i]
    return s


@wp.func
def complete(i: int, p: Params, maps: Maps, drones: Drones, obs: Obs) -> wp.vec2:
    """Complete drone i's observations after `scan`, except for LiDAR noise.

    Return the mean logarithm of the distances to movers, as in `observe_obstacles`, and that of the beams, as in `read_beams`.
    """
    observe_self(i, p, maps, drones, obs)
    movers = observe_obstacles(i, p, maps, drones, obs)
    columns = read_beams(i, p, obs)
    drones.gap[i] = wp.min(columns[0], movers[1])
    return wp.vec2(movers[0], columns[1])


@wp.kernel(enable_backward=False)
def conclude(first: int, p: Params, maps: Maps, drones: Drones, result: Result, obs: Obs):
    """Complete the observation, compute the reward, and decide whether the episode ended."""
    i = first + wp.tid()
    logs = complete(i, p, maps, drones, obs)
    crash = drones.crash[i]
    reached = drones.reached[i] == 1
    terminated = crash > 0 or (reached and p.success_ends_episode == 1)
    truncated = (not terminated) and drones.step[i] >= step_limit(p, drones.start[i], drones.goal[i], drones.route[i])
    step = read_step(i, p, drones, logs)
    step.crashed = crash > 0
    step.succeeded = terminated and crash == 0
    reward = total_reward(p.reward_kind, p.weights, step, i, result.terms)
    add_lidar_noise(i, p, maps, drones, obs)
    if p.drones > 1 and terminated:
        clear_observations(i, p, obs)
        if drones.elapsed[i] == 0.0:  # it landed in an earlier decision
            reward = 0.0
            for k in range(result.terms.shape[1]):
                result.terms[i, k] = 0.0
    outcome = int(0)
    if terminated or truncated:
        outcome = TIMEOUT
        if crash > 0:
            outcome = crash
        if reached:  # also if the episode went on, and ended otherwise
            outcome = SUCCESS
    total = drones.episode_return[i] + reward
    drones.episode_return[i] = total
    result.reward[i] = reward
    result.terminated[i] = terminated
    result.truncated[i] = truncated
    result.outcome[i] = wp.uint8(outcome)
    result.episode_return[i] = total
    result.episode_length[i] = (drones.step[i] + p.decimation - 1) / p.decimation


@wp.kernel(enable_backward=False)
def end_together(first: int, p: Params, drones: Drones, result: Result):
    """Let the episodes of the drones of one world go on until the flights of all have ended."""
    i = first + wp.tid()
    group = i - i % p.drones
    longest = int(0)
    for j in range(group, group + p.drones):
        longest = wp.max(longest, drones.step[j])
        limit = step_limit(p, drones.start[j], drones.goal[j], drones.route[j])
        if not has_landed(drones, j) and drones.step[j] < limit:
            result.terminated[i] = False
            result.truncated[i] = False
            result.outcome[i] = wp.uint8(0)
    result.episode_length[i] = (longest + p.decimation - 1) / p.decimation


@wp.func
def rotor_filter(lag: float) -> float:
    """Return the share of the throttle error that a rotor removes per step, with its time constant multiplied by `lag`."""
    if lag == 1.0:
        return ROTOR_FILTER
    return 1.0 - wp.pow(1.0 - ROTOR_FILTER, 1.0 / lag)


@wp.func
def begin_episode(i: int, p: Params, maps: Maps, drones: Drones):
    """Put drone i at the start of its next episode. All random numbers depend only on (seed, global index, episode)."""
    episode = drones.episode[i] + 1
    drones.episode[i] = episode
    index = i + p.env_offset
    drone = wp.uint32(index)
    when = wp.uint32(episode)
    slot = deal_map(p, maps, i, drone, when)
    u = uniform4(drone, when, P_START, wp.uint32(0), p.seed)
    start = edge_point(u)
    g = uniform4(drone, when, P_GOAL, wp.uint32(0), p.seed)
    goal = edge_point(g)
    if p.voxels == 1:
        w = maps.voxels.world[slot]
        route = deal_route(p, maps, slot, drone, when)
        start = maps.voxels.start[w, route]
        goal = maps.voxels.goal[w, route]
        drones.route[i] = maps.voxels.length[w, route]
    elif p.starts == ROWS:
        across = float(index) / float(p.total_envs)
        spread = float(index) / wp.max(float(p.total_envs - 1), 1.0)
        start = wp.vec3((across - 0.5) * ROW_WIDTH_M, EDGE_M, 2.0)
        goal = wp.vec3((spread - 0.5) * ROW_WIDTH_M, -EDGE_M, 2.0)
    elif p.starts == MIXED and u[3] < p.inside_share:
        start = clear_inside(p, maps, slot, drone, when, start)
    elif p.starts == CROSSING:
        sign = wp.where(u[0] < 0.5, -1.0, 1.0)
        axis = open_axis(maps.keys[slot])
        if p.drones > 1:  # drones of one world start apart from each other
            u[1] = (float(index % p.drones) + 0.4 * u[1]) / float(p.drones)
        start = side_point(axis, sign, u)
        goal = side_point(axis, -sign, g)
    elif p.starts == LANE:
        start = wp.vec3(0.0, -LANE_M, LANE_HEIGHT_M)
        goal = wp.vec3(0.0, LANE_M, LANE_HEIGHT_M)
    elif p.starts >= CIRCLE:
        both = place_in_formation(p, maps, slot, drone, when)
        start = wp.vec3(both[0], both[1], both[2])
        goal = wp.vec3(both[3], both[4], both[5])
    if p.voxels == 0:
        drones.route[i] = wp.length(goal - start)
    dx = goal[0] - start[0]
    dy = goal[1] - start[1]
    half_yaw = 0.5 * wp.atan2(dy, dx)
    d = uniform4(drone, when, P_DOMAIN, wp.uint32(0), p.seed)
    mass = p.mass_factor * (1.0 + p.mass * (2.0 * d[0] - 1.0))
    thrust = 1.0 + p.thrust * (2.0 * d[1] - 1.0)
    hover = HOVER_THROTTLE * wp.sqrt(mass / thrust)
    drones.frame[i] = wp.vec3(mass, thrust, 1.0 + p.damping * (2.0 * d[2] - 1.0))
    t = uniform4(drone, when, P_DOMAIN, wp.uint32(1), p.seed)
    drones.tuning[i] = wp.vec4(
        1.0 + p.velocity_gain * (2.0 * t[0] - 1.0),
        1.0 + p.attitude_gain * (2.0 * t[1] - 1.0),
        1.0 + p.drag * (2.0 * t[2] - 1.0),
        rotor_filter(1.0 + p.rotor_lag * (2.0 * t[3] - 1.0)),
    )
    drones.wind[i] = wp.vec3()
    if p.wind_m_s2 > 0.0:
        drones.wind[i] = gust(p, drone, when, maps.clock[0], wp.vec3(), 0.0)
    drones.drift[i] = wp.vec4()
    drones.latency[i] = p.latency_min_steps + int(d[3] * float(p.latency_steps - p.latency_min_steps + 1))
    for k in range(p.latency_steps + 1):
        drones.commands[i, k] = wp.vec3()
    drones.pos[i] = start
    drones.vel[i] = wp.vec3()
    drones.quat[i] = wp.quat(0.0, 0.0, wp.sin(half_yaw), wp.cos(half_yaw))
    drones.rate[i] = wp.vec3()
    drones.throttle[i] = wp.vec4(hover, hover, hover, hover)
    drones.start[i] = start
    drones.goal[i] = goal
    drones.slot[i] = slot
    drones.step[i] = 0
    drones.reached[i] = 0
    drones.crash[i] = 0
    drones.progress[i] = 0.0
    drones.outside[i] = 0.0
    drones.elapsed[i] = 0.0
    drones.episode_return[i] = 0.0


@wp.kernel(enable_backward=False)
def keep_final(first: int, result: Result, obs: wp.array2d(dtype=wp.uint8), final: wp.array2d(dtype=wp.uint8)):
    """Copy an observation, as bytes, to `final` for every drone whose episode ended."""
    i = first + wp.tid()
    if takes_part(i, 1, result):
        k = int(0)
        while k < obs.shape[1]:  # not range(), see `scan_columns`
            final[i, k] = obs[i, k]
            k += 1


@wp.kernel(enable_backward=False)
def restart(
    first: int, p: Params, maps: Maps, drones: Drones, mask: wp.array(dtype=wp.bool), other: wp.array(dtype=wp.bool)
):
    """Begin the next episode of every drone for which `mask` or `other` is true."""
    i = first + wp.tid()
    if mask[i] or other[i]:
        begin_episode(i, p, maps, drones)


@wp.kernel(enable_backward=False)
def observe(first: int, only_ended: int, p: Params, maps: Maps, drones: Drones, result: Result, obs: Obs):
    """Complete the observations after `scan`, without a reward; with `only_ended` just for drones whose episode ended."""
    i = first + wp.tid()
    if takes_part(i, only_ended, result):
        complete(i, p, maps, drones, obs)
        add_lidar_noise(i, p, maps, drones, obs)
        if p.drones > 1 and has_landed(drones, i):
            clear_observations(i, p, obs)


@wp.kernel(enable_backward=False)
def tick(first: int, steps: int, clock: wp.array(dtype=wp.int32)):
    """Advance the clock by the physics steps of one decision."""
    clock[0] = clock[0] + steps
