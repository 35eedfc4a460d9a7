"""A narrow arena between four walls with standing cylinders: the map of the P2M benchmark.

Its geometry follows arclab-hku/P2M (RA-L 2026): cylinders of 0.25 to 1.05 m in 10 x 25 m, walls at x = ±6.5 m and
y = ±17.5 m. The map is a function of (seed, map key), as in `terrain`; its moving obstacles are in `crowd`.
"""

import warp as wp

from fledge.envs.kernel_random import uniform4
from fledge.tasks.navigation.physics.crowd import SWING_X_M, SWING_Y_M
from fledge.tasks.navigation.physics.terrain import P_BOX, WALL_CELLS, WALL_HEIGHT

WALL_X_M, WALL_Y_M = 6.5, 17.5
LANE_M, LANE_HEIGHT_M = 15.0, 2.0  # flights go from y = -15 to 15 m at this height
ROWS = 11  # rows of cells that the widest cylinder touches; each row is one box
SIDES = 4
INNER_M = 20.0  # inner cells are counted from -20 m
WALL_X = int(WALL_X_M * 10)
WALL_Y = int(WALL_Y_M * 10)
MIDDLE = int(INNER_M * 10)


@wp.kernel(enable_backward=False)
def place_arena(
    slots: wp.array(dtype=wp.int32),
    keys: wp.array(dtype=wp.vec2ui),
    cylinders: int,
    seed: wp.vec2ui,
    boxes: wp.array2d(dtype=wp.vec4i),
    heights: wp.array2d(dtype=wp.float32),
):
    """Write each cylinder as `ROWS` boxes, one per row of cells, then the walls as four boxes; one thread per map."""
    slot = slots[wp.tid()]
    if slot < 0:
        return
    key = keys[slot]
    for c in range(cylinders):
        u = uniform4(key[0], key[1], P_BOX, wp.uint32(c), seed)
        x = SWING_X_M * (2.0 * u[0] - 1.0) + INNER_M
        y = SWING_Y_M * (2.0 * u[1] - 1.0) + INNER_M
        radius = 0.125 + 0.4 * u[2]
        middle = int(wp.floor(y * 10.0))
        for r in range(ROWS):
            row = middle + r - ROWS / 2
            away = (float(row) + 0.5) * 0.1 - y
            chord = wp.sqrt(wp.max(radius * radius - away * away, 0.0))
            low = int(wp.ceil((x - chord) * 10.0 - 0.5))
            high = int(wp.floor((x + chord) * 10.0 - 0.5)) + 1
            boxes[slot, c * ROWS + r] = wp.vec4i(low, row, wp.max(low, high), row + 1)
            heights[slot, c * ROWS + r] = WALL_HEIGHT
    first = cylinders * ROWS
    left = MIDDLE - WALL_X
    right = MIDDLE + WALL_X
    south = MIDDLE - WALL_Y
    north = MIDDLE + WALL_Y
    boxes[slot, first] = wp.vec4i(left - WALL_CELLS, south, left, north)
    boxes[slot, first + 1] = wp.vec4i(right, south, right + WALL_CELLS, north)
    boxes[slot, first + 2] = wp.vec4i(left - WALL_CELLS, south - WALL_CELLS, right + WALL_CELLS, south)
    boxes[slot, first + 3] = wp.vec4i(left - WALL_CELLS, north, right + WALL_CELLS, north + WALL_CELLS)
    for k in range(4):
        heights[slot, first + k] = WALL_HEIGHT
