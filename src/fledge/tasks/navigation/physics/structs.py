"""Structs of the navigation kernels: parameters, drones, maps, observations, results.

All arrays belong to `NavigationEnv` or to the caller's `out`; kernels only index them.
N drones, K map slots, H azimuths, V elevations, G = ceil(V / 4) groups of elevations cast together.
"""

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any

import torch
import warp as wp

from fledge.tasks.navigation.config import (
    CROSSING_HALF_M,
    EDGE_M,
    ActionForm,
    Collision,
    Dynamics,
    NavigationConfig,
    RandomizeConfig,
    Starts,
)
from fledge.tasks.navigation.physics.columns import Columns
from fledge.tasks.navigation.physics.crowd import Crowd
from fledge.tasks.navigation.physics.voxel_struct import Voxels
from fledge.tasks.navigation.rewards import KINDS, Weights, make_weights
from fledge.tasks.navigation.sensing.observations import OBSERVATIONS

EDGES, ROWS, MIXED, CROSSING, LANE, CIRCLE, STREAMS, CORRIDOR = range(len(Starts))
FIRST_ORDER, LEE = (list(Dynamics).index(d) for d in (Dynamics.first_order, Dynamics.lee))
SPHERE, BEAMS = (list(Collision).index(c) for c in (Collision.sphere, Collision.beams))
HEADINGS = list(ActionForm).index(ActionForm.headings)
LONGEST_CROSSING = math.hypot(2.0 * EDGE_M, 2.0 * CROSSING_HALF_M) / (2.0 * EDGE_M)
ROUTE_START_M = 5.0  # added to the length of a route for its time limit: starting, and finding the way
OWN = (
    "env_offset",  # global index of this env's first drone
    "total_envs",  # drones of all ranks together
    "slots",  # slots for maps
    "active",  # maps in use at once
    "voxels",  # 1 in worlds of voxels, 0 on the layout's maps
    "scene",  # 1 in scenes, which are worlds of voxels with a flight and movers of their own
    "reward_kind",
    "elevations",
)
SETTINGS = {  # settings that kernels read as a number
    field.name: float if field.type == "float" else int
    for kind in (NavigationConfig, RandomizeConfig)
    for field in dataclasses.fields(kind)
    if field.type in ("int", "float", "bool", "Starts", "Dynamics", "ActionForm", "Collision")
}


class Outcome(enum.IntEnum):
    """How an episode ended (values of the buffer `outcome`); RUNNING until it ends."""

    RUNNING = 0
    SUCCESS = 1
    COLLISION_STATIC = 2
    COLLISION_MOVING = 3
    OUT_OF_BOUNDS = 4
    TIMEOUT = 5


Params = wp.struct(
    type(
        "Params", (), {"__annotations__": dict(seed=wp.vec2ui, **dict.fromkeys(OWN, int), **SETTINGS, weights=Weights)}
    )
)
"""Settings of `NavigationConfig` by name, and `OWN`; fixed for the life of the env. An enum is its index, a bool 0 or 1."""


def make_params(cfg: NavigationConfig, **others: Any) -> Any:
    """Return the `Params` of a config; `others` are values by name that the config does not have, such as the seed."""
    p = Params()
    for name in SETTINGS:
        value = getattr(cfg.randomize if hasattr(cfg.randomize, name) else cfg, name)
        setattr(p, name, list(type(value)).index(value) if isinstance(value, enum.Enum) else SETTINGS[name](value))
    p.weights, p.reward_kind = make_weights(cfg.reward), KINDS.index(cfg.reward.kind)
    p.elevations = cfg.num_elevations
    for name, value in others.items():
        setattr(p, name, value)
    return p


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
    route: wp.array(dtype=wp.float32)  # m: shortest path from start to goal; on the layout's maps, the straight line
    frame: wp.array(dtype=wp.vec3)  # factors on mass, thrust, damping
    tuning: wp.array(
        dtype=wp.vec4
    )  # factors on velocity gain, attitude gains, drag; share of rotor lag removed per step
    wind: wp.array(dtype=wp.vec3)  # m/s², world: acceleration by wind
    drift: wp.array(dtype=wp.vec4)  # estimated minus true position (m, world) and yaw (rad)
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
    gap: wp.array(dtype=wp.float32)  # m to the nearest surface in reach of the sensors, without faults
    episode_return: wp.array(dtype=wp.float32)
    track: wp.array2d(
        dtype=wp.vec3
    )  # [N, D + 1] m, world: position before this decision and after each physics step; [N, 0] for lone drones


@wp.struct
class Trail:
    """Motion of every drone in a decision of D physics steps, [D, N], if another simulator computes it; else [0, 0]."""

    pos: wp.array2d(dtype=wp.vec3)  # m, world, after each physics step
    vel: wp.array2d(dtype=wp.vec3)  # m/s, world
    quat: wp.array2d(dtype=wp.quat)  # body to world
    rate: wp.array2d(dtype=wp.vec3)  # rad/s, body


