"""Moving obstacles in worlds of voxels: each walks from waypoint to waypoint through free space.

A waypoint is a point within `ROAM_M` of the obstacle that it can reach on a straight line; where there is none, the obstacle
rests and looks again later. Kinds and speeds are those of `crowd`. Random numbers depend only on (seed, map key, obstacle, age
of the map in steps).
"""

import warp as wp

from fledge.envs.kernel_random import TWO_PI, uniform4
from fledge.tasks.navigation.physics.crowd import (
    GOAL_REACHED_M,
    MIN_SPEED,
    P_GOAL,
    P_ORIGIN,
    P_SPEED,
    ROAM_M,
    SPEED_SPAN,
    SPEED_STEPS,
    Crowd,
    is_apart,
    mover_of,
    place,
    stream,
)
from fledge.tasks.navigation.physics.shapes import STANDING_Z_M, is_standing, width_of
from fledge.tasks.navigation.physics.voxel_struct import Voxels
from fledge.tasks.navigation.physics.voxels import cast_voxels, is_outside

TRIES = 8
APART_M = 2.0  # distance of origins, if there is room
WAIST_M = 1.0  # height at which a standing obstacle looks for free space
NEAREST_M = 1.0  # a waypoint is at least this far away


@wp.func
def is_way_clear(v: Voxels, w: int, pos: wp.vec3, to: wp.vec3, half_width: float) -> bool:
    """Return whether an obstacle can go straight to a point in the world: rays at its middle and its sides hit nothing."""
    way = to - pos
    length = wp.length(way)
    if length < 1.0e-6 or is_outside(v, w, to):
        return False
    ray = way / length
    side = wp.vec3(-ray[1], ray[0], 0.0) * half_width
    reach = length + half_width
    if cast_voxels(v, w, pos, ray, reach) < reach:
        return False
    return cast_voxels(v, w, pos + side, ray, reach) >= reach and cast_voxels(v, w, pos - side, ray, reach) >= reach


@wp.kernel(enable_backward=False)
def place_walkers(
    slots: wp.array(dtype=wp.int32), keys: wp.array(dtype=wp.vec2ui), seed: wp.vec2ui, v: Voxels, crowd: Crowd
):
    """Place obstacles at rest at starts of routes, apart from each other if there is room; one thread per map."""
    slot = slots[wp.tid()]
    if slot < 0:
        return
    key = keys[slot]
    w = v.world[slot]
    routes = v.start.shape[1]
    for j in range(crowd.placed[slot]):
        origin = wp.vec3()
        for t in range(TRIES):
            u = uniform4(key[0], key[1], stream(P_ORIGIN, j), wp.uint32(t), seed)
            origin = v.start[w, wp.min(int(u[0] * float(routes)), routes - 1)]
            if is_apart(crowd, slot, j, origin[0], origin[1], APART_M):
                break
        if is_standing(crowd.kinds[j]):
            origin = wp.vec3(origin[0], origin[1], STANDING_Z_M)
        place(crowd, slot, j, origin, origin, wp.vec3())


@wp.func
def waypoint(v: Voxels, w: int, kind: int, key: wp.vec2ui, j: int, age: int, pos: wp.vec3, seed: wp.vec2ui) -> wp.vec3:
    """Return a random point that obstacle j can reach on a straight line, or its own position if none is found."""
    for t in range(TRIES):
        u = uniform4(key[0], key[1], stream(P_GOAL, j), wp.uint32(age + (t << 28)), seed)
        away = NEAREST_M + (ROAM_M - NEAREST_M) * u[0]
        step = away * wp.vec3(wp.cos(TWO_PI * u[1]), wp.sin(TWO_PI * u[1]), 0.0)
        if not is_standing(kind):
            step = step + wp.vec3(0.0, 0.0, 2.0 * u[2] - 1.0)
        at = pos
        if is_standing(kind):
            at = wp.vec3(pos[0], pos[1], WAIST_M)
        if is_way_clear(v, w, at, at + step, 0.5 * width_of(kind)):
            return pos + step
    return pos


@wp.kernel(enable_backward=False)
def step_walkers(
    first: int,
    keys: wp.array(dtype=wp.vec2ui),
    clock: wp.array(dtype=wp.int32),
    dt: float,
    seed: wp.vec2ui,
    v: Voxels,
    crowd: Crowd,
):
    """Move all obstacles by the physics steps of one decision, one thread per obstacle."""
    slot, j = mover_of(first, wp.tid(), crowd)
    steps = crowd.trail.shape[0]
    start_age = clock[0] - crowd.born[slot]
    if j >= crowd.placed[slot] or start_age < 0:
        return
    key = keys[slot]
    goal = crowd.goal[slot, j]
    vel = crowd.vel[slot, j]
    pos = crowd.trail[steps - 1, slot, j]
    crowd.before[slot, j] = pos
    for k in range(steps):
        age = start_age + k
        rests = wp.length(vel) == 0.0
        arrived = wp.length(goal - pos) < GOAL_REACHED_M
        renew = age % SPEED_STEPS == 0
        if (arrived and not rests) or (rests and renew):
            goal = waypoint(v, v.world[slot], crowd.kinds[j], key, j, age, pos, seed)
            renew = True
        if renew:
            u = uniform4(key[0], key[1], stream(P_SPEED, j), wp.uint32(age), seed)
            vel = wp.vec3()
            if wp.length(goal - pos) >= GOAL_REACHED_M:
                vel = wp.normalize(goal - pos) * (crowd.speed * (MIN_SPEED + SPEED_SPAN * u[0]))
        pos = pos + vel * dt
        crowd.trail[k, slot, j] = pos
    crowd.goal[slot, j] = goal
    crowd.vel[slot, j] = vel
