"""The planner's kernels: read the observations, update the local map, search. One thread per drone.

`plan` writes commands. `observe_plan` writes the observation `plan`: the planner's command, and its predictions for all
headings. Times to a collision are shares of the planner's horizon: 1 means none within it. The nearness cost n is given as
n / (n + 1). Predictions use every second prediction step.
"""

import warp as wp

from fledge.envs.kernel_random import TWO_PI
from fledge.tasks.navigation.orca.kernel import Guard, guarded
from fledge.tasks.navigation.physics.structs import Result
from fledge.tasks.navigation.planner import clearance, search
from fledge.tasks.navigation.planner.clearance import Search, gaps_at, nearest_mover, nearness, position_at
from fledge.tasks.navigation.planner.cost_to_go import CostToGo, update_cost
from fledge.tasks.navigation.planner.identify import Response, flown_now, hastened, identify, note_command, when_it_acts
from fledge.tasks.navigation.planner.local_map import (
    RINGS,
    LocalMap,
    bands_between,
    fetch_at,
    in_every_ring,
    nearest_ring,
    place_of,
    remember,
    to_cell,
)
from fledge.tasks.navigation.planner.readings import FAR, Movers, Own, Seen, predicted_acc, read_own, track_movers
from fledge.tasks.navigation.planner.search import Choice, nearest_safe, to_go
from fledge.tasks.navigation.sensing.observations import PLAN
from fledge.tasks.navigation.sensing.observations import PLAN_HEADINGS as HEADINGS
from fledge.tasks.navigation.tracking.memory import draw_memory
from fledge.tasks.navigation.tracking.structs import Tracker

wp.set_module_options({"optimization_level": 3})  # a third faster than Warp's own level, and the same numbers

PLAN_WIDTH = PLAN.width
COMMAND, COST, BRIEF, HOVER_TIME, HOVER_NEAR, AROUND, *_ = PLAN.starts
EACH = PLAN.at("fast_time_1") - AROUND
STRIDE = 2
ALL, ENDED, BEGUN = 0, 1, 2  # which drones plan anew: all, those whose episode ended, or those whose episode begins
TURN = TWO_PI / HEADINGS
USUAL_COST = 6.0
STUCK_M = 0.5  # a drone that stays within this of a place is stuck
IMPATIENCE_S = 2.0

around = wp.types.vector(length=HEADINGS, dtype=wp.float32)


@wp.struct
class Planner:
    """Settings and buffers of the planner for N drones."""

    search: Search
    map: LocalMap
    cost: CostToGo
    movers: Movers
    response: Response
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
def update_memory(i: int, own: Own, seen: Seen, p: Planner, fresh: bool, top_speed: float) -> Own:
    """Update drone i's local map, movers and cost-to-go; return its state `own`, completed, when a new command takes effect.

    Commands whose horizontal speed is at most `top_speed`, m/s, can be predicted afterwards.
    """
    track_movers(seen, i, own.pos, p.movers, fresh)
    if p.tracker.on == 1:
        draw_memory(p.map, p.tracker, i, own.pos, seen.memory)
    else:
        remember(p.map, i, seen, p.movers, own, fresh)
    update_cost(p.cost, p.map, i, own.pos, p.search.reach_z, fresh)
    own.patience = patience_of(i, own, p, fresh)
    own = when_it_acts(p.response, i, own)
    own.to_go = to_go(p.cost, i, own, own.pos)
    clearance.predict_drift(p.search, i, own)
    own.further = clearance.further_margins(p.search, p.movers, i)
    own.reach = clearance.squared_reaches(p.search, p.movers, i, own.further)
    clearance.list_near_movers(p.search, p.movers, i, own, top_speed)
    own.body = clearance.body_now(p.search, p.map, i, p.movers, own)
    return own


@wp.func
def choose(i: int, own: Own, seen: Seen, p: Planner) -> Choice:
    """Return the cheapest command; if ORCA is on (`p.guard`), moved out of all velocity obstacles."""
    choice = search.cheapest(p.search, p.map, p.cost, i, p.movers, own)
    choice.command = guarded(p.guard, i, own, seen, p.movers, choice.command)
    choice.command = hastened(p.response, own, choice.command)
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
    now = identify(p.response, i, own, fresh)
    fastest = wp.max(p.search.top_speed, wp.float32(shield) * wp.length(wanted[i]))
    own = update_memory(i, now, seen, p, fresh, fastest)
    chosen = wp.vec3()
    if shield == 1:
        chosen = nearest_safe(p.search, p.map, i, p.movers, own, wanted[i])
    else:
        chosen = choose(i, own, seen, p).command
    command[i] = chosen
    note_command(p.response, i, chosen)
    p.acc[i] = predicted_acc(now, flown_now(p.response, i), p.step)


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
        gaps = gaps_at(s, p.map, i, p.movers, own, position_at(s, i, own, command, 0, k), k)
        if clearance.collides(gaps):
            return wp.vec2(float(n) / float(count), near)
        near = near + float(STRIDE) * nearness(s, gaps, k, 1.0)
    return wp.vec2(1.0, near)


