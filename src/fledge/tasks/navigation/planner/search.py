"""The search: predict every candidate command on the local map and among the movers, and choose the cheapest.

Cost of a candidate, in metres of path:

    metres lost     against flying straight to the goal at full speed over the horizon
    + margin_cost * sum over prediction steps of (margin - clearance) * exp(-t / fading)    if clearance < margin
    or  crash_cost - crash_relief * t     if the body touches an obstacle at time t
    or  t - REACHED                       if the goal is reached at time t

A candidate is a velocity command that is held, or a brief command followed by a stop: where every held command ends at a
column, brief commands still make progress. The drone responds linearly, so its position after k prediction steps is
    pos + a_k * velocity + b_k * acceleration + c_k * command
with three coefficients per step that are computed once for each possible response (`responses.py`); clearances come from
`clearance.py`. The last choice is tried first, then all candidates in a fixed order, the likely candidates first. A candidate
is dropped as soon as its cost must exceed the lowest so far: by the straight line from its end to the goal, then by the path
from there, then by a few of its prediction steps, and only then step by step. That changes no result: the first of equally
cheap candidates wins.
"""

import warp as wp

from fledge.tasks.navigation.physics.structs import to_world
from fledge.tasks.navigation.planner.clearance import (
    BLOCK,
    ROUNDING,
    Search,
    collides,
    gaps_at,
    nearness,
    position_at,
)
from fledge.tasks.navigation.planner.cost_to_go import CostToGo, cost_from
from fledge.tasks.navigation.planner.local_map import LocalMap, fetch_at
from fledge.tasks.navigation.planner.readings import FAR, Movers, Own

REACHED = 1000.0  # m: reduction of the cost if the goal is reached
PROBE = 5  # every so many prediction steps are examined first


@wp.func
def to_go(w: CostToGo, i: int, own: Own, at: wp.vec3) -> float:
    """Return the length of the shortest path from a point to the goal, m, including the difference in height."""
    flat = cost_from(w, i, at[0], at[1])
    up = own.goal[2] - at[2]
    return wp.sqrt(flat * flat + up * up)


@wp.func
def goal_step(s: Search, i: int, own: Own, command: wp.vec3, brief: int) -> int:
    """Return the first prediction step at which a command reaches the goal if it meets no obstacle, or else T."""
    for k in range(s.flat.shape[1]):
        away = own.goal - position_at(s, i, own, command, brief, k)
        if wp.dot(away, away) < s.goal_radius * s.goal_radius:
            return k
    return s.flat.shape[1]


@wp.func
def is_too_costly(
    s: Search, m: LocalMap, i: int, movers: Movers, own: Own, command: wp.vec3, brief: int, cost: float, enough: float
) -> bool:
    """Return whether every PROBE-th prediction step shows that a command costs more than `enough`; arguments as `cost_of`.

    A collision at any time must cost more than that.
    """
    k = s.flat.shape[1] - 1  # last steps first: there, most commands that lead into obstacles show it
    while k >= 0:
        gaps = gaps_at(s, m, i, movers, own, position_at(s, i, own, command, brief, k), k)
        cost = cost + nearness(s, gaps, k, own.patience)
        if collides(gaps) or cost > enough + ROUNDING:
            return True
        k = k - PROBE
    return False


@wp.func
def deepest(
    s: Search, m: LocalMap, i: int, movers: Movers, own: Own, command: wp.vec3, brief: int, first: int
) -> float:
    """Return the largest cost of a collision from prediction step `first` on, by its time and its depth."""
    cost = wp.max(s.crash_cost - s.crash_relief * float(first + 1) * s.step_s, 0.0)
    for k in range(first, s.flat.shape[1]):
        gaps = gaps_at(s, m, i, movers, own, position_at(s, i, own, command, brief, k), k)
        depth = -wp.min(gaps[0], gaps[1])
        if depth > 0.0:
            cost = cost + s.depth_cost * depth * wp.exp(-float(k + 1) * s.step_s)
    return cost


@wp.func
def cost_of(
    s: Search,
    m: LocalMap,
    i: int,
    movers: Movers,
    own: Own,
    command: wp.vec3,
    brief: int,
    goal: int,
    cost: float,
    enough: float,
) -> float:
    """Return the cost of a command, or a lower bound of at least `enough`.

    `cost` is the distance that is lost, and `goal` the prediction step at which the command reaches the goal.
    """
    steps = s.flat.shape[1]
    if goal == steps and wp.where(s.depth_cost > 0.0, 0.0, cost) + s.least_crash > enough + ROUNDING:
        if is_too_costly(s, m, i, movers, own, command, brief, cost, enough):
            return FAR
    for k in range(steps):
        if cost >= enough and goal == steps:
            return cost
        t = float(k + 1) * s.step_s
        gaps = gaps_at(s, m, i, movers, own, position_at(s, i, own, command, brief, k), k)
        if collides(gaps):
            if s.depth_cost > 0.0:
                return wp.max(deepest(s, m, i, movers, own, command, brief, k), cost)
            return wp.max(s.crash_cost - s.crash_relief * t, 0.0) + cost
        if k == goal:
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
def cost_below(
    s: Search, m: LocalMap, w: CostToGo, i: int, movers: Movers, own: Own, n: int, may_reach: bool, enough: float
) -> float:
    """Return the cost of candidate n, or a lower bound of at least `enough`.

    `may_reach` is false if no command reaches the goal. Brief commands count from C on.
    """
    brief = n / s.commands.shape[0]
    steps = s.flat.shape[1]
    command = to_world(s.commands[n - brief * s.commands.shape[0]], own.ahead)
    end = position_at(s, i, own, command, brief, steps - 1)
    # no path is shorter than a straight line
    away = own.goal - end
    longest = wp.max(enough + own.to_go - s.gain + ROUNDING, 0.0)
    if not may_reach and wp.dot(away, away) >= longest * longest:
        return FAR
    cost = to_go(w, i, own, end) - own.to_go + s.gain  # distance lost against full speed to the goal
    goal = steps
    if may_reach:
        goal = goal_step(s, i, own, command, brief)
    if wp.where(goal < steps, float(goal + 1) * s.step_s - REACHED, cost) >= enough:
        return FAR
    return cost_of(s, m, i, movers, own, command, brief, goal, cost, enough)


