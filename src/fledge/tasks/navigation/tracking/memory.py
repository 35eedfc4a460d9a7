"""Memory of past hits in cells of 0.1 m, which tells static obstacles from moving ones.

A stay is a time in which a cell is hit again and again. A cell that a ray passed through shortly before its stay was free:
something came into it, a mover. Other cells are static when one of their neighbours has been hit for CONFIRM_S; cells
that were free only after CONFIRM_LATE_S. A static cell stays so until rays pass through it. Cells wrap around as in
`planner.local_map`, but each stores its own number, so that no cell needs to be cleared when the drone moves.
"""

import warp as wp

from fledge.tasks.navigation.planner.local_map import (
    BAND_M,
    BANDS,
    CELL_M,
    REACH_CELLS,
    LocalMap,
    bands_between,
    draw_hit,
    roll,
    to_cell,
)
from fledge.tasks.navigation.tracking.structs import BESIDE_CELLS, Tracker

STATIC, KNOWN, CAME = 0, 1, 2  # hits: on a static obstacle; not known to be static; in a cell that was free before
BANDS_MASK = 0xFFFF
CAME_BIT = 0x10000
STATIC_BIT = 0x20000
PASSED = 0x40000  # counts the rays that passed through the cell since its last hit, in the bits from here on
ERASE = 3  # such rays that erase a static cell
NUMBER_OFFSET = 0x4000
SLACK_M = 0.2  # hits this near to a moving obstacle's surface belong to it
MARGIN_M = 0.15  # rays count as passing up to this far from their hit
NEAR_CELLS = 3  # cells around the drone that are not marked


@wp.func
def number_of(ix: int, iy: int) -> int:
    return (ix + NUMBER_OFFSET) * 0x8000 + iy + NUMBER_OFFSET


@wp.func
def place_in(t: Tracker, ix: int, iy: int) -> int:
    last = t.size - 1
    return (ix & last) * t.size + (iy & last)


@wp.func
def is_beside_static(t: Tracker, i: int, ix: int, iy: int, now: int) -> bool:
    """Return whether a cell within BESIDE_CELLS is static, or has been hit for long enough to be."""
    for a in range(t.beside):
        for b in range(t.beside):
            x = ix + a - BESIDE_CELLS
            y = iy + b - BESIDE_CELLS
            cell = t.grid[i, place_in(t, x, y)]
            if cell[0] == number_of(x, y):
                if (cell[3] & STATIC_BIT) > 0:
                    return True
                if (cell[3] & CAME_BIT) == 0 and now - cell[2] <= t.gap and now - cell[1] >= t.confirm:
                    return True
    return False


@wp.func
def is_free(t: Tracker, i: int, ix: int, iy: int, band: int, now: int) -> bool:
    """Return whether rays recently passed through a cell at a height band."""
    free = t.free[i, place_in(t, ix, iy)]
    return free[0] == number_of(ix, iy) and now - free[1] / BANDS <= t.recent and free[1] % BANDS <= band


@wp.func
def was_free(t: Tracker, i: int, ix: int, iy: int, band: int, now: int) -> bool:
    """Return whether rays recently passed through this cell and its eight neighbours, at a height band.

    A cell on the surface of a column has a neighbour inside of it.
    """
    for n in range(t.around):
        if not is_free(t, i, ix + n / 3 - 1, iy + n % 3 - 1, band, now):
            return False
    return True


@wp.func
def is_on_track(t: Tracker, i: int, x: float, y: float, ago_s: float) -> bool:
    """Return whether a point lies on an obstacle that moves, where it was `ago_s` before the last scan."""
    for k in range(t.tracks):
        if t.life[i, k][2] == 1:
            p = t.pos[i, k]
            v = t.vel[i, k]
            dx = x - p[0] + ago_s * v[0]
            dy = y - p[1] + ago_s * v[1]
            reach = 0.5 * t.shape[i, k][0] + SLACK_M
            if dx * dx + dy * dy < reach * reach:
                return True
    return False