@wp.struct
class Ahead:
    """Predictions for every heading, as `ahead_of` returns them for one command."""

    time: around
    near: around


@wp.func
def predict_around(p: Planner, i: int, own: Own, x: around, y: around, speed: float) -> Ahead:
    """Return predictions for level commands of one speed, m/s, in the directions (x, y).

    All directions advance together: at one prediction step they share height, height bands and list of movers, and their
    reads of the map overlap; those of the next step are started early.
    """
    s = p.search
    time = around(1.0)
    near = around()
    half = p.map.size / 2
    low = p.map.centre[i] - wp.vec2i(half, half)
    alive = int(HEADINGS)
    count = s.flat.shape[1] / STRIDE
    for n in range(count):
        k = n * STRIDE + STRIDE - 1
        base = position_at(s, i, own, wp.vec3(), 0, k)
        along = s.flat[2 * own.flat, k][2]
        share = float(n) / float(count)
        inside = clearance.is_within_heights(s, own, base[2])
        every = in_every_ring(bands_between(base[2] - s.reach_z, base[2] + s.reach_z))
        listed = p.movers.near[i, k]
        later = wp.min(k + STRIDE, s.flat.shape[1] - 1)
        flown = speed * s.flat[2 * own.flat, later][2]
        for h in range(HEADINGS):
            if time[h] == 1.0:
                fetch_at(p.map, i, s.drift[i, later][0] + flown * x[h], s.drift[i, later][1] + flown * y[h])
        for h in range(HEADINGS):
            if time[h] == 1.0:
                at = wp.vec3(base[0] + along * (speed * x[h]), base[1] + along * (speed * y[h]), base[2])
                gaps = wp.vec3(-1.0, -1.0, 0.0)
                if inside:
                    ix = to_cell(at[0])
                    iy = to_cell(at[1])
                    ring = int(RINGS)
                    if ix >= low[0] and ix < low[0] + p.map.size and iy >= low[1] and iy < low[1] + p.map.size:
                        ring = nearest_ring(p.map.cells[i, place_of(p.map, ix, iy)], every)
                    mover = wp.vec2(FAR, 0.0)
                    if listed != 0:
                        mover = nearest_mover(p.movers, i, own, at, own.lead + float(k + 1) * s.step_s, listed)
                    gaps = wp.vec3(s.ring_m[ring] - own.body[0], mover[0] - own.body[1], mover[1])
                if clearance.collides(gaps):
                    time[h] = share
                    alive = alive - 1
                else:
                    near[h] = near[h] + float(STRIDE) * nearness(s, gaps, k, 1.0)
        if alive == 0:
            break
    ahead = Ahead()
    ahead.time = time
    ahead.near = near
    return ahead


@wp.func
def write_predictions(o: PlanBuffers, p: Planner, i: int, own: Own):
    """Write the predictions for hovering and for every heading to drone i's plan."""
    x = around()
    y = around()
    for h in range(HEADINGS):
        x[h] = wp.cos(TURN * float(h))
        y[h] = wp.sin(TURN * float(h))
    hover = ahead_of(p, i, own, wp.vec3())
    fast = predict_around(p, i, own, x, y, o.fast)
    slow = predict_around(p, i, own, x, y, o.slow)
    o.kept[i, HOVER_TIME] = hover[0]
    o.kept[i, HOVER_NEAR] = hover[1] / (hover[1] + 1.0)
    for h in range(HEADINGS):
        command = wp.vec3(o.fast * x[h], o.fast * y[h], 0.0)
        end = position_at(p.search, i, own, command, p.search.kinds - 1, p.search.flat.shape[1] - 1)
        at = AROUND + EACH * h
        o.kept[i, at] = fast.time[h]
        o.kept[i, at + 1] = slow.time[h]
        o.kept[i, at + 2] = fast.near[h] / (fast.near[h] + 1.0)
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
            note_command(p.response, i, flown_command(o, i))
            own.acc = predicted_acc(before, flown_now(p.response, i), p.step)
        own = identify(p.response, i, own, fresh)
        o.vel[i] = own.vel
        p.acc[i] = own.acc
        p.map.fresh[i] = fresh
        own = update_memory(i, own, seen, p, fresh, wp.max(p.search.top_speed, wp.max(o.fast, o.slow)))
        chosen = choose(i, own, seen, p)
        for k in range(3):
            o.kept[i, COMMAND + k] = wp.clamp(chosen.command[k] / o.limit, -1.0, 1.0)
        o.kept[i, COST] = chosen.cost / (wp.abs(chosen.cost) + USUAL_COST)
        o.kept[i, BRIEF] = float(chosen.brief)
        write_predictions(o, p, i, own)
    for k in range(PLAN_WIDTH):
        out[i, k] = o.kept[i, k]
