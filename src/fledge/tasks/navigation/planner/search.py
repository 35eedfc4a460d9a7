"""The search: predict every candidate command on the local map and among the movers, and choose the cheapest.

Cost of a candidate, in metres of path:

    metres lost     against flying straight to the goal at full speed over the horizon
    + margin_cost * sum over prediction steps of (margin - clearance) * exp(-t / fading)    if clearance < margin
    or  crash_cost - crash_relief * t     if the body touches an obstacle at time t
    or  t - REACHED                       if the goal is reached at time t

A candidate is a velocity command that is held, or a brief command followed by a stop: where every held command ends at a
column, brief commands still make progress. The drone responds linearly, so its position after k prediction steps is
    pos + a_k * velocity + b_k * acceleration + c_k * command
with three coefficients per step that are computed once (`response`). Candidates are tried in a fixed order, the likely
candidates first. A candidate is dropped as soon as its cost exceeds the lowest so far. That changes no result: the first of
equally cheap candidates wins.
"""

import math

import numpy as np
import warp as wp

from fledge.tasks.navigation.physics.quadrotor import DAMPING, VELOCITY_GAIN
from fledge.tasks.navigation.physics.structs import to_world
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.cost_to_go import CostToGo, cost_from
from fledge.tasks.navigation.planner.local_map import LocalMap, bands_between, ring_at
from fledge.tasks.navigation.planner.readings import FAR, Movers, Own
from fledge.tasks.navigation.sensing.observations import NEAREST

REACHED = 1000.0  # m: reduction of the cost if the goal is reached
UPRIGHT_M = 0.1  # safety distance above and below the body
VERTICAL_LAG_S = 0.03  # thrust responds at once, tilt does not
FLOOR_M, CEILING_M = 0.1, 0.1  # distance to keep from the height limits

TOUCH = 0.02  # m


def candidates(cfg: PlannerConfig) -> np.ndarray:
    """Return the candidate commands [C, 3], m/s, with x towards the goal: the likely commands first, hovering last."""
    rows = []
    for speed in dict.fromkeys((cfg.fast, cfg.middle, cfg.slow)):
        for climb in (0.0, -cfg.climb, cfg.climb) if cfg.climb else (0.0,):
            for k in sorted(range(cfg.headings), key=lambda k: (min(k, cfg.headings - k), k)):
                angle = 2 * math.pi * k / cfg.headings
                rows.append((speed * math.cos(angle), speed * math.sin(angle), climb))
    return np.array([*rows, (0.0, 0.0, 0.0)], np.float32)


def step_responses(cfg: PlannerConfig, lag_s: float) -> np.ndarray:
    """Return the coefficients of velocity, acceleration and command in the position at each prediction step, [2, T, 3].

    The first axis has held commands, then brief ones.
    """
    times = (np.arange(round(cfg.horizon_s / cfg.step_s)) + 1.0) * cfg.step_s
    held = response(times, lag_s)[:, 0]
    brief = held.copy()
    after = round(cfg.brief_s / cfg.step_s)
    if 0 < after < len(times):  # to end a command is to add its opposite
        brief[after:, 2] -= held[: len(times) - after, 2]
    return np.stack([held, brief])


def response(seconds: np.ndarray, lag_s: float) -> np.ndarray:
    """Return the linear response of a drone after each of these times, [T, 3, 3].

    Rows are the change of position, the velocity and the acceleration; columns are the coefficients of the initial velocity,
    the initial acceleration and the command.

    v' = a - damping v,  a' = (gain (command - v) - a) / lag;  without lag a = gain (command - v).
    """
    lag = max(lag_s, 1e-3)
    # rows: d/dt of position, velocity, acceleration, command
    rate = np.zeros((4, 4))
    rate[0, 1] = 1.0
    rate[1, 1:3] = -DAMPING, 1.0
    rate[2, 1:] = -VELOCITY_GAIN / lag, -1.0 / lag, VELOCITY_GAIN / lag
    parts = 2**16
    return np.stack([np.linalg.matrix_power(np.eye(4) + rate * (t / parts), parts)[:3, 1:] for t in seconds])