@wp.func
def stamp(t: Tracker, i: int, x: float, y: float, z: float, bands: wp.uint32, now: int) -> int:
    """Store a hit of drone i; return STATIC, KNOWN or CAME. Hits on obstacles that move are not stored."""
    ix = to_cell(x)
    iy = to_cell(y)
    at = place_in(t, ix, iy)
    cell = t.grid[i, at]
    bits = (cell[3] & (BANDS_MASK | CAME_BIT | STATIC_BIT)) | int(bands)
    if cell[0] != number_of(ix, iy) or ((cell[3] & STATIC_BIT) == 0 and now - cell[2] > t.gap):
        cell = wp.vec4i(number_of(ix, iy), now, now, 0)
        bits = int(bands)
        if was_free(t, i, ix, iy, int(z / BAND_M), now):
            bits = bits | CAME_BIT
    if now - cell[1] < t.overrule and is_on_track(t, i, x, y, 0.0):
        if cell[0] == t.grid[i, at][0]:
            t.grid[i, at] = wp.vec4i(0, 0, 0, 0)
        return CAME
    kind = int(STATIC)
    if (bits & STATIC_BIT) == 0:
        if (bits & CAME_BIT) > 0:
            if now - cell[1] < t.confirm_late:
                kind = CAME
        elif not is_beside_static(t, i, ix, iy, now):
            kind = KNOWN
        if kind == STATIC:
            bits = (bits | STATIC_BIT) & (BANDS_MASK | STATIC_BIT)
    t.grid[i, at] = wp.vec4i(cell[0], cell[1], now, bits)
    return kind


@wp.func
def free_cell(t: Tracker, i: int, x: float, y: float, low: int, level: int, now: int):
    """Mark the cell at a point as free from height band `low` on, unless it has hits; erase them after ERASE rays.

    A cell with hits is erased only if it reaches up to the drone's height: `level` is that height's band.
    """
    ix = to_cell(x)
    iy = to_cell(y)
    at = place_in(t, ix, iy)
    cell = t.grid[i, at]
    if cell[0] != number_of(ix, iy):
        t.free[i, at] = wp.vec2i(number_of(ix, iy), BANDS * now + low)
    elif cell[2] < now and (cell[3] & level) > 0:
        cell = wp.vec4i(cell[0], cell[1], cell[2], cell[3] + PASSED)
        if cell[3] >= ERASE * PASSED:
            cell = wp.vec4i(0, 0, 0, 0)
        t.grid[i, at] = cell


@wp.func
def free_cells(t: Tracker, i: int, pos: wp.vec3, now: int):
    """Mark the cells of drone i that lie between neighbouring azimuths, before the nearest hit of both, as free."""
    level = int(bands_between(pos[2], pos[2]))
    for h in range(t.azimuths - 1 + t.wraps):
        a = t.open[i, h]
        b = t.open[i, (h + 1) % t.azimuths]
        steps = int((wp.min(a[2], b[2]) - MARGIN_M) / CELL_M)
        for k in range(NEAR_CELLS, steps):
            d = CELL_M * float(k)
            parts = int(t.pitch * float(k)) + 1
            low = wp.clamp(int(wp.floor((pos[2] + d * wp.max(a[3], b[3])) / BAND_M)) + 1, 0, BANDS - 1)
            for n in range(parts):
                s = float(n) / float(parts)
                x = pos[0] + d * (a[0] + s * (b[0] - a[0]))
                y = pos[1] + d * (a[1] + s * (b[1] - a[1]))
                free_cell(t, i, x, y, low, level, now)


@wp.func
def draw_memory(m: LocalMap, t: Tracker, i: int, pos: wp.vec3, memory: int):
    """Draw the local map of drone i at `pos` anew after a new scan: recent hits that do not move, and static cells.

    If `memory` is 0, static cells are drawn only if they were hit recently.
    """
    ix = to_cell(pos[0])
    iy = to_cell(pos[1])
    is_new = t.scanned[i] == t.clock[i]
    roll(m, i, ix, iy, int(is_new))
    if not is_new:
        return
    reach = m.size / 2 - REACH_CELLS - 1
    now = t.scanned[i]
    for at in range(t.size * t.size):
        cell = t.grid[i, at]
        static = (cell[3] & STATIC_BIT) > 0
        recent = cell[3] > 0 and now - cell[2] <= t.hold and cell[3] < PASSED
        if recent or (memory == 1 and static):
            cx = cell[0] / 0x8000 - NUMBER_OFFSET
            cy = cell[0] % 0x8000 - NUMBER_OFFSET
            if wp.abs(cx - ix) <= reach and wp.abs(cy - iy) <= reach:
                drawn = static
                if not static:
                    ago = float(now - cell[2]) * t.decision_s
                    drawn = not is_on_track(t, i, CELL_M * (float(cx) + 0.5), CELL_M * (float(cy) + 0.5), ago)
                if drawn:
                    draw_hit(m, i, cx, cy, wp.uint32(cell[3] & BANDS_MASK))
