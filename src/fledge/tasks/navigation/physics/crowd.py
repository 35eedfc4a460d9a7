"""Moving obstacles: NavRL's crowd of floating boxes and standing cylinders, one crowd per map.

Obstacle j of a map has kind j % 8: 0-3 are boxes of width .25, .5, .75, 1.0 m and 1 m height, 4-7 cylinders of the same
diameters, 5 m tall. So any prefix of a crowd is a balanced crowd, and a curriculum only changes `count`.

Each obstacle heads for a goal near its origin; every `SPEED_STEPS` physics steps it takes a new speed towards the goal,
and keeps that velocity in between. A draw is a function of (seed, map key, obstacle, age of the map in steps) alone.
"""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import uniform4

KINDS = 8
AREA_HALF_M = 20.0
CEILING_M = 4.5
ROAM_M = 5.0
GOAL_REACHED_M = 0.5
SPEED_STEPS = 125
MIN_SPEED, MAX_SPEED = 0.5, 1.5
TRIES_PER_SPACING = 200  # then the spacing aimed at shrinks by a fifth

C_AREA = wp.constant(AREA_HALF_M)
C_CEILING = wp.constant(CEILING_M)
C_ROAM = wp.constant(ROAM_M)
C_REACHED = wp.constant(GOAL_REACHED_M)
C_SPEED_STEPS = wp.constant(SPEED_STEPS)
C_SPEED_LOW = wp.constant(MIN_SPEED)
C_SPEED_SPAN = wp.constant(MAX_SPEED - MIN_SPEED)
C_TRIES = wp.constant(TRIES_PER_SPACING)
P_ORIGIN = wp.constant(int(Purpose.CROWD_ORIGIN))
P_GOAL = wp.constant(int(Purpose.CROWD_GOAL))
P_SPEED = wp.constant(int(Purpose.CROWD_SPEED))


@wp.struct
class Crowd:
    """Obstacles of all maps. K maps, M obstacles, D physics steps per decision."""

    placed: wp.array(dtype=wp.int32)  # [K] obstacles that move about
    count: wp.array(dtype=wp.int32)  # [K] how many of them, from the first, are there to be seen and hit
    born: wp.array(dtype=wp.int32)  # [K] clock (physics steps) at which the map came into use
    origin: wp.array2d(dtype=wp.vec3)  # [K, M] m, world
    goal: wp.array2d(dtype=wp.vec3)  # [K, M] m, world
    vel: wp.array2d(dtype=wp.vec3)  # [K, M] m/s, world
    one_kind: int  # every obstacle is of this kind; 0: all eight kinds in turn
    trail: wp.array3d(dtype=wp.vec3)  # [D, K, M] m, world: positions after each physics step of the decision


@wp.func
def kind_of(crowd: Crowd, j: int) -> int:
    if crowd.one_kind > 0:
        return crowd.one_kind
    return j % 8


@wp.func
def is_cylinder(j: int) -> bool:
    return j % 8 >= 4


@wp.func
def width_class(j: int) -> int:
    return j % 4


@wp.func
def width_of(j: int) -> float:
    return 0.25 * float(j % 4 + 1)


@wp.func
def height_of(j: int) -> float:
    if j % 8 >= 4:
        return 5.0
    return 1.0


@wp.func
def stream(purpose: int, j: int) -> wp.uint32:
    """Third counter word for obstacle j: the map key takes the first two."""
    return wp.uint32(purpose + j * 256)


@wp.func
def spread(u: float) -> float:
    """A uniform number as a coordinate inside the area."""
    return C_AREA * (2.0 * u - 1.0)


@wp.func
def is_apart(crowd: Crowd, slot: int, j: int, x: float, y: float, spacing: float) -> bool:
    """Whether a point keeps its distance from the origins of obstacles 0 .. j - 1."""
    for o in range(j):
        other = crowd.origin[slot, o]
        if (other[0] - x) * (other[0] - x) + (other[1] - y) * (other[1] - y) <= spacing * spacing:
            return False
    return True


