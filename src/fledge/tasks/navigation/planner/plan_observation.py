"""The kernel of the observation `plan`: what the planner would fly, and what it predicts all around. One thread a drone.

`sensing/observations.py` lists its columns. Times are shares of the planner's horizon: 1 means none within it. Nearness n,
as the planner prices it, is given as n / (n + 1). Every second look is taken.
"""

import warp as wp

from fledge.envs.kernel_random import TWO_PI
from fledge.tasks.navigation.physics.structs import Result
from fledge.tasks.navigation.planner.kernel import Planner, choose, take_in
from fledge.tasks.navigation.planner.local_map import Scan
from fledge.tasks.navigation.planner.readings import Own, predicted_acc, read_own
from fledge.tasks.navigation.planner.search import at_look, nearness, room_at, to_go
from fledge.tasks.navigation.sensing.observations import PLAN
from fledge.tasks.navigation.sensing.observations import PLAN_HEADINGS as HEADINGS

PLAN_WIDTH = PLAN.width
COMMAND, COST, BRIEF = PLAN.at("command"), PLAN.at("cost"), PLAN.at("brief")
HOVER_TIME, HOVER_NEAR = PLAN.at("hover_time"), PLAN.at("hover_nearness")
AROUND = PLAN.at("fast_time_0")
EACH = PLAN.at("fast_time_1") - AROUND
STRIDE = 2
AHEAD, ENDED, BEGUN = 0, 1, 2  # plans of: all; episodes that ended; new episodes, others keep theirs
TURN = TWO_PI / HEADINGS
USUAL_COST = 6.0


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
    state: wp.array2d(dtype=wp.float32),
    rows: wp.array2d(dtype=wp.float32),
    pose: wp.array2d(dtype=wp.float32),
    scan: Scan,
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
        own = read_own(i, state, pose, p.acc, True)
        if not fresh:
            before = Own()
            before.vel = o.vel[i]
            before.acc = p.acc[i]
            own.acc = predicted_acc(before, flown_command(o, i), p.step)
        p.map.fresh[i] = fresh
        own = take_in(i, own, rows, scan, p, fresh)
        chosen = choose(i, own, scan, p)
        for k in range(3):
            o.kept[i, COMMAND + k] = wp.clamp(chosen.command[k] / o.limit, -1.0, 1.0)
        o.kept[i, COST] = chosen.cost / (wp.abs(chosen.cost) + USUAL_COST)
        o.kept[i, BRIEF] = float(chosen.brief)
        look_around(o, p, i, own)
        o.vel[i] = own.vel
        p.acc[i] = own.acc
    for k in range(PLAN_WIDTH):
        out[i, k] = o.kept[i, k]
