"""Forests of vertical columns on flat ground, as byte grids for fast ray casting.

A map covers ±25 m with 0.1 m cells: [CELLS, CELLS] uint8, index = ix * CELLS + iy, cell (0, 0) at (-25, -25).
One byte per cell is all that ray casting needs:

    value >= SOLID    a column, (value - SOLID) * HEIGHT_STEP metres high
    value <  SOLID    free; Chebyshev distance in cells to the nearest column (1 = a neighbour is solid), capped

Boxes follow NavRL's forest: inside ±20 m, heights from four bands, sides of 4 or 8 grid vertices (3 or 7 cells),
corners on a 0.4 m raster, re-drawn while the gap to an earlier box would be 0.2 to 1.0 m. Walls along two sides of the
forest are two more boxes; the map's key says which sides.
Each map is a pure function of (seed, key), independent of slot and bank.
"""

import warp as wp

from fledge.core.random import Purpose
from fledge.envs.kernel_random import uniform4

CELL_M = 0.1
CELLS = 500
HALF_M = 25.0
RING_CELLS = 50
RASTER_CELLS = 4
INNER_VERTICES = 401
HEIGHT_STEP = 0.05
SOLID = 128
DISTANCE_CAP = 120
WALLS = 2
WALL_CELLS = 3
WALL_HEIGHT = 6.0
MAX_REDRAWS = 3  # 7.3 % of the vertices and 5.1 % of the cells end up solid; NavRL's map has 7.4 and 5.2

INV_CELL = 1.0 / CELL_M
P_BOX = wp.uint32(int(Purpose.BOX))


@wp.func
def box_height(u_band: float, u_inside: float) -> float:
    """Return a random column height, m, from two uniform numbers in [0, 1): one chooses the range, one the height in it.

    Ranges are 1 to 1.5, 1.5 to 2, 2 to 4 and 4 to 6 m, with probabilities .10, .15, .20 and .55.
    """
    low = float(4.0)
    high = float(6.0)
    if u_band < 0.10:
        low = 1.0
        high = 1.5
    elif u_band < 0.25:
        low = 1.5
        high = 2.0
    elif u_band < 0.45:
        low = 2.0
        high = 4.0
    return wp.round((low + (high - low) * u_inside) / HEIGHT_STEP) * HEIGHT_STEP


@wp.func
def gap_cells(a: wp.vec4i, b: wp.vec4i) -> float:
    """Return the distance in cells between two rectangles (x0, y0, x1, y1); 0 if they touch or overlap."""
    dx = wp.max(wp.max(b[0] - a[2], a[0] - b[2]), 0)
    dy = wp.max(wp.max(b[1] - a[3], a[1] - b[3]), 0)
    return wp.sqrt(float(dx * dx + dy * dy))


@wp.func
def draw_box(key: wp.vec2ui, draw: int, seed: wp.vec2ui) -> wp.vec4i:
    """Return a random footprint (x0, y0, x1, y1) in cells, 0 to 400 from the forest's corner.

    Its sides are 3 or 7 cells; its corner (x0, y0) is on the 0.4 m raster, unless the forest's edge moves it inwards.
    """
    u = uniform4(key[0], key[1], P_BOX, wp.uint32(draw), seed)
    w = wp.where(u[2] >= 0.5, 8, 4)
    d = wp.where(u[3] >= 0.5, 8, 4)
    steps = float((INNER_VERTICES - 1) / RASTER_CELLS + 1)
    x = wp.min(int(u[0] * steps) * RASTER_CELLS, INNER_VERTICES - w)
    y = wp.min(int(u[1] * steps) * RASTER_CELLS, INNER_VERTICES - d)
    return wp.vec4i(x, y, x + w - 1, y + d - 1)


@wp.kernel(enable_backward=False)
def place_boxes(
    slots: wp.array(dtype=wp.int32),
    keys: wp.array(dtype=wp.vec2ui),
    num_boxes: int,
    seed: wp.vec2ui,
    boxes: wp.array2d(dtype=wp.vec4i),
    heights: wp.array2d(dtype=wp.float32),
):
    """Write the footprints (as `draw_box` returns them) and the heights (m) of the boxes, in order; one thread per map."""
    slot = slots[wp.tid()]
    if slot < 0:
        return
    key = keys[slot]
    for b in range(num_boxes):
        box = draw_box(key, b * 256, seed)
        tries = int(0)
        while tries < MAX_REDRAWS:
            good = int(1)
            for o in range(b):
                gap = gap_cells(box, boxes[slot, o])
                if gap >= 2.0 and gap <= 10.0:
                    good = 0
                    break
            if good == 1:
                break
            tries = tries + 1
            box = draw_box(key, b * 256 + tries, seed)
        u = uniform4(key[0], key[1], P_BOX, wp.uint32(b * 256 + 255), seed)
        boxes[slot, b] = box
        heights[slot, b] = box_height(u[0], u[1])