@wp.func
def worth_a_look(s: Search, i: int, own: Own, brief: int, b: int, enough: float) -> wp.uint32:
    """Return a bit for each command of block b that may cost less than `enough`, by the straight line from its end."""
    steps = s.flat.shape[1]
    x = s.blocks[0, b]
    y = s.blocks[1, b]
    z = s.blocks[2, b]
    along = s.flat[2 * own.flat + brief, steps - 1][2]
    up = s.upright[2 * own.upright + brief, steps - 1][2]
    left = own.goal - position_at(s, i, own, wp.vec3(), brief, steps - 1)
    longest = wp.max(enough + own.to_go - s.gain, 0.0) + 3.0 * ROUNDING
    square = longest * longest
    bits = wp.uint32(0)
    h = int(0)
    while h < BLOCK:
        dx = left[0] - along * (own.ahead[0] * x[h] - own.ahead[1] * y[h])
        dy = left[1] - along * (own.ahead[1] * x[h] + own.ahead[0] * y[h])
        dz = left[2] - up * z[h]
        bits = bits | wp.where(dx * dx + dy * dy + dz * dz < square, wp.uint32(1) << wp.uint32(h), wp.uint32(0))
        h = h + 1
    return bits


@wp.func
def fetch_path(s: Search, m: LocalMap, i: int, own: Own, n: int, stride: int):
    """Start to load the map's cells under every `stride`-th prediction step of candidate n; brief commands count from C on.

    The maps of many drones do not fit into the processor's cache, and loads take less time in parallel.
    """
    brief = n / s.commands.shape[0]
    command = to_world(s.commands[n - brief * s.commands.shape[0]], own.ahead)
    k = s.flat.shape[1] - 1
    while k >= 0:
        at = position_at(s, i, own, command, brief, k)
        fetch_at(m, i, at[0], at[1])
        k = k - stride


@wp.func
def fetch_paths(s: Search, m: LocalMap, i: int, own: Own, brief: int, b: int, bits: wp.uint32):
    """Do as `fetch_path` for the commands of block b that have a bit."""
    c = b * BLOCK
    while bits != wp.uint32(0) and c < s.commands.shape[0]:
        if (bits & wp.uint32(1)) != wp.uint32(0):
            fetch_path(s, m, i, own, brief * s.commands.shape[0] + c, PROBE)
        bits = bits >> wp.uint32(1)
        c = c + 1


@wp.func
def cheapest(s: Search, m: LocalMap, w: CostToGo, i: int, movers: Movers, own: Own) -> Choice:
    """Return the cheapest command, held or brief; of equally cheap commands the first.

    The last choice is tried before all others: it is often the best again, so that its cost rules out most others.
    """
    count = s.commands.shape[0]
    most = s.furthest
    # the least that a command must contribute to reach the goal within the horizon
    ahead = wp.vec3(own.ahead[0], own.ahead[1], 0.0)
    needed = wp.length(wp.vec2(own.pos[0], own.pos[1])) - s.goal_radius - ROUNDING
    needed = needed - most[0] * wp.abs(wp.dot(own.vel, ahead)) - most[1] * wp.abs(wp.dot(own.acc, ahead))
    last = s.last[i]
    fetch_path(s, m, i, own, last, 1)
    known = cost_below(s, m, w, i, movers, own, last, most[2] * s.top_speed >= needed, FAR)
    best = int(-1)
    least = wp.min(known + wp.max(ROUNDING, 1.0e-6 * wp.abs(known)), FAR)
    for brief in range(s.kinds):
        for b in range(s.blocks.shape[1]):
            bits = ~wp.uint32(0)
            if most[2] * s.top_speed < needed:
                bits = worth_a_look(s, i, own, brief, b, least)
            fetch_paths(s, m, i, own, brief, b, bits)
            c = b * BLOCK
            while bits != wp.uint32(0) and c < count:
                if (bits & wp.uint32(1)) != wp.uint32(0):
                    n = brief * count + c
                    cost = known
                    if n != last:
                        cost = cost_below(s, m, w, i, movers, own, n, most[2] * s.commands[c][0] >= needed, least)
                    if cost < least:
                        best = n
                        least = cost
                bits = bits >> wp.uint32(1)
                c = c + 1
    choice = Choice()
    choice.cost = least
    if best >= 0:
        s.last[i] = best
        choice.brief = best / count
        choice.command = to_world(s.commands[best - choice.brief * count], own.ahead)
    return choice


@wp.func
def crash_time(s: Search, m: LocalMap, i: int, movers: Movers, own: Own, command: wp.vec3) -> float:
    """Return the time to a collision under a command, s; FAR if there is none within the first `alarm` prediction steps."""
    for k in range(s.alarm):
        if collides(gaps_at(s, m, i, movers, own, position_at(s, i, own, command, 0, k), k)):
            return float(k + 1) * s.step_s
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
                gaps = gaps_at(s, m, i, movers, own, position_at(s, i, own, command, 0, k), k)
                if collides(gaps):
                    cost = cost + s.crash_cost - s.crash_relief * float(k + 1) * s.step_s
                    break
                cost = cost + nearness(s, gaps, k, 1.0)
        if cost < least:
            least = cost
            best = command
    return best
