"""The bookkeeping part of a decision: reward, end of episode, and the start of the next one. One thread a drone."""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import uniform4
from fledge.tasks.navigation.config import CROSSING_HALF_M
from fledge.tasks.navigation.physics.arena import LANE_HEIGHT_M, LANE_M
from fledge.tasks.navigation.physics.flight import BOUNDS, SUCCESS, outside_band
from fledge.tasks.navigation.physics.quadrotor import HOVER_THROTTLE
from fledge.tasks.navigation.physics.structs import (
    CROSSING,
    EDGE,
    LANE,
    MIXED,
    ROWS,
    Beams,
    Drones,
    Maps,
    Obs,
    Outcome,
    Params,
    Result,
    step_limit,
)
from fledge.tasks.navigation.physics.terrain import C_SOLID, cell_at, free_distance, open_axis
from fledge.tasks.navigation.sensing.observe import (
    add_lidar_noise,
    observe_obstacles,
    observe_self,
    scan_movers,
    takes_part,
)

TIMEOUT = wp.constant(int(Outcome.TIMEOUT))
HOVER = wp.constant(HOVER_THROTTLE)
ROW_WIDTH = wp.constant(32.0)
INSIDE = wp.constant(19.0)
CROSS = wp.constant(CROSSING_HALF_M)
LANE_END = wp.constant(LANE_M)
LANE_HEIGHT = wp.constant(LANE_HEIGHT_M)
P_START = wp.constant(wp.uint32(int(Purpose.START)))
P_GOAL = wp.constant(wp.uint32(int(Purpose.GOAL)))
P_MAP = wp.constant(wp.uint32(int(Purpose.MAP_CHOICE)))
P_DOMAIN = wp.constant(wp.uint32(int(Purpose.DOMAIN)))


@wp.func
def navrl_reward(i: int, p: Params, drones: Drones, obs: Obs, mover_logs: float) -> float:
    """NavRL's reward at the state reached: 1 + speed to goal + mean log clearances - height penalty."""
    to_goal = drones.goal[i] - drones.pos[i]
    towards = wp.dot(drones.vel[i], to_goal / wp.max(wp.length(to_goal), 1.0e-6))
    beams = p.azimuths * p.elevations
    logs = float(0.0)
    hits = int(0)
    for n in range(beams):
        value = obs.lidar[i, n]
        if value > 0.0:
            logs = logs + wp.log(wp.max(p.range_m - value, 1.0e-6))
            hits = hits + 1
    logs = (logs + float(beams - hits) * wp.log(p.range_m)) / float(beams)
    band = outside_band(drones.pos[i][2], drones.start[i], drones.goal[i])
    return 1.0 + towards + logs + mover_logs - p.w_height * band * band


@wp.func
def progress_reward(i: int, p: Params, drones: Drones, obs: Obs, mover_gap: float, ended: int) -> float:
    """Metres gained, minus costs of height, nearness and time, minus a crash, plus a success."""
    nearest = float(0.0)
    for n in range(p.azimuths * p.elevations):
        nearest = wp.max(nearest, obs.lidar[i, n])
    gap = wp.min(p.range_m - nearest, mover_gap)
    seconds = drones.elapsed[i]
    reward = drones.progress[i] - p.w_height * drones.outside[i] - p.w_time * seconds
    if gap < p.near_m:
        reward = reward - p.w_near * seconds * (p.near_m - gap) / 0.5
    if ended == SUCCESS:
        reward = reward + p.w_success
    elif ended > SUCCESS and ended <= BOUNDS:
        reward = reward - p.w_crash
    return reward


