"""Moving obstacles, one crowd per map: NavRL's floating boxes and standing cylinders, or P2M's swinging cylinders.

Voxel worlds have `walkers` instead, and `env.movers=pedestrians` has `pedestrians`.

Obstacle j of NavRL's crowd has kind j % 8 (`shapes`). So the first n obstacles always have balanced kinds, and a
curriculum only changes `count`. Each obstacle roams: it moves to a goal near its origin; every `SPEED_STEPS` physics steps
it draws a new speed towards the goal, and keeps that velocity in between.

P2M's obstacles swing: the speed along each axis is A (sin(w t) + 1.1) with A from 0.34 to 1.68 m/s and w up to 2 rad/s, and
they turn back at the borders. `goal` then holds the sign of the motion along x and y.

Random numbers depend only on (seed, map key, obstacle, age of the map in steps).
"""

import numpy as np
import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import uniform4
from fledge.tasks.navigation.physics.shapes import KINDS, STANDING_Z_M, WIDTHS, is_standing

AREA_HALF_M = 20.0
SWING_X_M, SWING_Y_M = 5.0, 12.5  # half the sides of the area of swinging obstacles
SWING_KIND = 5  # cylinders of 0.5 m
CEILING_M = 4.5
ROAM_M = 5.0
GOAL_REACHED_M = 0.5
SPEED_STEPS = 125
MIN_SPEED, MAX_SPEED = 0.5, 1.5
SPEED_SPAN = MAX_SPEED - MIN_SPEED
TRIES_PER_SPACING = 200  # after these the spacing is reduced by a fifth
P_ORIGIN = int(Purpose.CROWD_ORIGIN)
P_GOAL = int(Purpose.CROWD_GOAL)
P_SPEED = int(Purpose.CROWD_SPEED)


@wp.struct
class Crowd:
    """Moving obstacles of all maps. In shapes: K maps, M obstacles per map, D physics steps per decision."""

    placed: wp.array(dtype=wp.int32)  # [K] obstacles of the map
    count: wp.array(dtype=wp.int32)  # [K] number of active obstacles, from the first; others are neither seen nor hit
    born: wp.array(dtype=wp.int32)  # [K] clock (physics steps) at which the map came into use
    origin: wp.array2d(dtype=wp.vec3)  # [K, M] m, world
    goal: wp.array2d(dtype=wp.vec3)  # [K, M] m, world
    vel: wp.array2d(dtype=wp.vec3)  # [K, M] m/s, world
    kinds: wp.array(dtype=wp.int32)  # [M] as in `shapes`
    swings: int  # 1 if all obstacles swing, 0 if all roam
    speed: float  # factor on the speeds
    floating: int  # 1 if boxes float at any height, 0 if their centre rests at height 0
    before: wp.array2d(dtype=wp.vec3)  # [K, M] m, world: positions before the first physics step of the decision
    trail: wp.array3d(dtype=wp.vec3)  # [D, K, M] m, world: positions after each physics step of the decision


def crowd_kinds(count: int, swings: bool = False, standing: bool = False) -> np.ndarray:
    """Return the kinds of `count` obstacles, [count] int32: of P2M's crowd if `swings`, else of NavRL's.

    If `standing`, they are its cylinders alone.
    """
    every = np.arange(count, dtype=np.int32)
    if standing:
        return KINDS - WIDTHS + every % WIDTHS
    return np.full(count, SWING_KIND, np.int32) if swings else every % KINDS


@wp.func
def stream(purpose: int, j: int) -> wp.uint32:
    """Return the third word of the random-number counter (`core.random`) for a purpose and obstacle j.

    The first two words are the map key.
    """
    return wp.uint32(purpose + j * 256)


@wp.func
def mover_of(first: int, tid: int, crowd: Crowd) -> tuple[int, int]:
    """Return slot and number of the obstacle that a thread moves, if `first` is the slot of thread 0."""
    obstacles = crowd.origin.shape[1]
    return first + tid / obstacles, tid % obstacles


@wp.func
def place(crowd: Crowd, slot: int, j: int, origin: wp.vec3, goal: wp.vec3, vel: wp.vec3):
    """Place obstacle j at its origin, before the first decision."""
    crowd.origin[slot, j] = origin
    crowd.goal[slot, j] = goal
    crowd.vel[slot, j] = vel
    crowd.before[slot, j] = origin
    crowd.trail[crowd.trail.shape[0] - 1, slot, j] = origin


@wp.func
def spread(u: float) -> float:
    """Return a coordinate inside the obstacles' area, m, from a uniform random number in [0, 1)."""
    return AREA_HALF_M * (2.0 * u - 1.0)


@wp.func
def is_apart(crowd: Crowd, slot: int, j: int, x: float, y: float, spacing: float) -> bool:
    """Return whether a point is farther than `spacing` from the origins of obstacles 0 .. j - 1."""
    for o in range(j):
        other = crowd.origin[slot, o]
        if (other[0] - x) * (other[0] - x) + (other[1] - y) * (other[1] - y) <= spacing * spacing:
            return False
    return True


