"""One launch a decision: read what is observed, remember it, search. One thread a drone."""

import warp as wp

from fledge.tasks.navigation.orca.kernel import Guard, guarded
from fledge.tasks.navigation.planner.cost_to_go import Ways, find_ways
from fledge.tasks.navigation.planner.local_map import LocalMap, Scan, remember
from fledge.tasks.navigation.planner.own import foreseen, read_own
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
    guard: Guard,
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
        chosen = guarded(guard, i, own, pose[i, 1], scan, movers, cheapest(search, m, w, i, movers, own).command)
    command[i] = chosen
    acc[i] = foreseen(own, chosen, step)
