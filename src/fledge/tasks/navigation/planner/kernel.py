"""The planner's kernel: read what is observed, remember it, search. One thread a drone."""

import warp as wp

from fledge.tasks.navigation.orca.kernel import Guard, guarded
from fledge.tasks.navigation.planner.cost_to_go import CostToGo, update_cost
from fledge.tasks.navigation.planner.local_map import LocalMap, Scan, remember
from fledge.tasks.navigation.planner.readings import Movers, Own, predicted_acc, read_movers, read_own
from fledge.tasks.navigation.planner.search import BODY_M, Choice, Search, body_now, cheapest, nearest_safe, to_go


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
def take_in(i: int, own: Own, rows: wp.array2d(dtype=wp.float32), scan: Scan, p: Planner, fresh: bool) -> Own:
    """Remember a drone's scan, read its movers, update its cost-to-go: the first part of every plan."""
    remember(p.map, i, scan, own.pos, own.yaw)
    read_movers(rows, i, own.pos, p.movers)
    update_cost(p.cost, p.map, i, own.pos, BODY_M, fresh)
    own.to_go = to_go(p.cost, i, own, own.pos)
    own.body = body_now(p.search, p.map, i, p.movers, own)
    return own


@wp.func
def choose(i: int, own: Own, scan: Scan, p: Planner) -> Choice:
    """The cheapest command, turned out of the velocity obstacles where the guard is on."""
    choice = cheapest(p.search, p.map, p.cost, i, p.movers, own)
    choice.command = guarded(p.guard, i, own, scan, p.movers, choice.command)
    return choice


@wp.kernel(enable_backward=False)
def plan(
    first: int,
    state: wp.array2d(dtype=wp.float32),
    rows: wp.array2d(dtype=wp.float32),
    pose: wp.array2d(dtype=wp.float32),
    scan: Scan,
    p: Planner,
    shield: int,
    wanted: wp.array(dtype=wp.vec3),
    command: wp.array(dtype=wp.vec3),
):
    """Write each drone's command, m/s in the goal frame: the cheapest candidate, or of a shield the safe one nearest to
    what is wanted."""
    i = first + wp.tid()
    fresh = p.map.fresh[i]
    own = read_own(i, state, pose, p.acc, fresh)
    own = take_in(i, own, rows, scan, p, fresh)
    chosen = wp.vec3()
    if shield == 1:
        chosen = nearest_safe(p.search, p.map, i, p.movers, own, wanted[i])
    else:
        chosen = choose(i, own, scan, p).command
    command[i] = chosen
    p.acc[i] = predicted_acc(own, chosen, p.step)