@wp.struct
class Search:
    """Data shared by the searches of all drones. In shapes: C candidates, T prediction steps."""

    commands: wp.array(dtype=wp.vec3)  # [C] m/s, x to the goal
    flat: wp.array2d(dtype=wp.vec3)  # [2, T] a, b, c of the horizontal position, for held and for brief commands
    upright: wp.array2d(dtype=wp.vec3)  # [2, T] a, b, c of the vertical position
    kinds: int  # 2 with brief commands, else 1
    price: wp.array(dtype=wp.float32)  # [T] cost per metre of clearance missing to static obstacles
    mover_price: wp.array(dtype=wp.float32)  # [T] cost per metre of clearance missing to movers
    ring_m: wp.array(dtype=wp.float32)  # [9] distance of each ring, m
    step_s: float
    body: float  # m: radius of the drone plus safety distance
    skin: float  # m: safety distance
    reach_z: float  # m: hits up to this far above or below the drone's centre are obstacles
    margin: float
    mover_margin: float
    crash_cost: float
    crash_relief: float
    goal_radius: float
    floor: float
    ceiling: float
    gain: float  # m towards the goal within the horizon at full speed
    alarm: int  # prediction steps within which a shield avoids a collision
    near: float  # m: a goal nearer than this may be reached within the horizon


@wp.func
def mover_gap(movers: Movers, i: int, k: int, at: wp.vec3, t: float) -> float:
    """Return the distance from a point to mover k at time t, m: the larger of horizontal and vertical distance."""
    p = movers.place[i, k]
    if p[0] >= FAR:
        return FAR
    v = movers.motion[i, k]
    x = p[0] + t * v[0] - at[0]
    y = p[1] + t * v[1] - at[1]
    gap = wp.sqrt(x * x + y * y) - p[3]
    return wp.max(gap, wp.abs(p[2] + t * v[2] - at[2]) - v[3])


@wp.func
def column_gap(s: Search, m: LocalMap, i: int, at: wp.vec3) -> float:
    """Return the distance from a point to the nearest remembered hit at its height, m."""
    return s.ring_m[ring_at(m, i, at[0], at[1], bands_between(at[2] - s.reach_z, at[2] + s.reach_z))]


@wp.func
def nearest_mover(movers: Movers, i: int, at: wp.vec3, t: float) -> float:
    """Return the distance from a point to the nearest mover at time t, m."""
    gap = mover_gap(movers, i, 0, at, t)
    for k in range(1, NEAREST):
        gap = wp.min(gap, mover_gap(movers, i, k, at, t))
    return gap


@wp.func
def body_now(s: Search, m: LocalMap, i: int, movers: Movers, own: Own) -> wp.vec2:
    """Return the distances to columns and to movers below which the drone collides, m.

    Each is the drone's radius plus the safety distance or, if the drone is already nearer, its present distance. A drone that
    is stuck does without the safety distance to columns.
    """
    columns = s.body - (1.0 - own.patience) * s.skin
    return wp.vec2(
        wp.min(columns, column_gap(s, m, i, own.pos)), wp.min(s.body, nearest_mover(movers, i, own.pos, 0.0) - TOUCH)
    )


@wp.func
def gaps_at(s: Search, m: LocalMap, i: int, movers: Movers, own: Own, at: wp.vec3, t: float) -> wp.vec2:
    """Return the gaps to columns and to movers, m, of a drone at a point at time t; a negative gap is a collision.

    Both are -1 if the point is too low or too high.
    """
    if (at[2] < s.floor and at[2] < own.pos[2]) or (at[2] > s.ceiling and at[2] > own.pos[2]):
        return wp.vec2(-1.0, -1.0)
    return wp.vec2(column_gap(s, m, i, at) - own.body[0], nearest_mover(movers, i, at, t) - own.body[1])


@wp.func
def nearness(s: Search, gaps: wp.vec2, k: int, patience: float) -> float:
    """Return the cost of being near obstacles at prediction step k; `gaps` holds the gaps to columns and to movers, m.

    `patience` is a factor on the cost of columns.
    """
    columns = patience * s.price[k] * wp.max(s.margin - gaps[0], 0.0)
    return columns + s.mover_price[k] * wp.max(s.mover_margin - gaps[1], 0.0)