@wp.kernel(enable_backward=False)
def conclude(
    first: int,
    p: Params,
    maps: Maps,
    beams: Beams,
    drones: Drones,
    result: Result,
    obs: Obs,
):
    """Complete the observation, pay the reward, decide whether the episode ended."""
    i = first + wp.tid()
    if p.see_movers == 1:
        scan_movers(i, p, maps, beams, drones, obs)
    observe_self(i, p, maps, drones, obs)
    movers = observe_obstacles(i, p, maps, drones, obs)
    crash = drones.crash[i]
    reached = drones.reached[i] == 1
    terminated = crash > 0 or (reached and p.success_ends == 1)
    truncated = (not terminated) and drones.step[i] >= step_limit(p, drones.start[i], drones.goal[i])
    ended = int(0)  # for the reward: what happened in this step
    if terminated:
        ended = crash
        if crash == 0:
            ended = SUCCESS
    reward = float(0.0)
    if p.reward_navrl == 1:
        reward = navrl_reward(i, p, drones, obs, movers[0])
    else:
        reward = progress_reward(i, p, drones, obs, movers[1], ended)
    if p.lidar_noise > 0.0 or p.lidar_dropout > 0.0:
        add_lidar_noise(i, p, maps, drones, obs)
    outcome = int(0)
    if terminated or truncated:
        outcome = TIMEOUT
        if crash > 0:
            outcome = crash
        if reached:  # before whatever ended the episode
            outcome = SUCCESS
    total = drones.episode_return[i] + reward
    drones.episode_return[i] = total
    result.reward[i] = reward
    result.terminated[i] = terminated
    result.truncated[i] = truncated
    result.outcome[i] = wp.uint8(outcome)
    result.episode_return[i] = total
    result.episode_length[i] = (drones.step[i] + p.decimation - 1) / p.decimation


@wp.func
def edge_point(u: wp.vec4) -> wp.vec3:
    """A point on one of the four edges at ±24 m, 0.5 to 2.5 m high."""
    along = EDGE * (2.0 * u[1] - 1.0)
    z = 0.5 + 2.0 * u[2]
    side = int(u[0] * 4.0)
    if side == 0:
        return wp.vec3(along, EDGE, z)
    if side == 1:
        return wp.vec3(along, -EDGE, z)
    if side == 2:
        return wp.vec3(EDGE, along, z)
    return wp.vec3(-EDGE, along, z)


@wp.func
def side_point(axis: int, sign: float, u: wp.vec4) -> wp.vec3:
    """A point on the forest's side towards plus or minus `axis` (0 x, 1 y), 0.5 to 2.5 m high."""
    along = CROSS * (2.0 * u[1] - 1.0)
    if axis == 0:
        return wp.vec3(sign * EDGE, along, 0.5 + 2.0 * u[2])
    return wp.vec3(along, sign * EDGE, 0.5 + 2.0 * u[2])


@wp.func
def is_clear(p: Params, maps: Maps, slot: int, x: float, y: float) -> bool:
    """Whether a point has half a metre of free space to columns and two metres to moving obstacles."""
    cell = cell_at(x, y)
    if cell < 0:
        return True
    value = int(maps.grid[slot, cell])
    if value >= C_SOLID or free_distance(value) < 0.5:
        return False
    for j in range(maps.crowd.count[slot]):
        c = maps.crowd.trail[p.decimation - 1, slot, j]
        if (c[0] - x) * (c[0] - x) + (c[1] - y) * (c[1] - y) < 4.0:
            return False
    return True


@wp.func
def clear_inside(p: Params, maps: Maps, slot: int, who: wp.uint32, when: wp.uint32, fallback: wp.vec3) -> wp.vec3:
    """A random point inside the forest with free space around it, or the fallback if none is found."""
    for t in range(16):
        u = uniform4(who, when, P_START, wp.uint32(t + 1), p.seed)
        x = INSIDE * (2.0 * u[0] - 1.0)
        y = INSIDE * (2.0 * u[1] - 1.0)
        if is_clear(p, maps, slot, x, y):
            return wp.vec3(x, y, 0.5 + 2.0 * u[2])
    return fallback


@wp.func
def deal_map(p: Params, maps: Maps, i: int, who: wp.uint32, when: wp.uint32) -> int:
    """Slot of the next episode's map: the drone's own with fresh maps, else one of those in use now.

    Maps come into use in a ring: at clock t the positions head .. head + active - 1 are in use, head = t / refresh.
    """
    if p.fresh == 1:
        return i
    u = uniform4(who, when, P_MAP, wp.uint32(0), p.seed)
    position = int(u[0] * float(p.active))
    if p.refresh > 0:
        position = position + maps.clock[0] / p.refresh
    return position % p.slots


