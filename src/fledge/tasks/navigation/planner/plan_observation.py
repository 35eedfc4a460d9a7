"""The observation `plan`: what the planner would fly, and what it sees ahead all around. One thread a drone.

    0-2        the command that it would fly, in shares of the speed limit: what an action of (a + 1) / 2 flies
    3          its cost c in metres lost, as c / (|c| + 6)                 4      1 if it is a brief one
    5, 6       hovering: time to a collision, nearness
    7 + 4 h    heading h of 32, counter-clockwise from x of the goal frame, level:
      + 0      time to a collision at the fast speed                       + 1    and at the slow one
      + 2      nearness of the fast one
      + 3      way gained towards the goal by a brief fast one

Times are shares of the planner's horizon: 1 is none within it. Nearness n, as the planner prices it, is n / (n + 1). Way is
in shares of what the fast speed makes in the brief time, within -1 and 1. Every second look is taken.
"""

import warp as wp

from fledge.tasks.navigation.orca.kernel import Guard, guarded
from fledge.tasks.navigation.physics.structs import Result
from fledge.tasks.navigation.planner.cost_to_go import Ways
from fledge.tasks.navigation.planner.kernel import take_in
from fledge.tasks.navigation.planner.local_map import LocalMap, Scan
from fledge.tasks.navigation.planner.own import foreseen, read_own
from fledge.tasks.navigation.planner.search import (
    Movers,
    Own,
    Search,
    at_look,
    cheapest,
    nearness,
    room_at,
    to_go,
)

HEADINGS = 32
OWN = 7
EACH = 4
PLAN_WIDTH = OWN + EACH * HEADINGS
STRIDE = 2
AHEAD, ENDED, BEGUN = 0, 1, 2  # who looks: all; those whose episode ended; those at the start of one, others as before

C_HEADINGS = wp.constant(HEADINGS)
C_OWN = wp.constant(OWN)
C_EACH = wp.constant(EACH)
C_WIDTH = wp.constant(PLAN_WIDTH)
C_STRIDE = wp.constant(STRIDE)
C_ENDED = wp.constant(ENDED)
C_BEGUN = wp.constant(BEGUN)
TURN = wp.constant(6.283185307179586 / HEADINGS)
USUAL_COST = wp.constant(6.0)


@wp.struct
class Outlook:
    """What the plan of N drones is told from and kept in."""

    fast: float  # m/s
    slow: float
    brief_m: float  # m: way that a brief command at the fast speed is worth
    limit: float  # m/s of an action of 1
    flown: wp.array2d(dtype=wp.float32)  # [N, 3] the last action, 0 to 1
    vel: wp.array(dtype=wp.vec3)  # [N] m/s, goal frame: at the last look
    acc: wp.array(dtype=wp.vec3)  # [N] m/s²
    kept: wp.array2d(dtype=wp.float32)  # [N, PLAN_WIDTH]


@wp.func
def flown_command(o: Outlook, i: int) -> wp.vec3:
    """The command that the last action was, m/s in the goal frame."""
    return wp.vec3(
        o.limit * (2.0 * wp.clamp(o.flown[i, 0], 0.0, 1.0) - 1.0),
        o.limit * (2.0 * wp.clamp(o.flown[i, 1], 0.0, 1.0) - 1.0),
        o.limit * (2.0 * wp.clamp(o.flown[i, 2], 0.0, 1.0) - 1.0),
    )


@wp.func
def ahead_of(s: Search, m: LocalMap, i: int, movers: Movers, own: Own, command: wp.vec3) -> wp.vec2:
    """Time to a collision as a share of the horizon, and nearness until then."""
    near = float(0.0)
    count = s.flat.shape[1] / C_STRIDE
    for n in range(count):
        k = n * C_STRIDE + C_STRIDE - 1
        t = float(k + 1) * s.step_s
        room = room_at(s, m, i, movers, own, at_look(s, own, command, 0, k), t)
        if wp.min(room) < 0.0:
            return wp.vec2(float(n) / float(count), near)
        near = near + float(C_STRIDE) * nearness(s, room, k)
    return wp.vec2(1.0, near)


@wp.func
def look_around(o: Outlook, s: Search, m: LocalMap, w: Ways, i: int, movers: Movers, own: Own):
    """Write what hovering and every heading lead to."""
    rest = ahead_of(s, m, i, movers, own, wp.vec3())
    o.kept[i, 5] = rest[0]
    o.kept[i, 6] = rest[1] / (rest[1] + 1.0)
    for h in range(C_HEADINGS):
        way = wp.vec3(wp.cos(TURN * float(h)), wp.sin(TURN * float(h)), 0.0)
        at = C_OWN + C_EACH * h
        fast = ahead_of(s, m, i, movers, own, o.fast * way)
        slow = ahead_of(s, m, i, movers, own, o.slow * way)
        left = to_go(w, i, own, at_look(s, own, o.fast * way, s.kinds - 1, s.flat.shape[1] - 1))
        o.kept[i, at] = fast[0]
        o.kept[i, at + 1] = slow[0]
        o.kept[i, at + 2] = fast[1] / (fast[1] + 1.0)
        o.kept[i, at + 3] = wp.clamp((own.way - left) / o.brief_m, -1.0, 1.0)


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
    search: Search,
    m: LocalMap,
    w: Ways,
    movers: Movers,
    decision: wp.array(dtype=wp.vec3),
    guard: Guard,
    o: Outlook,
    out: wp.array2d(dtype=wp.float32),
):
    """Take in what a drone observes, and write its plan. With the first observation of an episode it remembers nothing."""
    i = first + wp.tid()
    if who == C_ENDED and not (result.terminated[i] or result.truncated[i]):
        return
    fresh = step[i] == 0
    if who != C_BEGUN or fresh:
        own = read_own(i, state, pose, o.acc, True)
        if not fresh:
            before = Own()
            before.vel = o.vel[i]
            before.acc = o.acc[i]
            own.acc = foreseen(before, flown_command(o, i), decision)
        m.fresh[i] = fresh
        own = take_in(i, own, rows, pose, scan, search, m, w, movers, fresh)
        chosen = cheapest(search, m, w, i, movers, own)
        command = guarded(guard, i, own, pose[i, 1], scan, movers, chosen.command)
        for k in range(3):
            o.kept[i, k] = wp.clamp(command[k] / o.limit, -1.0, 1.0)
        o.kept[i, 3] = chosen.cost / (wp.abs(chosen.cost) + USUAL_COST)
        o.kept[i, 4] = float(chosen.brief)
        look_around(o, search, m, w, i, movers, own)
        o.vel[i] = own.vel
        o.acc[i] = own.acc
    for k in range(C_WIDTH):
        out[i, k] = o.kept[i, k]
