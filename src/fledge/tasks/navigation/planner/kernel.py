"""One launch a decision: read what is observed, remember it, search. One thread a drone."""

import warp as wp

from fledge.tasks.navigation.planner.local_map import LocalMap, Scan, remember
from fledge.tasks.navigation.planner.search import (
    C_BODY,
    C_MOVERS,
    Movers,
    Own,
    Search,
    body_now,
    cheapest,
    nearest_safe,
    read_mover,
    to_go,
)
from fledge.tasks.navigation.planner.way import Ways, find_ways


@wp.func
def read_own(
    i: int,
    state: wp.array2d(dtype=wp.float32),
    pose: wp.array2d(dtype=wp.float32),
    acc: wp.array(dtype=wp.vec3),
    fresh: bool,
) -> Own:
    """Where the drone is, from `state` and `pose`; acceleration is what the last command was foreseen to do."""
    own = Own()
    ux = state[i, 0]
    uy = state[i, 1]
    flat = state[i, 3]
    length = wp.sqrt(ux * ux + uy * uy)
    own.ahead = wp.vec2(1.0, 0.0)
    if length > 1.0e-6:
        own.ahead = wp.vec2(ux / length, uy / length)
    height = pose[i, 0]
    own.pos = wp.vec3(-flat * own.ahead[0], -flat * own.ahead[1], height)
    own.goal = wp.vec3(0.0, 0.0, height + state[i, 4])
    own.vel = wp.vec3(state[i, 5], state[i, 6], state[i, 7])
    if not fresh:
        own.acc = acc[i]
    return own


@wp.func
def foreseen(own: Own, command: wp.vec3, step: wp.array(dtype=wp.vec3)) -> wp.vec3:
    """Acceleration at the next decision."""
    f = step[0]
    u = step[1]
    return wp.vec3(
        f[0] * own.vel[0] + f[1] * own.acc[0] + f[2] * command[0],
        f[0] * own.vel[1] + f[1] * own.acc[1] + f[2] * command[1],
        u[0] * own.vel[2] + u[1] * own.acc[2] + u[2] * command[2],
    )


@wp.func
def take_in(
    i: int,
    own: Own,
    rows: wp.array2d(dtype=wp.float32),
    pose: wp.array2d(dtype=wp.float32),
    scan: Scan,
    search: Search,
    m: LocalMap,
    w: Ways,
    movers: Movers,
    fresh: bool,
) -> Own:
    """Remember a drone's scan, read its movers, find its ways: what every plan begins with."""
    remember(m, i, scan, own.pos, pose[i, 1])
    for k in range(C_MOVERS):
        read_mover(rows, i, k, own.pos, movers)
    find_ways(w, m, i, own.pos, C_BODY, fresh)
    own.way = to_go(w, i, own, own.pos)
    own.body = body_now(search, m, i, movers, own)
    return own


@wp.kernel(enable_backward=False)
def plan(
    first: int,
    state: wp.array2d(dtype=wp.float32),
    rows: wp.array2d(dtype=wp.float32),
    pose: wp.array2d(dtype=wp.float32),
    scan: Scan,
    search: Search,
    m: LocalMap,
    w: Ways,
    movers: Movers,
    step: wp.array(dtype=wp.vec3),
    shield: int,
    wanted: wp.array(dtype=wp.vec3),
    acc: wp.array(dtype=wp.vec3),
    command: wp.array(dtype=wp.vec3),
):
    """Write each drone's command, m/s in the goal frame: the cheapest candidate, or of a shield the safe one nearest to
    what is wanted."""
    i = first + wp.tid()
    fresh = m.fresh[i]
    own = read_own(i, state, pose, acc, fresh)
    own = take_in(i, own, rows, pose, scan, search, m, w, movers, fresh)
    chosen = wp.vec3()
    if shield == 1:
        chosen = nearest_safe(search, m, w, i, movers, own, wanted[i])
    else:
        chosen = cheapest(search, m, w, i, movers, own).command
    command[i] = chosen
    acc[i] = foreseen(own, chosen, step)