@wp.func
def open_axis(key: wp.vec2ui) -> int:
    """Return the axis along which a map with walls can be crossed: 0 is x, 1 is y. Consecutive maps alternate."""
    return int((key[0] ^ key[1]) & wp.uint32(1))


@wp.kernel(enable_backward=False)
def place_walls(
    slots: wp.array(dtype=wp.int32),
    keys: wp.array(dtype=wp.vec2ui),
    first: int,
    boxes: wp.array2d(dtype=wp.vec4i),
    heights: wp.array2d(dtype=wp.float32),
):
    """Write two walls along opposite sides of the forest, as long as the map, as boxes `first` and `first + 1`.

    One thread per map.
    """
    slot = slots[wp.tid()]
    if slot < 0:
        return
    low = -RING_CELLS
    high = CELLS - RING_CELLS
    forest = INNER_VERTICES - 1
    if open_axis(keys[slot]) == 0:
        boxes[slot, first] = wp.vec4i(low, -WALL_CELLS, high, 0)
        boxes[slot, first + 1] = wp.vec4i(low, forest, high, forest + WALL_CELLS)
    else:
        boxes[slot, first] = wp.vec4i(-WALL_CELLS, low, 0, high)
        boxes[slot, first + 1] = wp.vec4i(forest, low, forest + WALL_CELLS, high)
    heights[slot, first] = WALL_HEIGHT
    heights[slot, first + 1] = WALL_HEIGHT


@wp.kernel(enable_backward=False)
def rasterise(
    slots: wp.array(dtype=wp.int32),
    num_boxes: int,
    boxes: wp.array2d(dtype=wp.vec4i),
    heights: wp.array2d(dtype=wp.float32),
    grid: wp.array2d(dtype=wp.uint8),
):
    """Write the columns to the grid, then each free cell's distance to the nearest column in two passes; a thread per map."""
    slot = slots[wp.tid()]
    if slot < 0:
        return
    for c in range(CELLS * CELLS):
        grid[slot, c] = wp.uint8(DISTANCE_CAP)
    for b in range(num_boxes):
        box = boxes[slot, b]
        value = wp.uint8(SOLID + int(wp.round(heights[slot, b] / HEIGHT_STEP)))
        for ix in range(box[0] + RING_CELLS, box[2] + RING_CELLS):
            for iy in range(box[1] + RING_CELLS, box[3] + RING_CELLS):
                c = ix * CELLS + iy
                old = grid[slot, c]
                if int(old) < SOLID or old < value:  # of overlapping boxes the taller one counts
                    grid[slot, c] = value
    for p in range(2):
        for n in range(CELLS * CELLS):
            c = n
            step = int(-1)
            if p == 1:
                c = CELLS * CELLS - 1 - n
                step = 1
            v = int(grid[slot, c])
            if v < SOLID:
                ix = c / CELLS
                iy = c - ix * CELLS
                if iy + step >= 0 and iy + step < CELLS:
                    v = wp.min(v, reach(grid[slot, c + step]))
                if ix + step >= 0 and ix + step < CELLS:
                    row = c + step * CELLS
                    v = wp.min(v, reach(grid[slot, row]))
                    if iy > 0:
                        v = wp.min(v, reach(grid[slot, row - 1]))
                    if iy < CELLS - 1:
                        v = wp.min(v, reach(grid[slot, row + 1]))
                grid[slot, c] = wp.uint8(v)


@wp.func
def reach(value: wp.uint8) -> int:
    """Return an upper bound on a cell's distance to the nearest column, in cells, from the value of a neighbouring cell."""
    return wp.where(int(value) >= SOLID, 1, int(value) + 1)


@wp.func
def cell_at(x: float, y: float) -> int:
    """Return the flat index of the cell at a point, or -1 if the point is off the map."""
    ix = int(wp.floor((x + HALF_M) * INV_CELL))
    iy = int(wp.floor((y + HALF_M) * INV_CELL))
    if ix < 0 or iy < 0 or ix >= CELLS or iy >= CELLS:
        return -1
    return ix * CELLS + iy


@wp.func
def free_distance(value: int) -> float:
    """Return a lower bound, m, on the (Chebyshev) distance from anywhere in a free cell to the nearest column."""
    return float(value - 1) * CELL_M
