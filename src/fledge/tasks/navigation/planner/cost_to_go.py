"""Cost-to-go: the length of the shortest path to the goal from every point around the drone. It leads out of dead ends.

A grid of 64 x 64 points 0.2 m apart lies around the drone, at its height. It stores the length of the shortest path from
each point to the goal. Obstacles beyond the grid are unknown, so paths there are straight. Lengths are multiplied by
`slowness` near a remembered hit, and by much more inside a column. The grid is solved every few decisions, by sweeps back
and forth (a weighted chamfer distance).
"""

import warp as wp

from fledge.tasks.navigation.planner.local_map import (
    RINGS,
    LocalMap,
    bands_between,
    fetch,
    in_every_ring,
    nearest_ring,
    place_of,
    to_cell,
)

POINTS = 64
SPACING_M = 0.2
INV_SPACING = 1.0 / SPACING_M
UNKNOWN = 1.0e6
ROWS_EARLY = 2  # rows by which the map is loaded ahead
NEAR_GOAL_M = 2.0 * SPACING_M  # paths from nearer points are straight

line = wp.types.vector(length=POINTS, dtype=wp.float32)
numbers = wp.types.vector(length=POINTS, dtype=wp.int32)
factors = wp.types.vector(length=RINGS + 1, dtype=wp.float32)


@wp.struct
class CostToGo:
    """Cost-to-go grids of N drones, and their settings."""

    length: wp.array2d(dtype=wp.float32)  # [N, POINTS * POINTS] m to the goal
    rows: wp.array2d(dtype=line)  # [N, POINTS]: the same memory
    slow: wp.array2d(dtype=line)  # [N, POINTS] rows of POINTS costs of a step to a neighbouring point, m
    corner: wp.array(dtype=wp.vec2)  # [N] m: point (0, 0), goal frame
    age: wp.array(dtype=wp.int32)  # [N] decisions since the episode began
    slowness: factors  # on lengths, by ring
    every: int  # decisions between two searches; 0: never, paths are straight
    rounds: int  # largest number of sweeps, each forth and back


@wp.func
def less(a: float, b: float) -> float:
    """Return the smaller of two numbers, neither of which is NaN; faster than `wp.min`."""
    return wp.where(a < b, a, b)


@wp.func
def clear_grid(w: CostToGo, m: LocalMap, i: int, pos: wp.vec3, body: float):
    """Initialise the grid of drone i: straight-line lengths at its border and near the goal, unknown lengths elsewhere."""
    x0 = wp.floor(pos[0] * INV_SPACING) * SPACING_M - 0.5 * float(POINTS) * SPACING_M + 0.5 * SPACING_M
    y0 = wp.floor(pos[1] * INV_SPACING) * SPACING_M - 0.5 * float(POINTS) * SPACING_M + 0.5 * SPACING_M
    w.corner[i] = wp.vec2(x0, y0)
    every = in_every_ring(bands_between(pos[2] - body, pos[2] + body))
    centre = m.centre[i]
    half = m.size / 2
    columns = numbers()  # of the map, at each point of a row; those from `left` to `right` are on it
    left = int(0)
    right = int(0)
    c = int(0)
    while c < POINTS:
        iy = to_cell(y0 + float(c) * SPACING_M)
        columns[c] = iy & (m.size - 1)
        left = left + wp.where(iy < centre[1] - half, 1, 0)
        right = right + wp.where(iy < centre[1] + half, 1, 0)
        c = c + 1
    costs = SPACING_M * w.slowness
    r = int(0)
    while r < POINTS:
        x = x0 + float(r) * SPACING_M
        ix = to_cell(x)
        first = place_of(m, ix, 0)
        slow = line(costs[RINGS])
        later = place_of(m, to_cell(x + float(ROWS_EARLY) * SPACING_M), 0)
        c = left
        while c < right:
            fetch(m.cells, i, later + columns[c])
            c = c + 2  # points in a line of the processor's cache
        if ix >= centre[0] - half and ix < centre[0] + half:
            c = left
            while c < right:
                found = m.cells[i, first + columns[c]]
                if ((found[0] | found[1]) & every) != wp.uint64(0):
                    slow[c] = costs[nearest_ring(found, every)]
                c = c + 1
        w.slow[i, r] = slow
        length = line(UNKNOWN)
        whole = r == 0 or r == POINTS - 1 or wp.abs(x) < NEAR_GOAL_M
        c = int(0)
        while c < POINTS:
            y = y0 + float(c) * SPACING_M
            square = x * x + y * y
            if r == 0 or c == 0 or r == POINTS - 1 or c == POINTS - 1 or square < NEAR_GOAL_M * NEAR_GOAL_M:
                length[c] = wp.sqrt(square)
            c = c + wp.where(whole, 1, POINTS - 1)
        w.rows[i, r] = length
        r = r + 1


