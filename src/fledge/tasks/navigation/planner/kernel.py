"""The planner's kernels: read what is observed, remember it, search. One thread a drone.

`plan` writes commands. `observe_plan` writes the observation `plan`: what the planner would fly, and what it predicts all
around. Its times are shares of the planner's horizon: 1 means none within it. Nearness n, as the planner prices it, is given
as n / (n + 1). Every second look is taken.
"""

import warp as wp

from fledge.envs.kernel_random import TWO_PI
from fledge.tasks.navigation.orca.kernel import Guard, guarded
from fledge.tasks.navigation.physics.structs import Result
from fledge.tasks.navigation.planner import search
from fledge.tasks.navigation.planner.cost_to_go import CostToGo, update_cost
from fledge.tasks.navigation.planner.local_map import LocalMap, remember
from fledge.tasks.navigation.planner.readings import Movers, Own, Seen, predicted_acc, read_movers, read_own
from fledge.tasks.navigation.planner.search import (
    BODY_M,
    Choice,
    Search,
    at_look,
    nearest_safe,
    nearness,
    room_at,
    to_go,
)
from fledge.tasks.navigation.sensing.observations import PLAN
from fledge.tasks.navigation.sensing.observations import PLAN_HEADINGS as HEADINGS

PLAN_WIDTH = PLAN.width
COMMAND, COST, BRIEF, HOVER_TIME, HOVER_NEAR, AROUND, *_ = PLAN.starts
EACH = PLAN.at("fast_time_1") - AROUND
STRIDE = 2
AHEAD, ENDED, BEGUN = 0, 1, 2  # plans of: all; episodes that ended; new episodes, others keep theirs
TURN = TWO_PI / HEADINGS
USUAL_COST = 6.0


@wp.struct
class Planner:
    """Structs and buffers of the planner of N drones."""

    search: Search
    map: LocalMap
    cost: CostToGo
    movers: Movers
    guard: Guard
    acc: wp.array(dtype=wp.vec3)  # [N] m/s², goal frame: at the last decision
    step: wp.array(dtype=wp.vec3)  # [2] what velocity, acceleration and command make of the acceleration: flat, upright


@wp.func
def take_in(i: int, own: Own, seen: Seen, p: Planner, fresh: bool) -> Own:
    """Remember a drone's scan, read its movers, update its cost-to-go: the first part of every plan."""
    remember(p.map, i, seen, own.pos, own.yaw)
    read_movers(seen, i, own.pos, p.movers)
    update_cost(p.cost, p.map, i, own.pos, BODY_M, fresh)
    own.to_go = to_go(p.cost, i, own, own.pos)
    own.body = search.body_now(p.search, p.map, i, p.movers, own)
    return own


@wp.func
def choose(i: int, own: Own, seen: Seen, p: Planner) -> Choice:
    """The cheapest command, turned out of the velocity obstacles where the guard is on."""
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
    """Write each drone's command, m/s in the goal frame: the cheapest candidate, or of a shield the safe one nearest to
    what is wanted."""
    i = first + wp.tid()
    fresh = p.map.fresh[i]
    own = read_own(seen, i)
    if not fresh:
        own.acc = p.acc[i]
    own = take_in(i, own, seen, p, fresh)
    chosen = wp.vec3()
    if shield == 1:
        chosen = nearest_safe(p.search, p.map, i, p.movers, own, wanted[i])
    else:
        chosen = choose(i, own, seen, p).command
    command[i] = chosen
    p.acc[i] = predicted_acc(own, chosen, p.step)


@wp.struct
class PlanBuffers:
    """Inputs and results of the plans of N drones."""

    fast: float  # m/s
    slow: float
    brief_m: float  # m: what a brief command at the fast speed can gain
    limit: float  # m/s of an action of 1
    flown: wp.array2d(dtype=wp.float32)  # [N, 3] the last action, 0 to 1
    vel: wp.array(dtype=wp.vec3)  # [N] m/s, goal frame: at the last look
    kept: wp.array2d(dtype=wp.float32)  # [N, PLAN_WIDTH]