@wp.kernel(enable_backward=False)
def place_crowd(
    slots: wp.array(dtype=wp.int32),
    keys: wp.array(dtype=wp.vec2ui),
    floating: int,
    seed: wp.vec2ui,
    crowd: Crowd,
):
    """One thread a map: origins spread apart, obstacles at rest there, goals to be drawn at age 0."""
    slot = slots[wp.tid()]
    key = keys[slot]
    n = crowd.placed[slot]
    last = crowd.trail.shape[0] - 1
    aimed_at = 2.0 * wp.sqrt(C_AREA * C_AREA / float(wp.max(n, 1)))
    for j in range(n):
        spacing = float(aimed_at)
        tries = int(0)
        u = uniform4(key[0], key[1], stream(P_ORIGIN, j), wp.uint32(0), seed)
        while not is_apart(crowd, slot, j, spread(u[0]), spread(u[1]), spacing):
            tries = tries + 1
            if tries % C_TRIES == 0:
                spacing = spacing * 0.8
            u = uniform4(key[0], key[1], stream(P_ORIGIN, j), wp.uint32(tries), seed)
        z = float(2.5)
        if not is_cylinder(j):
            z = C_CEILING * u[2]
            if floating == 0:
                z = 0.0
        origin = wp.vec3(spread(u[0]), spread(u[1]), z)
        crowd.origin[slot, j] = origin
        crowd.goal[slot, j] = origin
        crowd.vel[slot, j] = wp.vec3()
        crowd.trail[last, slot, j] = origin


@wp.func
def draw_goal(key: wp.vec2ui, j: int, age: int, origin: wp.vec3, floating: int, seed: wp.vec2ui) -> wp.vec3:
    """A goal within ±5 m of the origin (z: -5 to +4), clamped to the map."""
    u = uniform4(key[0], key[1], stream(P_GOAL, j), wp.uint32(age), seed)
    x = wp.clamp(origin[0] + C_ROAM * (2.0 * u[0] - 1.0), -C_AREA, C_AREA)
    y = wp.clamp(origin[1] + C_ROAM * (2.0 * u[1] - 1.0), -C_AREA, C_AREA)
    z = wp.clamp(origin[2] - 5.0 + 9.0 * u[2], 0.0, C_CEILING)
    if is_cylinder(j):
        z = 2.5
    elif floating == 0:
        z = 0.0
    return wp.vec3(x, y, z)


@wp.kernel(enable_backward=False)
def step_crowd(
    first: int,
    keys: wp.array(dtype=wp.vec2ui),
    clock: wp.array(dtype=wp.int32),
    floating: int,
    dt: float,
    seed: wp.vec2ui,
    crowd: Crowd,
):
    """One thread an obstacle: all physics steps of one decision. Maps that are not in use yet (born later) rest."""
    tid = wp.tid()
    obstacles = crowd.origin.shape[1]
    steps = crowd.trail.shape[0]
    slot = first + tid / obstacles
    j = tid - (slot - first) * obstacles
    start_age = clock[0] - crowd.born[slot]
    if j >= crowd.placed[slot] or start_age < 0:
        return
    key = keys[slot]
    origin = crowd.origin[slot, j]
    goal = crowd.goal[slot, j]
    vel = crowd.vel[slot, j]
    pos = crowd.trail[steps - 1, slot, j]
    for k in range(steps):
        age = start_age + k
        if age == 0 or wp.length(goal - pos) < C_REACHED:
            goal = draw_goal(key, j, age, origin, floating, seed)
        if age % C_SPEED_STEPS == 0:
            u = uniform4(key[0], key[1], stream(P_SPEED, j), wp.uint32(age), seed)
            vel = wp.normalize(goal - pos) * (C_SPEED_LOW + C_SPEED_SPAN * u[0])
        pos = pos + vel * dt
        crowd.trail[k, slot, j] = pos
    crowd.goal[slot, j] = goal
    crowd.vel[slot, j] = vel
