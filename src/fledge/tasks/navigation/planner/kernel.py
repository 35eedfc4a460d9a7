"""The planner's kernels: read the observations, update the local map, search. One thread per drone.

`plan` writes commands. `observe_plan` writes the observation `plan`: the planner's command, and its predictions for all
headings. Times to a collision are shares of the planner's horizon: 1 means none within it. The nearness cost n is given as
n / (n + 1). Predictions use every second prediction step.
"""

import warp as wp

from fledge.envs.kernel_random import TWO_PI
from fledge.tasks.navigation.orca.kernel import Guard, guarded
from fledge.tasks.navigation.physics.structs import Result
from fledge.tasks.navigation.planner import search
from fledge.tasks.navigation.planner.cost_to_go import CostToGo, update_cost
from fledge.tasks.navigation.planner.local_map import LocalMap, remember
from fledge.tasks.navigation.planner.readings import Movers, Own, Seen, predicted_acc, read_own, track_movers
from fledge.tasks.navigation.planner.search import (
    Choice,
    Search,
    gaps_at,
    nearest_safe,
    nearness,
    position_at,
    to_go,
)
from fledge.tasks.navigation.sensing.observations import PLAN
from fledge.tasks.navigation.sensing.observations import PLAN_HEADINGS as HEADINGS
from fledge.tasks.navigation.tracking.memory import draw_memory
from fledge.tasks.navigation.tracking.structs import Tracker

PLAN_WIDTH = PLAN.width
COMMAND, COST, BRIEF, HOVER_TIME, HOVER_NEAR, AROUND, *_ = PLAN.starts
EACH = PLAN.at("fast_time_1") - AROUND
STRIDE = 2
ALL, ENDED, BEGUN = 0, 1, 2  # which drones plan anew: all, those whose episode ended, or those whose episode begins
TURN = TWO_PI / HEADINGS
USUAL_COST = 6.0
STUCK_M = 0.5  # a drone that stays within this of a place is stuck
IMPATIENCE_S = 2.0


@wp.struct
class Planner:
    """Settings and buffers of the planner for N drones."""

    search: Search
    map: LocalMap
    cost: CostToGo
    movers: Movers
    guard: Guard
    tracker: Tracker
    acc: wp.array(dtype=wp.vec3)  # [N] m/s², goal frame: acceleration at the last decision
    stay_pos: wp.array(dtype=wp.vec3)  # [N] m, goal frame: the drone has stayed within STUCK_M of it ...
    stay: wp.array(dtype=wp.int32)  # [N] ... for this number of decisions
    decision_s: float
    patience_s: float
    step: wp.array(dtype=wp.vec3)  # [2] next acceleration per velocity, acceleration, command: horizontal, vertical


@wp.func
def patience_of(i: int, own: Own, p: Planner, fresh: bool) -> float:
    """Note where drone i is, and return 1, or less if it has been stuck in its place for longer than `patience_s`.

    In front of a narrow gap, hovering can cost less than flying through: the clearance that is missing there outweighs
    the way that is gained within the horizon.
    """
    if fresh or wp.length(own.pos - p.stay_pos[i]) > STUCK_M:
        p.stay_pos[i] = own.pos
        p.stay[i] = 0
        return 1.0
    p.stay[i] = p.stay[i] + 1
    return wp.exp(wp.min(p.patience_s - float(p.stay[i]) * p.decision_s, 0.0) / IMPATIENCE_S)


@wp.func
def update_memory(i: int, own: Own, seen: Seen, p: Planner, fresh: bool) -> Own:
    """Update drone i's local map, movers and cost-to-go; return its state `own`, completed."""
    track_movers(seen, i, own.pos, p.movers, fresh)
    if p.tracker.on == 1:
        draw_memory(p.map, p.tracker, i, own.pos, seen.memory)
    else:
        remember(p.map, i, seen, p.movers, own, fresh)
    update_cost(p.cost, p.map, i, own.pos, p.search.reach_z, fresh)
    own.to_go = to_go(p.cost, i, own, own.pos)
    own.patience = patience_of(i, own, p, fresh)
    own.body = search.body_now(p.search, p.map, i, p.movers, own)
    return own


@wp.func
def choose(i: int, own: Own, seen: Seen, p: Planner) -> Choice:
    """Return the cheapest command; if ORCA is on (`p.guard`), moved out of all velocity obstacles."""
    choice = search.cheapest(p.search, p.map, p.cost, i, p.movers, own)
    choice.command = guarded(p.guard, i, own, seen, p.movers, choice.command)
    return choice


@wp.kernel(enable_backward=False)
def plan(
    first: int,
    seen: Seen,
    p: Planner,
    shield: int,
    wanted: wp.array(dtype=wp.vec3),
    command: wp.array(dtype=wp.vec3),
):
    """Write each drone's command, m/s in the goal frame: the cheapest candidate or, if `shield` is 1, the safe command
    nearest to `wanted`."""
    i = first + wp.tid()
    fresh = p.map.fresh[i]
    own = read_own(seen, i)
    if not fresh:
        own.acc = p.acc[i]
    own = update_memory(i, own, seen, p, fresh)
    chosen = wp.vec3()
    if shield == 1:
        chosen = nearest_safe(p.search, p.map, i, p.movers, own, wanted[i])
    else:
        chosen = choose(i, own, seen, p).command
    command[i] = chosen
    p.acc[i] = predicted_acc(own, chosen, p.step)


