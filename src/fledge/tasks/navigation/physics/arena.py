"""A narrow arena between four walls with standing cylinders and movers that swing: the world of the P2M benchmark.

Its geometry and motion follow arclab-hku/P2M (RA-L 2026): cylinders of 0.25 to 1.05 m in 10 x 25 m, walls at x = ±6.5 m and
y = ±17.5 m; a mover's speed along each axis is A (sin(w t) + 1.1) with A from 0.34 to 1.68 m/s and w up to 2 rad/s, and it
turns back at the borders. All of it is a function of (seed, map key), as in `terrain` and `crowd`.
"""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import uniform4
from fledge.tasks.navigation.physics.crowd import Crowd, stream
from fledge.tasks.navigation.physics.terrain import C_WALL, C_WALL_HEIGHT

HALF_X_M, HALF_Y_M = 5.0, 12.5  # of the area with obstacles
WALL_X_M, WALL_Y_M = 6.5, 17.5
LANE_M, LANE_HEIGHT_M = 15.0, 2.0  # flights go from y = -15 to 15 m at this height
ROWS = 11  # of cells that the widest cylinder touches: each is a box of its own
SIDES = 4
MOVER_KIND = 5  # cylinders of 0.5 m
INNER_M = 20.0  # inner cells count from -20 m

C_HALF_X = wp.constant(HALF_X_M)
C_HALF_Y = wp.constant(HALF_Y_M)
C_WALL_X = wp.constant(int(WALL_X_M * 10))
C_WALL_Y = wp.constant(int(WALL_Y_M * 10))
C_ROWS = wp.constant(ROWS)
C_INNER = wp.constant(INNER_M)
C_MIDDLE = wp.constant(int(INNER_M * 10))
P_BOX = wp.constant(wp.uint32(int(Purpose.BOX)))
P_ORIGIN = wp.constant(int(Purpose.CROWD_ORIGIN))
P_SPEED = wp.constant(int(Purpose.CROWD_SPEED))


@wp.kernel(enable_backward=False)
def place_arena(
    slots: wp.array(dtype=wp.int32),
    keys: wp.array(dtype=wp.vec2ui),
    cylinders: int,
    seed: wp.vec2ui,
    boxes: wp.array2d(dtype=wp.vec4i),
    heights: wp.array2d(dtype=wp.float32),
):
    """One thread a map: each cylinder as rows of cells (boxes `ROWS * c ...`), then the four walls."""
    slot = slots[wp.tid()]
    key = keys[slot]
    for c in range(cylinders):
        u = uniform4(key[0], key[1], P_BOX, wp.uint32(c), seed)
        x = C_HALF_X * (2.0 * u[0] - 1.0) + C_INNER
        y = C_HALF_Y * (2.0 * u[1] - 1.0) + C_INNER
        radius = 0.125 + 0.4 * u[2]
        middle = int(wp.floor(y * 10.0))
        for r in range(C_ROWS):
            row = middle + r - C_ROWS / 2
            away = (float(row) + 0.5) * 0.1 - y
            chord = wp.sqrt(wp.max(radius * radius - away * away, 0.0))
            low = int(wp.ceil((x - chord) * 10.0 - 0.5))
            high = int(wp.floor((x + chord) * 10.0 - 0.5)) + 1
            boxes[slot, c * C_ROWS + r] = wp.vec4i(low, row, wp.max(low, high), row + 1)
            heights[slot, c * C_ROWS + r] = C_WALL_HEIGHT
    first = cylinders * C_ROWS
    left = C_MIDDLE - C_WALL_X
    right = C_MIDDLE + C_WALL_X
    south = C_MIDDLE - C_WALL_Y
    north = C_MIDDLE + C_WALL_Y
    boxes[slot, first] = wp.vec4i(left - C_WALL, south, left, north)
    boxes[slot, first + 1] = wp.vec4i(right, south, right + C_WALL, north)
    boxes[slot, first + 2] = wp.vec4i(left - C_WALL, south - C_WALL, right + C_WALL, south)
    boxes[slot, first + 3] = wp.vec4i(left - C_WALL, north, right + C_WALL, north + C_WALL)
    for k in range(4):
        heights[slot, first + k] = C_WALL_HEIGHT


@wp.kernel(enable_backward=False)
def place_swingers(slots: wp.array(dtype=wp.int32), keys: wp.array(dtype=wp.vec2ui), seed: wp.vec2ui, crowd: Crowd):
    """One thread a map: movers anywhere in the area. `goal` keeps which way each goes, +1 or -1 along x and y."""
    slot = slots[wp.tid()]
    key = keys[slot]
    last = crowd.trail.shape[0] - 1
    for j in range(crowd.placed[slot]):
        u = uniform4(key[0], key[1], stream(P_ORIGIN, j), wp.uint32(0), seed)
        origin = wp.vec3(C_HALF_X * (2.0 * u[0] - 1.0), C_HALF_Y * (2.0 * u[1] - 1.0), 2.5)
        crowd.origin[slot, j] = origin
        crowd.goal[slot, j] = wp.vec3(wp.sign(u[2] - 0.5), wp.sign(u[3] - 0.5), 0.0)
        crowd.vel[slot, j] = wp.vec3()
        crowd.trail[last, slot, j] = origin


@wp.kernel(enable_backward=False)
def step_swingers(
    first: int,
    keys: wp.array(dtype=wp.vec2ui),
    clock: wp.array(dtype=wp.int32),
    dt: float,
    seed: wp.vec2ui,
    crowd: Crowd,
):
    """One thread a mover: all physics steps of one decision."""
    tid = wp.tid()
    movers = crowd.origin.shape[1]
    steps = crowd.trail.shape[0]
    slot = first + tid / movers
    j = tid - (slot - first) * movers
    age = clock[0] - crowd.born[slot]
    if j >= crowd.placed[slot] or age < 0:
        return
    key = keys[slot]
    u = uniform4(key[0], key[1], stream(P_SPEED, j), wp.uint32(0), seed)
    way = crowd.goal[slot, j]
    pos = crowd.trail[steps - 1, slot, j]
    vel = wp.vec3()
    for k in range(steps):
        t = float(age + k) * dt
        if wp.abs(pos[0]) > C_HALF_X:
            way[0] = -wp.sign(pos[0])
        if wp.abs(pos[1]) > C_HALF_Y:
            way[1] = -wp.sign(pos[1])
        vx = way[0] * (0.34 + 1.34 * u[0]) * (wp.sin(2.0 * u[2] * t) + 1.1)
        vy = way[1] * (0.34 + 1.34 * u[1]) * (wp.sin(2.0 * u[3] * t) + 1.1)
        vel = wp.vec3(vx, vy, 0.0)
        pos = pos + vel * dt
        crowd.trail[k, slot, j] = pos
    crowd.goal[slot, j] = way
    crowd.vel[slot, j] = vel
