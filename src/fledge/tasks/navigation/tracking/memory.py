"""Memory of past hits in cells of 0.1 m, which tells static obstacles from moving ones.

A cell that has been hit again and again for CONFIRM_S is static, and stays so. Others are forgotten after HOLD_S. Cells wrap
around as in `planner.local_map`, but each stores its own number, so that no cell needs to be cleared when the drone moves.
"""

import warp as wp

from fledge.tasks.navigation.planner.local_map import REACH_CELLS, LocalMap, draw_hit, roll, to_cell
from fledge.tasks.navigation.tracking.structs import BESIDE_CELLS, Tracker

STATIC_BIT = 0x10000  # above the 16 bits of the height bands
NUMBER_OFFSET = 0x4000
SLACK_M = 0.2  # hits this near to a moving obstacle's surface belong to it


@wp.func
def number_of(ix: int, iy: int) -> int:
    return (ix + NUMBER_OFFSET) * 0x8000 + iy + NUMBER_OFFSET


@wp.func
def place_in(t: Tracker, ix: int, iy: int) -> int:
    last = t.size - 1
    return (ix & last) * t.size + (iy & last)


@wp.func
def is_static(t: Tracker, i: int, ix: int, iy: int) -> bool:
    """Return whether this cell of drone i has been confirmed as static."""
    cell = t.grid[i, place_in(t, ix, iy)]
    return cell[0] == number_of(ix, iy) and cell[3] >= STATIC_BIT


@wp.func
def is_beside_static(t: Tracker, i: int, ix: int, iy: int) -> bool:
    """Return whether a static cell lies within BESIDE_CELLS of this one."""
    for a in range(t.beside):
        for b in range(t.beside):
            if is_static(t, i, ix + a - BESIDE_CELLS, iy + b - BESIDE_CELLS):
                return True
    return False


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
def stamp(t: Tracker, i: int, x: float, y: float, bands: wp.uint32, now: int) -> bool:
    """Store a hit of drone i; return whether it lies on a static obstacle, or beside one."""
    ix = to_cell(x)
    iy = to_cell(y)
    at = place_in(t, ix, iy)
    cell = t.grid[i, at]
    same = cell[0] == number_of(ix, iy)
    static = same and cell[3] >= STATIC_BIT
    if not static:
        if is_on_track(t, i, x, y, 0.0):
            return False
        if not same or now - cell[2] > t.gap:
            cell = wp.vec4i(number_of(ix, iy), now, now, 0)
        static = now - cell[1] >= t.confirm
    kept = cell[3] | int(bands)
    if static:
        kept = kept | STATIC_BIT
    t.grid[i, at] = wp.vec4i(cell[0], cell[1], now, kept)
    return static or is_beside_static(t, i, ix, iy)


@wp.func
def draw_memory(m: LocalMap, t: Tracker, i: int, pos: wp.vec3, memory: int):
    """Draw the local map of drone i at `pos` anew after a new scan: recent hits that do not move, and static cells.

    If `memory` is 0, static cells are drawn only if they were hit recently.
    """
    ix = to_cell(pos[0])
    iy = to_cell(pos[1])
    fresh_scan = t.scanned[i] == t.clock[i]
    roll(m, i, ix, iy, int(fresh_scan))
    if not fresh_scan:
        return
    reach = m.size / 2 - REACH_CELLS - 1
    now = t.scanned[i]
    for at in range(t.size * t.size):
        cell = t.grid[i, at]
        recent = cell[3] > 0 and now - cell[2] <= t.hold
        if recent or (memory == 1 and cell[3] >= STATIC_BIT):
            cx = cell[0] / 0x8000 - NUMBER_OFFSET
            cy = cell[0] % 0x8000 - NUMBER_OFFSET
            if wp.abs(cx - ix) <= reach and wp.abs(cy - iy) <= reach:
                drawn = cell[3] >= STATIC_BIT
                if not drawn:
                    ago = float(now - cell[2]) * t.decision_s
                    drawn = not is_on_track(t, i, 0.1 * (float(cx) + 0.5), 0.1 * (float(cy) + 0.5), ago)
                if drawn:
                    draw_hit(m, i, cx, cy, wp.uint32(cell[3] & 0xFFFF))