@wp.struct
class PlanBuffers:
    """Settings of the observation `plan`, and for N drones: last actions and velocities, and the plans."""

    fast: float  # m/s
    slow: float
    brief_m: float  # m: largest progress of a brief command at the fast speed
    limit: float  # m/s that an action of 1 means
    flown: wp.array2d(dtype=wp.float32)  # [N, 3] the last action, 0 to 1
    vel: wp.array(dtype=wp.vec3)  # [N] m/s, goal frame: velocity at the last plan
    kept: wp.array2d(dtype=wp.float32)  # [N, PLAN_WIDTH] the plans


@wp.func
def flown_command(o: PlanBuffers, i: int) -> wp.vec3:
    """Return the velocity that drone i's last action commanded, m/s in the goal frame."""
    return wp.vec3(
        o.limit * (2.0 * wp.clamp(o.flown[i, 0], 0.0, 1.0) - 1.0),
        o.limit * (2.0 * wp.clamp(o.flown[i, 1], 0.0, 1.0) - 1.0),
        o.limit * (2.0 * wp.clamp(o.flown[i, 2], 0.0, 1.0) - 1.0),
    )


@wp.func
def ahead_of(p: Planner, i: int, own: Own, command: wp.vec3) -> wp.vec2:
    """Return for a command the predicted time to a collision, as a share of the horizon, and the nearness cost until then."""
    s = p.search
    near = float(0.0)
    count = s.flat.shape[1] / STRIDE
    for n in range(count):
        k = n * STRIDE + STRIDE - 1
        t = float(k + 1) * s.step_s
        gaps = gaps_at(s, p.map, i, p.movers, own, position_at(s, own, command, 0, k), t)
        if wp.min(gaps) < 0.0:
            return wp.vec2(float(n) / float(count), near)
        near = near + float(STRIDE) * nearness(s, gaps, k, 1.0)
    return wp.vec2(1.0, near)


@wp.func
def write_predictions(o: PlanBuffers, p: Planner, i: int, own: Own):
    """Write the predictions for hovering and for every heading to drone i's plan."""
    rest = ahead_of(p, i, own, wp.vec3())
    o.kept[i, HOVER_TIME] = rest[0]
    o.kept[i, HOVER_NEAR] = rest[1] / (rest[1] + 1.0)
    for h in range(HEADINGS):
        heading = wp.vec3(wp.cos(TURN * float(h)), wp.sin(TURN * float(h)), 0.0)
        at = AROUND + EACH * h
        fast = ahead_of(p, i, own, o.fast * heading)
        slow = ahead_of(p, i, own, o.slow * heading)
        end = position_at(p.search, own, o.fast * heading, p.search.kinds - 1, p.search.flat.shape[1] - 1)
        o.kept[i, at] = fast[0]
        o.kept[i, at + 1] = slow[0]
        o.kept[i, at + 2] = fast[1] / (fast[1] + 1.0)
        o.kept[i, at + 3] = wp.clamp((own.to_go - to_go(p.cost, i, own, end)) / o.brief_m, -1.0, 1.0)


@wp.kernel(enable_backward=False)
def observe_plan(
    first: int,
    which: int,
    result: Result,
    step: wp.array(dtype=wp.int32),
    seen: Seen,
    p: Planner,
    o: PlanBuffers,
    out: wp.array2d(dtype=wp.float32),
):
    """Read each drone's observations and write its plan to `out`; an episode begins with an empty memory.

    `which` selects the drones that plan anew: ALL, ENDED (their episode ended) or BEGUN (their episode begins).
    """
    i = first + wp.tid()
    if which == ENDED and not (result.terminated[i] or result.truncated[i]):
        return
    fresh = step[i] == 0
    if which != BEGUN or fresh:
        own = read_own(seen, i)
        if not fresh:
            before = Own()
            before.vel = o.vel[i]
            before.acc = p.acc[i]
            own.acc = predicted_acc(before, flown_command(o, i), p.step)
        p.map.fresh[i] = fresh
        own = update_memory(i, own, seen, p, fresh)
        chosen = choose(i, own, seen, p)
        for k in range(3):
            o.kept[i, COMMAND + k] = wp.clamp(chosen.command[k] / o.limit, -1.0, 1.0)
        o.kept[i, COST] = chosen.cost / (wp.abs(chosen.cost) + USUAL_COST)
        o.kept[i, BRIEF] = float(chosen.brief)
        write_predictions(o, p, i, own)
        o.vel[i] = own.vel
        p.acc[i] = own.acc
    for k in range(PLAN_WIDTH):
        out[i, k] = o.kept[i, k]
