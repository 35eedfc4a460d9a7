"""Data of the duel's kernels: parameters, fighters, missiles, observations, results.

There are N duels with S missiles per side. Rows 2 i and 2 i + 1 are the first and the second side of duel i. The env owns
all arrays but those of `Obs` and `Result`, which the caller passes. Slots 0 to fired - 1 of a row hold its missiles in the
order of firing.
"""

import enum
import math
from typing import Any

import warp as wp

from fledge.tasks.aircombat.config import GRAVITY, AircombatConfig, FighterConfig, MissileConfig, Scenario
from fledge.tasks.aircombat.observations import Columns
from fledge.tasks.aircombat.physics.airframe import Airframe, Flyer, flyer
from fledge.tasks.aircombat.physics.missile import Motor

FAR = wp.constant(1.0e9)  # m or s
Floats, Vec2s, Vec3s, Vec4s = (wp.array(dtype=dtype) for dtype in (wp.float32, wp.vec2, wp.vec3, wp.vec4))
Floats2d, Vec3s2d, Vec4s2d = (wp.array2d(dtype=dtype) for dtype in (wp.float32, wp.vec3, wp.vec4))
SCENARIOS = {kind: number for number, kind in enumerate(Scenario)}


class Outcome(enum.IntEnum):
    """How a fight ended for the side that a row belongs to (values of the `outcome` buffer); RUNNING until it ends."""

    RUNNING = 0
    WIN = 1
    LOSS = 2
    DRAW = 3  # both died in the same physics step
    SPENT = 4  # neither side has a missile left, on board or in flight
    TIMEOUT = 5


@wp.struct
class Physics:
    """Parameters of fighters and missiles, which determine how every missile flies."""

    fighter: Airframe
    motor: Motor
    rudder_rate: float  # 1/s, of the fighter; 0: at once
    top_speed: float  # m/s, of the fighter at full throttle without turning


def airframe_of(cfg: FighterConfig | MissileConfig, load_limits: bool) -> Airframe:
    """Return the airframe parameters of a fighter or missile; the load is limited only if `load_limits` is true."""
    frame = Airframe()
    frame.cd0 = GRAVITY / cfg.terminal_speed**2
    frame.k = 1.0 / (4.0 * frame.cd0 * cfg.lift_drag**2)
    frame.rmin = cfg.min_turn_radius_m
    frame.thrust = cfg.thrust_g * GRAVITY
    frame.max_load = cfg.load_limit_g * GRAVITY if load_limits else 0.0
    return frame


def motor_of(cfg: MissileConfig, load_limits: bool) -> Motor:
    """Return the parameters of a missile; the load is limited only if `load_limits` is true."""
    motor = Motor()
    motor.frame = airframe_of(cfg, load_limits)
    motor.navigation, motor.burn = cfg.navigation, cfg.burn_s
    motor.min_speed, motor.kill_radius = cfg.min_speed, cfg.kill_radius_m
    return motor


def physics_of(cfg: AircombatConfig) -> Physics:
    """Return the parameters of fighters and missiles."""
    physics = Physics()
    physics.fighter = airframe_of(cfg.fighter, cfg.load_limits)
    physics.motor = motor_of(cfg.missile, cfg.load_limits)
    physics.rudder_rate = cfg.rudder_rate
    physics.top_speed = math.sqrt(cfg.fighter.thrust_g) * cfg.fighter.terminal_speed
    return physics


def limits_of(columns: type[Columns]) -> Any:
    """Return scale, low and high of an observation's columns as a matrix constant [3, columns]."""
    rows = [[getattr(column, name) for column in columns] for name in ("scale", "low", "high")]
    return wp.constant(wp.types.matrix((3, len(columns)), float)(rows))


@wp.struct
class Params:
    """Parameters of the kernels, fixed for the life of the env."""

    seed: wp.vec2ui
    env_offset: int  # global index of this env's first duel
    fighter: Airframe
    motor: Motor
    slots: int  # missiles that each side carries
    interval: float  # s between shots
    rudder_rate: float  # 1/s, 0: at once
    max_time: float  # s
    top_speed: float  # m/s, at full throttle without turning
    scenario: int
    start_speed: float
    start_range: float
    min_range: float
    max_range: float


@wp.struct
class Duels:
    """State of every duel."""

    pos: wp.array(dtype=wp.vec2)  # [2 N] m
    dir: wp.array(dtype=wp.vec2)  # [2 N] unit vector of the velocity
    speed: wp.array(dtype=wp.float32)  # [2 N] m/s
    rudder: wp.array(dtype=wp.float32)  # [2 N] position of the rudder, -1..1
    alive: wp.array(dtype=wp.int32)  # [2 N]
    fired: wp.array(dtype=wp.int32)  # [2 N] missiles fired so far
    wait: wp.array(dtype=wp.float32)  # [2 N] s until the next shot is possible
    m_pos: wp.array2d(dtype=wp.vec2)  # [2 N, S] m, of the missiles that the row fired; as are all m_...
    m_dir: wp.array2d(dtype=wp.vec2)
    m_speed: wp.array2d(dtype=wp.float32)
    m_burn: wp.array2d(dtype=wp.float32)  # s that the motor still burns
    m_flying: wp.array2d(dtype=wp.int32)
    m_least: wp.array2d(dtype=wp.float32)  # m, closest approach to its target so far
    time: wp.array(dtype=wp.float32)  # [N] s since the start of the fight
    decisions: wp.array(dtype=wp.int32)  # [N]
    episode: wp.array(dtype=wp.int32)  # [N] fights begun, minus one
    kind: wp.array(dtype=wp.int32)  # [N] scenario of this fight
    over: wp.array(dtype=wp.int32)  # [N] 1: a side has died, or no missile is left


@wp.struct
class Controls:
    """Actions of all rows, [2 N]."""

    rudder: wp.array(dtype=wp.float32)
    throttle: wp.array(dtype=wp.float32)
    fire: wp.array(dtype=wp.int32)


@wp.struct
class Timing:
    """Length of a decision; in device arrays, so that recorded kernel launches stay valid when it changes."""

    dt: wp.array(dtype=wp.float32)  # [1] s
    steps: wp.array(dtype=wp.int32)  # [1]


@wp.struct
class Obs:
    """Observation buffers of one step, [2 N, ...]."""

    state: wp.array2d(dtype=wp.float32)  # [2 N, columns of State]
    missiles: wp.array3d(dtype=wp.float32)  # [2 N, 2 S, columns of Missile]
    spacetime: wp.array2d(dtype=wp.float32)  # [2 N, columns of Spacetime]; [2 N, 0] when off
    mask: wp.array2d(dtype=wp.bool)  # [2 N, 2] fire or not; [2 N, 6] of the discrete form


@wp.struct
class Result:
    """How fights ended in a step, [2 N]."""

    terminated: wp.array(dtype=wp.bool)
    truncated: wp.array(dtype=wp.bool)
    outcome: wp.array(dtype=wp.uint8)


@wp.func
def fighter_of(d: Duels, row: int) -> Flyer:
    return flyer(d.pos[row], d.dir[row], d.speed[row])


@wp.func
def missile_of(d: Duels, row: int, slot: int) -> Flyer:
    return flyer(d.m_pos[row, slot], d.m_dir[row, slot], d.m_speed[row, slot])


@wp.func
def can_fire(p: Params, d: Duels, row: int) -> bool:
    return d.alive[row] == 1 and d.fired[row] < p.slots and d.wait[row] <= 1.0e-4