@wp.struct
class Maps:
    """All maps of the bank, in K slots."""

    grid: wp.array2d(dtype=wp.uint8)  # [K, CELLS * CELLS], see `terrain`
    columns: Columns  # the same columns as boxes
    voxels: Voxels  # without arrays on the layout's maps
    keys: wp.array(dtype=wp.vec2ui)
    clock: wp.array(dtype=wp.int32)  # [1] physics steps since the env was made
    crowd: Crowd


@wp.struct
class Beams:
    """Directions of the LiDAR's beams.

    `slope` (tangents) and `cosine` have the elevations in G groups of four; the last elevation is repeated to fill its group.
    `body_slope` and `body_cosine` belong to the four beams that detect collisions.
    `rays` are the unit vectors of all rays, in the sensor's frame; empty unless each ray is cast by itself. With jitter, ray
    (h, v) points to a random place in its bin: azimuth and elevation from first + (h, v) * bin on.
    """

    around: wp.array(dtype=wp.vec2)  # [H] cosine and sine of the azimuths
    rise: wp.array(dtype=wp.vec2)  # [V] tangent and cosine of the elevations
    slope: wp.array(dtype=wp.vec4)  # [G]
    cosine: wp.array(dtype=wp.vec4)  # [G]
    body_slope: wp.vec4
    body_cosine: wp.vec4
    rays: wp.array(dtype=wp.vec3)  # [H * V]
    first: wp.vec2  # rad
    bin: wp.vec2  # rad


Obs = wp.struct(
    type("Obs", (), {"__annotations__": {o.name: wp.array2d(dtype=getattr(wp, o.dtype)) for o in OBSERVATIONS}})
)
"""Observation buffers of one step by name, [N, numbers] each; [N, 0] if disabled."""


@wp.struct
class Result:
    """Results of a step, [N]; `episode_return` and `episode_length` are valid where an episode ended."""

    reward: wp.array(dtype=wp.float32)
    terminated: wp.array(dtype=wp.bool)
    truncated: wp.array(dtype=wp.bool)
    outcome: wp.array(dtype=wp.uint8)
    episode_return: wp.array(dtype=wp.float32)
    episode_length: wp.array(dtype=wp.int32)  # decisions
    terms: wp.array2d(dtype=wp.float32)  # [N, rewards.TERMS]


def bind(kind: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return a struct whose arrays are the tensors of the same names; the caller sets its other fields."""
    struct = kind()
    for name, field in kind.vars.items():
        if name in tensors:
            setattr(struct, name, wp.from_torch(tensors[name], dtype=field.type.dtype))
    return struct


def allocate(
    kind: Any, shapes: Mapping[int | str, tuple[int, ...]], device: torch.device
) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return a struct whose arrays are zeroed tensors, and these tensors by name.

    `shapes` gives an array's shape by the array's name or else by its number of dimensions.
    """
    tensors = {}
    for name, array in ((name, field.type) for name, field in kind.vars.items()):
        if isinstance(array, wp.array):
            dtype = torch.int32 if array.dtype is wp.int32 else torch.float32
            shape = (*shapes.get(name, shapes[array.ndim]), *getattr(array.dtype, "_shape_", ()))
            tensors[name] = torch.zeros(shape, dtype=dtype, device=device)
    return bind(kind, tensors), tensors


@wp.func
def step_limit(p: Params, start: wp.vec3, goal: wp.vec3, route: float) -> int:
    """Return the physics steps after which an episode is truncated.

    It is proportional to the distance with starts=crossing, and to the length of the route in worlds of voxels except scenes.
    """
    if p.scene == 1:
        return p.max_episode_steps
    if p.voxels == 1:
        return int(float(p.max_episode_steps) * (route + ROUTE_START_M) / EDGE_M)
    if p.starts != CROSSING:
        return p.max_episode_steps
    if p.drones > 1:  # the limit of the longest crossing, so that it is the same for all drones of a world
        return int(wp.ceil(float(p.max_episode_steps) * LONGEST_CROSSING))
    dx = goal[0] - start[0]
    dy = goal[1] - start[1]
    return int(float(p.max_episode_steps) * wp.sqrt(dx * dx + dy * dy) / (2.0 * EDGE_M))


@wp.func
def has_landed(drones: Drones, i: int) -> bool:
    """Return whether drone i, one of several in a world, has reached its goal or crashed in this episode."""
    return drones.crash[i] > 0 or drones.reached[i] == 1


@wp.func
def goal_frame(start: wp.vec3, goal: wp.vec3) -> wp.vec2:
    """Return the unit vector of the goal frame's x axis: horizontal, from start to goal."""
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
def turned(v: wp.vec3, angle: float) -> wp.vec3:
    """Return a vector turned about z, counter-clockwise, by an angle in radians."""
    return to_world(v, wp.vec2(wp.cos(angle), wp.sin(angle)))


@wp.func
def to_world(v: wp.vec3, x_axis: wp.vec2) -> wp.vec3:
    return wp.vec3(x_axis[0] * v[0] - x_axis[1] * v[1], x_axis[1] * v[0] + x_axis[0] * v[1], v[2])
