"""Collisions between drones of one world, exact and swept over each physics step.

Two equal bodies touch exactly if one of them, at rest, would touch a point half as far away as the other's centre.
So `touches` decides for two drones as it does for a drone and a point. `fly` moves each drone through a whole decision
on its own; `meet` then goes through the physics steps in order, and cuts the flights of drones that touch short.
"""

import warp as wp

from fledge.tasks.navigation.physics.bodies import touches
from fledge.tasks.navigation.physics.flight import MOVING, outside_band
from fledge.tasks.navigation.physics.structs import Drones, Params


@wp.func
def steps_flown(p: Params, drones: Drones, i: int) -> int:
    """Return the physics steps that drone i has flown in this decision."""
    return int(drones.elapsed[i] / p.dt_s + 0.5)


@wp.func
def crash_at(p: Params, drones: Drones, i: int, k: int):
    """End the flight of drone i by a collision in physics step k, unless it crashed into something else in that step."""
    surplus = steps_flown(p, drones, i) - (k + 1)
    if surplus == 0 and drones.crash[i] > 0:
        return
    goal = drones.goal[i]
    pos = drones.track[i, k + 1]
    outside = float(0.0)
    for n in range(k + 1):
        band = outside_band(drones.track[i, n + 1][2], drones.start[i], goal)
        outside = outside + band * band * p.dt_s
    drones.pos[i] = pos
    drones.step[i] = drones.step[i] - surplus
    drones.elapsed[i] = float(k + 1) * p.dt_s
    drones.progress[i] = wp.length(goal - drones.track[i, 0]) - wp.length(goal - pos)
    drones.outside[i] = outside
    drones.reached[i] = 0
    drones.crash[i] = MOVING


@wp.kernel(enable_backward=False)
def meet(first: int, p: Params, drones: Drones):
    """Find collisions between the drones of each world in this decision; the thread of the world's first drone does it.

    A drone is in the world until the end of the physics step in which it reaches its goal or crashes.
    """
    group = first + wp.tid()
    if group % p.drones != 0:
        return
    last = group + p.drones
    for k in range(p.decimation):
        for a in range(group, last):
            if steps_flown(p, drones, a) > k:
                for b in range(a + 1, last):
                    if steps_flown(p, drones, b) > k:
                        before = drones.track[b, k] - drones.track[a, k]
                        after = drones.track[b, k + 1] - drones.track[a, k + 1]
                        if touches(p, True, wp.vec3(), 0.5 * before, 0.5 * after):
                            crash_at(p, drones, a, k)
                            crash_at(p, drones, b, k)