@wp.func
def roaming_origin(crowd: Crowd, key: wp.vec2ui, slot: int, j: int, seed: wp.vec2ui) -> wp.vec3:
    """Return an origin for obstacle j, apart from those of obstacles 0 .. j - 1; the spacing shrinks after many tries."""
    spacing = 2.0 * wp.sqrt(AREA_HALF_M * AREA_HALF_M / float(wp.max(crowd.placed[slot], 1)))
    tries = int(0)
    u = uniform4(key[0], key[1], stream(P_ORIGIN, j), wp.uint32(0), seed)
    while not is_apart(crowd, slot, j, spread(u[0]), spread(u[1]), spacing):
        tries = tries + 1
        if tries % TRIES_PER_SPACING == 0:
            spacing = spacing * 0.8
        u = uniform4(key[0], key[1], stream(P_ORIGIN, j), wp.uint32(tries), seed)
    z = float(STANDING_Z_M)
    if not is_standing(crowd.kinds[j]):
        z = CEILING_M * u[2]
        if crowd.floating == 0:
            z = 0.0
    return wp.vec3(spread(u[0]), spread(u[1]), z)


@wp.kernel(enable_backward=False)
def place_crowd(slots: wp.array(dtype=wp.int32), keys: wp.array(dtype=wp.vec2ui), seed: wp.vec2ui, crowd: Crowd):
    """Place obstacles at rest at their origins, one thread per map; `step_crowd` then draws the goals of roaming ones."""
    slot = slots[wp.tid()]
    if slot < 0:
        return
    key = keys[slot]
    for j in range(crowd.placed[slot]):
        origin = wp.vec3()
        goal = wp.vec3()
        if crowd.swings == 1:
            u = uniform4(key[0], key[1], stream(P_ORIGIN, j), wp.uint32(0), seed)
            origin = wp.vec3(SWING_X_M * (2.0 * u[0] - 1.0), SWING_Y_M * (2.0 * u[1] - 1.0), STANDING_Z_M)
            goal = wp.vec3(wp.sign(u[2] - 0.5), wp.sign(u[3] - 0.5), 0.0)
        else:
            origin = roaming_origin(crowd, key, slot, j, seed)
            goal = origin
        place(crowd, slot, j, origin, goal, wp.vec3())


@wp.func
def draw_goal(crowd: Crowd, key: wp.vec2ui, j: int, age: int, origin: wp.vec3, seed: wp.vec2ui) -> wp.vec3:
    """Return a random goal within ±5 m of the origin (-5 to +4 m in height), clamped to the map."""
    u = uniform4(key[0], key[1], stream(P_GOAL, j), wp.uint32(age), seed)
    x = wp.clamp(origin[0] + ROAM_M * (2.0 * u[0] - 1.0), -AREA_HALF_M, AREA_HALF_M)
    y = wp.clamp(origin[1] + ROAM_M * (2.0 * u[1] - 1.0), -AREA_HALF_M, AREA_HALF_M)
    z = wp.clamp(origin[2] - 5.0 + 9.0 * u[2], 0.0, CEILING_M)
    if is_standing(crowd.kinds[j]):
        z = STANDING_Z_M
    elif crowd.floating == 0:
        z = 0.0
    return wp.vec3(x, y, z)


@wp.func
def turn_back(signs: wp.vec3, pos: wp.vec3) -> wp.vec3:
    """Return the signs of a swinging obstacle's motion, reversed along an axis where it has left the area."""
    if wp.abs(pos[0]) > SWING_X_M:
        signs[0] = -wp.sign(pos[0])
    if wp.abs(pos[1]) > SWING_Y_M:
        signs[1] = -wp.sign(pos[1])
    return signs


@wp.func
def swing_velocity(u: wp.vec4, signs: wp.vec3, t: float) -> wp.vec3:
    vx = signs[0] * (0.34 + 1.34 * u[0]) * (wp.sin(2.0 * u[2] * t) + 1.1)
    vy = signs[1] * (0.34 + 1.34 * u[1]) * (wp.sin(2.0 * u[3] * t) + 1.1)
    return wp.vec3(vx, vy, 0.0)


@wp.kernel(enable_backward=False)
def step_crowd(
    first: int,
    keys: wp.array(dtype=wp.vec2ui),
    clock: wp.array(dtype=wp.int32),
    dt: float,
    seed: wp.vec2ui,
    crowd: Crowd,
):
    """Move all obstacles by the physics steps of one decision, one thread per obstacle; on unused maps they do not move."""
    slot, j = mover_of(first, wp.tid(), crowd)
    steps = crowd.trail.shape[0]
    start_age = clock[0] - crowd.born[slot]
    if j >= crowd.placed[slot] or start_age < 0:
        return
    key = keys[slot]
    origin = crowd.origin[slot, j]
    goal = crowd.goal[slot, j]
    vel = crowd.vel[slot, j]
    pos = crowd.trail[steps - 1, slot, j]
    crowd.before[slot, j] = pos
    for k in range(steps):
        age = start_age + k
        if crowd.swings == 1:
            goal = turn_back(goal, pos)
            u = uniform4(key[0], key[1], stream(P_SPEED, j), wp.uint32(0), seed)
            vel = crowd.speed * swing_velocity(u, goal, float(age) * dt)
        else:
            if age == 0 or wp.length(goal - pos) < GOAL_REACHED_M:
                goal = draw_goal(crowd, key, j, age, origin, seed)
            if age % SPEED_STEPS == 0:
                u = uniform4(key[0], key[1], stream(P_SPEED, j), wp.uint32(age), seed)
                vel = wp.normalize(goal - pos) * (crowd.speed * (MIN_SPEED + SPEED_SPAN * u[0]))
        pos = pos + vel * dt
        crowd.trail[k, slot, j] = pos
    crowd.goal[slot, j] = goal
    crowd.vel[slot, j] = vel
