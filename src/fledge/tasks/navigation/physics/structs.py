"""What navigation kernels read and write: parameters, drones, maps, observations, results.

All arrays belong to `NavigationEnv` or to the caller who passed `out`; kernels only index them.
N drones, K map slots, H azimuths, V elevations, G = ceil(V / 4) groups of elevations cast together.
"""

import enum

import warp as wp

from fledge.tasks.navigation.config import EDGE_M, Starts
from fledge.tasks.navigation.physics.crowd import Crowd

NEAREST = 5
OBSTACLE_FEATURES = 10
STARTS = {Starts.edges: 0, Starts.rows: 1, Starts.mixed: 2, Starts.crossing: 3, Starts.lane: 4}
ROWS = wp.constant(STARTS[Starts.rows])
MIXED = wp.constant(STARTS[Starts.mixed])
CROSSING = wp.constant(STARTS[Starts.crossing])
LANE = wp.constant(STARTS[Starts.lane])
EDGE = wp.constant(EDGE_M)


class Outcome(enum.IntEnum):
    """How an episode ended (`outcome` buffer; RUNNING while it has not)."""

    RUNNING = 0
    SUCCESS = 1
    COLLISION_STATIC = 2
    COLLISION_MOVING = 3
    OUT_OF_BOUNDS = 4
    TIMEOUT = 5


@wp.struct
class Params:
    """Scalars, fixed for the life of the env."""

    seed: wp.vec2ui
    env_offset: int  # global index of this env's first drone
    dt: float
    decimation: int
    max_steps: int
    first_order: int
    headings: int  # 0: velocity action
    speed_limit: float
    starts: int  # see STARTS
    walls: int
    inside_share: float
    total_envs: int  # drones over all shards, for starts in rows
    success_ends: int
    goal_radius: float
    radius: float
    min_height: float
    max_height: float
    range_m: float
    azimuths: int
    elevations: int
    groups: int
    see_movers: int
    grid_size: int
    grid_resolution: float
    reward_navrl: int
    w_height: float
    w_near: float
    near_m: float
    w_crash: float
    w_success: float
    w_time: float
    r_mass: float
    r_thrust: float
    r_damping: float
    latency: int
    lidar_noise: float
    lidar_dropout: float
    state_noise: float
    damping: float
    # maps
    slots: int
    active: int
    refresh: int
    fresh: int


@wp.struct
class Drones:
    """State of every drone, [N]."""

    pos: wp.array(dtype=wp.vec3)  # m, world
    vel: wp.array(dtype=wp.vec3)  # m/s, world
    quat: wp.array(dtype=wp.quat)  # body to world, (x, y, z, w)
    rate: wp.array(dtype=wp.vec3)  # rad/s, body
    throttle: wp.array(dtype=wp.vec4)  # 0..1
    start: wp.array(dtype=wp.vec3)  # m, world
    goal: wp.array(dtype=wp.vec3)  # m, world
    frame: wp.array(dtype=wp.vec3)  # factors on mass, thrust, damping
    latency: wp.array(dtype=wp.int32)  # physics steps
    commands: wp.array2d(dtype=wp.vec3)  # [N, latency + 1] m/s, world: ring of recent commands
    step: wp.array(dtype=wp.int32)  # physics steps flown in this episode
    episode: wp.array(dtype=wp.int32)  # episodes begun, minus one
    slot: wp.array(dtype=wp.int32)  # map slot
    reached: wp.array(dtype=wp.int32)  # 1 once the goal was reached in this episode
    crash: wp.array(dtype=wp.int32)  # Outcome of this decision's physics, or 0
    progress: wp.array(dtype=wp.float32)  # m nearer to the goal by this decision
    outside: wp.array(dtype=wp.float32)  # m² s outside the height band in this decision
    elapsed: wp.array(dtype=wp.float32)  # s flown in this decision
    episode_return: wp.array(dtype=wp.float32)


@wp.struct
class Maps:
    """The bank of maps, [K]."""

    grid: wp.array2d(dtype=wp.uint8)  # [K, CELLS * CELLS], see sim.terrain
    keys: wp.array(dtype=wp.vec2ui)
    clock: wp.array(dtype=wp.int32)  # [1] physics steps since the env was made
    crowd: Crowd


@wp.struct
class Beams:
    """Elevation table, [G] groups of four (the last one repeated to fill up); and that of the ring which feels for columns."""

    slope: wp.array(dtype=wp.vec4)
    cosine: wp.array(dtype=wp.vec4)
    body_slope: wp.vec4
    body_cosine: wp.vec4


@wp.struct
class Obs:
    """Observation buffers of one step, [N, ...]."""

    state: wp.array2d(dtype=wp.float32)  # [N, 8]
    lidar: wp.array2d(dtype=wp.float32)  # [N, H * V] range - distance
    direction: wp.array2d(dtype=wp.float32)  # [N, 3] m, horizontal start to goal
    obstacles: wp.array2d(dtype=wp.float32)  # [N, 5 * 10]
    pose: wp.array2d(dtype=wp.float32)  # [N, 2] height m, yaw rad in the goal frame ([N, 0] when off)
    plan: wp.array2d(dtype=wp.float32)  # [N, PLAN_WIDTH] see planner.outlook ([N, 0] when off)
    grid: wp.array2d(dtype=wp.uint8)  # [N, size * size] 1 = occupied ([0, 0] when off)


@wp.struct
class Result:
    """What a step pays and decides, [N]. Episode figures are valid where an episode ended."""

    reward: wp.array(dtype=wp.float32)
    terminated: wp.array(dtype=wp.bool)
    truncated: wp.array(dtype=wp.bool)
    outcome: wp.array(dtype=wp.uint8)
    episode_return: wp.array(dtype=wp.float32)
    episode_length: wp.array(dtype=wp.int32)  # decisions


@wp.func
def step_limit(p: Params, start: wp.vec3, goal: wp.vec3) -> int:
    """Physics steps after which an episode is cut off: who has further to cross gets longer."""
    if p.starts != CROSSING:
        return p.max_steps
    dx = goal[0] - start[0]
    dy = goal[1] - start[1]
    return int(float(p.max_steps) * wp.sqrt(dx * dx + dy * dy) / (2.0 * EDGE))


@wp.func
def goal_frame(start: wp.vec3, goal: wp.vec3) -> wp.vec2:
    """Unit vector of the goal frame's x axis: horizontal, from start to goal."""
    dx = goal[0] - start[0]
    dy = goal[1] - start[1]
    length = wp.sqrt(dx * dx + dy * dy)
    if length < 1.0e-6:
        return wp.vec2(1.0, 0.0)
    return wp.vec2(dx / length, dy / length)


@wp.func
def to_goal_frame(v: wp.vec3, x_axis: wp.vec2) -> wp.vec3:
    return wp.vec3(x_axis[0] * v[0] + x_axis[1] * v[1], -x_axis[1] * v[0] + x_axis[0] * v[1], v[2])


@wp.func
def to_world(v: wp.vec3, x_axis: wp.vec2) -> wp.vec3:
    return wp.vec3(x_axis[0] * v[0] - x_axis[1] * v[1], x_axis[1] * v[0] + x_axis[0] * v[1], v[2])