@wp.func
def begin_episode(i: int, p: Params, maps: Maps, drones: Drones):
    """Put drone i at the start of its next episode. Everything is a function of (seed, global index, episode)."""
    episode = drones.episode[i] + 1
    drones.episode[i] = episode
    index = i + p.env_offset
    who = wp.uint32(index)
    when = wp.uint32(episode)
    slot = deal_map(p, maps, i, who, when)
    u = uniform4(who, when, P_START, wp.uint32(0), p.seed)
    start = edge_point(u)
    g = uniform4(who, when, P_GOAL, wp.uint32(0), p.seed)
    goal = edge_point(g)
    if p.starts == ROWS:
        across = float(index) / float(p.total_envs)
        spread = float(index) / wp.max(float(p.total_envs - 1), 1.0)
        start = wp.vec3((across - 0.5) * ROW_WIDTH, EDGE, 2.0)
        goal = wp.vec3((spread - 0.5) * ROW_WIDTH, -EDGE, 2.0)
    elif p.starts == MIXED and u[3] < p.inside_share:
        start = clear_inside(p, maps, slot, who, when, start)
    elif p.starts == CROSSING:
        sign = float(1.0)
        if u[0] < 0.5:
            sign = -1.0
        axis = open_axis(maps.keys[slot])
        start = side_point(axis, sign, u)
        goal = side_point(axis, -sign, g)
    elif p.starts == LANE:
        start = wp.vec3(0.0, -LANE_END, LANE_HEIGHT)
        goal = wp.vec3(0.0, LANE_END, LANE_HEIGHT)
    dx = goal[0] - start[0]
    dy = goal[1] - start[1]
    half_yaw = 0.5 * wp.atan2(dy, dx)
    d = uniform4(who, when, P_DOMAIN, wp.uint32(0), p.seed)
    mass = 1.0 + p.r_mass * (2.0 * d[0] - 1.0)
    thrust = 1.0 + p.r_thrust * (2.0 * d[1] - 1.0)
    hover = HOVER * wp.sqrt(mass / thrust)
    drones.frame[i] = wp.vec3(mass, thrust, 1.0 + p.r_damping * (2.0 * d[2] - 1.0))
    drones.latency[i] = int(d[3] * float(p.latency + 1))
    for k in range(p.latency + 1):
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
def restart(first: int, p: Params, maps: Maps, drones: Drones, result: Result, obs: Obs, final: Obs):
    """Where an episode ended: keep its last observation in `final`, and begin the next one."""
    i = first + wp.tid()
    if not takes_part(i, 1, result):
        return
    for k in range(8):
        final.state[i, k] = obs.state[i, k]
    for k in range(p.azimuths * p.elevations):
        final.lidar[i, k] = obs.lidar[i, k]
    for k in range(3):
        final.direction[i, k] = obs.direction[i, k]
    for k in range(50):
        final.obstacles[i, k] = obs.obstacles[i, k]
    for k in range(obs.pose.shape[1]):
        final.pose[i, k] = obs.pose[i, k]
    for k in range(obs.plan.shape[1]):
        final.plan[i, k] = obs.plan[i, k]
    for k in range(obs.grid.shape[1]):
        final.grid[i, k] = obs.grid[i, k]
    begin_episode(i, p, maps, drones)


@wp.kernel(enable_backward=False)
def restart_masked(first: int, p: Params, maps: Maps, drones: Drones, mask: wp.array(dtype=wp.bool)):
    """Begin a new episode where the mask says so."""
    i = first + wp.tid()
    if mask[i]:
        begin_episode(i, p, maps, drones)


@wp.kernel(enable_backward=False)
def observe(
    first: int,
    only_ended: int,
    p: Params,
    maps: Maps,
    beams: Beams,
    drones: Drones,
    result: Result,
    obs: Obs,
):
    """Complete the observation after `scan`, without reward."""
    i = first + wp.tid()
    if not takes_part(i, only_ended, result):
        return
    if p.see_movers == 1:
        scan_movers(i, p, maps, beams, drones, obs)
    if p.lidar_noise > 0.0 or p.lidar_dropout > 0.0:
        add_lidar_noise(i, p, maps, drones, obs)
    observe_self(i, p, maps, drones, obs)
    observe_obstacles(i, p, maps, drones, obs)


@wp.kernel(enable_backward=False)
def tick(first: int, steps: int, clock: wp.array(dtype=wp.int32)):
    """Advance the clock by one decision."""
    clock[0] = clock[0] + steps