@wp.func
def flown_command(o: PlanBuffers, i: int) -> wp.vec3:
    """The command that the last action was, m/s in the goal frame."""
    return wp.vec3(
        o.limit * (2.0 * wp.clamp(o.flown[i, 0], 0.0, 1.0) - 1.0),
        o.limit * (2.0 * wp.clamp(o.flown[i, 1], 0.0, 1.0) - 1.0),
        o.limit * (2.0 * wp.clamp(o.flown[i, 2], 0.0, 1.0) - 1.0),
    )


@wp.func
def ahead_of(p: Planner, i: int, own: Own, command: wp.vec3) -> wp.vec2:
    """Time to a collision as a share of the horizon, and nearness until then."""
    s = p.search
    near = float(0.0)
    count = s.flat.shape[1] / STRIDE
    for n in range(count):
        k = n * STRIDE + STRIDE - 1
        t = float(k + 1) * s.step_s
        room = room_at(s, p.map, i, p.movers, own, at_look(s, own, command, 0, k), t)
        if wp.min(room) < 0.0:
            return wp.vec2(float(n) / float(count), near)
        near = near + float(STRIDE) * nearness(s, room, k)
    return wp.vec2(1.0, near)


@wp.func
def look_around(o: PlanBuffers, p: Planner, i: int, own: Own):
    """Write what hovering and every heading lead to."""
    rest = ahead_of(p, i, own, wp.vec3())
    o.kept[i, HOVER_TIME] = rest[0]
    o.kept[i, HOVER_NEAR] = rest[1] / (rest[1] + 1.0)
    for h in range(HEADINGS):
        heading = wp.vec3(wp.cos(TURN * float(h)), wp.sin(TURN * float(h)), 0.0)
        at = AROUND + EACH * h
        fast = ahead_of(p, i, own, o.fast * heading)
        slow = ahead_of(p, i, own, o.slow * heading)
        end = at_look(p.search, own, o.fast * heading, p.search.kinds - 1, p.search.flat.shape[1] - 1)
        o.kept[i, at] = fast[0]
        o.kept[i, at + 1] = slow[0]
        o.kept[i, at + 2] = fast[1] / (fast[1] + 1.0)
        o.kept[i, at + 3] = wp.clamp((own.to_go - to_go(p.cost, i, own, end)) / o.brief_m, -1.0, 1.0)


@wp.kernel(enable_backward=False)
def observe_plan(
    first: int,
    who: int,
    result: Result,
    step: wp.array(dtype=wp.int32),
    seen: Seen,
    p: Planner,
    o: PlanBuffers,
    out: wp.array2d(dtype=wp.float32),
):
    """Take in what a drone observes, and write its plan. The first observation of an episode clears its memory."""
    i = first + wp.tid()
    if who == ENDED and not (result.terminated[i] or result.truncated[i]):
        return
    fresh = step[i] == 0
    if who != BEGUN or fresh:
        own = read_own(seen, i)
        if not fresh:
            before = Own()
            before.vel = o.vel[i]
            before.acc = p.acc[i]
            own.acc = predicted_acc(before, flown_command(o, i), p.step)
        p.map.fresh[i] = fresh
        own = take_in(i, own, seen, p, fresh)
        chosen = choose(i, own, seen, p)
        for k in range(3):
            o.kept[i, COMMAND + k] = wp.clamp(chosen.command[k] / o.limit, -1.0, 1.0)
        o.kept[i, COST] = chosen.cost / (wp.abs(chosen.cost) + USUAL_COST)
        o.kept[i, BRIEF] = float(chosen.brief)
        look_around(o, p, i, own)
        o.vel[i] = own.vel
        p.acc[i] = own.acc
    for k in range(PLAN_WIDTH):
        out[i, k] = o.kept[i, k]