@wp.func
def position_at(s: Search, own: Own, command: wp.vec3, brief: int, k: int) -> wp.vec3:
    """Return the drone's predicted position at prediction step k, m; `brief` is 1 if the command ends in a stop."""
    f = s.flat[brief, k]
    u = s.upright[brief, k]
    return wp.vec3(
        own.pos[0] + f[0] * own.vel[0] + f[1] * own.acc[0] + f[2] * command[0],
        own.pos[1] + f[0] * own.vel[1] + f[1] * own.acc[1] + f[2] * command[1],
        own.pos[2] + u[0] * own.vel[2] + u[1] * own.acc[2] + u[2] * command[2],
    )


@wp.func
def to_go(w: CostToGo, i: int, own: Own, at: wp.vec3) -> float:
    """Return the length of the shortest path from a point to the goal, m, including the difference in height."""
    flat = cost_from(w, i, at[0], at[1])
    up = own.goal[2] - at[2]
    return wp.sqrt(flat * flat + up * up)


@wp.func
def cost_of(
    s: Search, m: LocalMap, w: CostToGo, i: int, movers: Movers, own: Own, command: wp.vec3, brief: int, enough: float
) -> float:
    """Return the cost of a command; stop early and return a lower bound if the cost reaches `enough`."""
    # metres lost against flying to the goal at full speed
    cost = to_go(w, i, own, position_at(s, own, command, brief, s.flat.shape[1] - 1)) - own.to_go + s.gain
    close = wp.length(own.goal - own.pos) < s.near
    for k in range(s.flat.shape[1]):
        if cost >= enough and not close:
            return cost
        t = float(k + 1) * s.step_s
        at = position_at(s, own, command, brief, k)
        gaps = gaps_at(s, m, i, movers, own, at, t)
        if wp.min(gaps) < 0.0:
            return wp.max(s.crash_cost - s.crash_relief * t, 0.0) + cost
        if close and wp.length(own.goal - at) < s.goal_radius:
            return t - REACHED
        cost = cost + nearness(s, gaps, k, own.patience)
    return cost


@wp.struct
class Choice:
    """A command, m/s in the goal frame, its cost, and whether it is brief (followed by a stop)."""

    command: wp.vec3
    cost: float
    brief: int


@wp.func
def cheapest(s: Search, m: LocalMap, w: CostToGo, i: int, movers: Movers, own: Own) -> Choice:
    """Return the cheapest command, held or brief; of equally cheap commands the first."""
    best = Choice()
    best.cost = float(FAR)
    for brief in range(s.kinds):
        for c in range(s.commands.shape[0]):
            command = to_world(s.commands[c], own.ahead)
            cost = cost_of(s, m, w, i, movers, own, command, brief, best.cost)
            if cost < best.cost:
                best.command = command
                best.cost = cost
                best.brief = brief
    return best


@wp.func
def crash_time(s: Search, m: LocalMap, i: int, movers: Movers, own: Own, command: wp.vec3) -> float:
    """Return the time to a collision under a command, s; FAR if there is none within the first `alarm` prediction steps."""
    for k in range(s.alarm):
        t = float(k + 1) * s.step_s
        if wp.min(gaps_at(s, m, i, movers, own, position_at(s, own, command, 0, k), t)) < 0.0:
            return t
    return FAR


@wp.func
def nearest_safe(s: Search, m: LocalMap, i: int, movers: Movers, own: Own, wanted: wp.vec3) -> wp.vec3:
    """Return the wanted command or, if it leads to a collision within `alarm` prediction steps, the cheapest candidate.

    Here the cost of a candidate is its difference from the wanted command, plus the costs of nearness and of a collision.
    """
    crash = crash_time(s, m, i, movers, own, wanted)
    if crash == FAR:
        return wanted
    best = wanted
    least = s.crash_cost - s.crash_relief * crash
    for c in range(s.commands.shape[0]):
        command = to_world(s.commands[c], own.ahead)
        cost = wp.length(command - wanted)
        for k in range(s.alarm):
            if cost < least:
                t = float(k + 1) * s.step_s
                gaps = gaps_at(s, m, i, movers, own, position_at(s, own, command, 0, k), t)
                if wp.min(gaps) < 0.0:
                    cost = cost + s.crash_cost - s.crash_relief * t
                    break
                cost = cost + nearness(s, gaps, k, 1.0)
        if cost < least:
            least = cost
            best = command
    return best