@wp.func
def relax_row(w: CostToGo, i: int, row: int, before: int) -> bool:
    """Update the points of a row from the row `before` it and from each other, and return whether a length changed."""
    slow = w.slow[i, row]
    side = w.rows[i, before]
    old = w.rows[i, row]
    new = w.rows[i, row]
    c = int(1)
    while c < POINTS - 1:
        new[c] = less(less(old[c], side[c] + slow[c]), less(side[c - 1], side[c + 1]) + 1.41421356 * slow[c])
        c = c + 1
    shorter = int(0)
    changed = int(0)
    c = int(1)
    while c < POINTS - 1:
        beside = less(new[c - 1], new[c + 1]) + slow[c]
        shorter = shorter | wp.where(beside < new[c], 1, 0)
        changed = changed | wp.where(new[c] < old[c], 1, 0)
        c = c + 1
    if shorter == 0:
        w.rows[i, row] = new
        return changed == 1
    # along the row in both directions at once
    right = line()
    left = line()
    low = new[0]
    high = new[POINTS - 1]
    c = int(1)
    while c < POINTS - 1:
        low = less(new[c], low + slow[c])
        right[c] = low
        high = less(new[POINTS - 1 - c], high + slow[POINTS - 1 - c])
        left[POINTS - 1 - c] = high
        c = c + 1
    c = int(1)
    while c < POINTS - 1:
        new[c] = less(left[c], right[c])
        changed = changed | wp.where(new[c] < old[c], 1, 0)
        c = c + 1
    w.rows[i, row] = new
    return changed == 1


@wp.func
def sweep(w: CostToGo, i: int):
    """Sweep the rows forth and back until no length changes, at most `rounds` times; the first sweep comes from the goal.

    A row is skipped if neither it nor the row before it has changed since the last sweep in this direction.
    """
    forth = ~wp.uint64(0)  # a bit for each row that the next sweep forth must update
    back = ~wp.uint64(0)
    for k in range(w.rounds * 2):
        step = wp.where(w.corner[i][0] < 0.0, -1, 1) * (1 - 2 * (k % 2))
        if wp.where(step > 0, forth, back) == wp.uint64(0):
            return
        for n in range(1, POINTS - 1):
            row = wp.where(step > 0, n, POINTS - 1 - n)
            bit = wp.uint64(1) << wp.uint64(row)
            if (wp.where(step > 0, forth, back) & bit) != wp.uint64(0):
                if relax_row(w, i, row, row - step):
                    forth = forth | (bit << wp.uint64(1))
                    back = back | (bit >> wp.uint64(1))
        if step > 0:
            forth = wp.uint64(0)
        else:
            back = wp.uint64(0)


@wp.func
def update_cost(w: CostToGo, m: LocalMap, i: int, pos: wp.vec3, body: float, fresh: bool):
    """Solve the grid of drone i again if the episode is new (`fresh`) or `every` decisions have passed since the last time."""
    if fresh:
        w.age[i] = 0
    if w.every > 0:
        if w.age[i] % w.every == 0:
            clear_grid(w, m, i, pos, body)
            sweep(w, i)
    w.age[i] = w.age[i] + 1


@wp.func
def cost_from(w: CostToGo, i: int, x: float, y: float) -> float:
    """Return the length of the shortest path from a point to the goal, m, interpolated in the grid; off the grid, the
    length of a straight line."""
    away = wp.sqrt(x * x + y * y)
    if w.every == 0 or away < 1.0:
        return away
    corner = w.corner[i]
    u = (x - corner[0]) * INV_SPACING
    v = (y - corner[1]) * INV_SPACING
    r = int(wp.floor(u))
    c = int(wp.floor(v))
    if r < 0 or c < 0 or r >= POINTS - 1 or c >= POINTS - 1:
        return away
    a = u - float(r)
    b = v - float(c)
    at = r * POINTS + c
    low = (1.0 - b) * w.length[i, at] + b * w.length[i, at + 1]
    high = (1.0 - b) * w.length[i, at + POINTS] + b * w.length[i, at + POINTS + 1]
    return (1.0 - a) * low + a * high
