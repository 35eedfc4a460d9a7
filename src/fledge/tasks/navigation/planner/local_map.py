"""A local map of past LiDAR hits that moves with the drone and answers how far a point is from the nearest hit.

The map lies in the goal frame with the goal at (0, 0), in cells of 0.1 m, and wraps around: cell (ix, iy) is stored
at (ix mod size, iy mod size), and is cleared when it leaves the window of size x size cells around the drone. Heights are
divided into 16 bands of 0.25 m above the ground; the last one has no upper end. A cell stores how near a hit is, not
whether it is hit:

    word 0   ring 3 | ring 2 | ring 1 | ring 0      16 bits each, a bit for a band; ring k has a bit
    word 1   ring 7 | ring 6 | ring 5 | ring 4      where a hit of that band lies at ring k's distance

    ring        0     1     2     3     4     5     6     7
    up to, m    0   0.2   0.3   0.4   0.5   0.6   0.7   0.8     horizontally, between the centres of two cells

So a new hit is drawn once, as a disc of rings (197 cells), a hit that is already in the map costs one read, and a query
reads two words at any distance. A cell takes 16 bytes: 128 x 128 cells (±6.4 m) take 256 KiB per drone. Discs are drawn in
blocks of four cells along y, 64 bytes, which are a line of the processor's cache.
"""

import math

import numpy as np
import warp as wp

from fledge.envs.kernel_random import TWO_PI
from fledge.tasks.navigation.planner.readings import Movers, Own, Seen, sensor_turn
from fledge.tasks.navigation.sensing.observations import NEAREST

CELL_M = 0.1
BANDS = 16
BAND_M = 0.25
RING_EDGES_M = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
GROUND_M = 0.1  # hits below this height are the ground, which the height limit keeps the drone away from
REACH_CELLS = 8  # of the widest ring
MOVER_SLACK_M = 0.25  # hits this near to an observed mover belong to it: corners of boxes, a scan of a moment ago
INSIDE_M = 0.02  # a hit is stored this far behind the surface, inside the obstacle

INV_CELL = 1.0 / CELL_M
INV_BAND = 1.0 / BAND_M
RINGS = len(RING_EDGES_M)
BLOCK = 4  # cells
BLOCKS = 5  # that a disc touches along y
DISC_CELLS = 2 * REACH_CELLS + 1

cell = wp.types.vector(length=2, dtype=wp.uint64)
block = wp.types.vector(length=2 * BLOCK, dtype=wp.uint64)


def window_cells(range_m: float, least: int = 128) -> int:
    """Return the number of cells along a side of the map: a power of two, at least `least`.

    The map has room for hits at this range and for the rings around them.
    """
    needed = 2 * (math.ceil(range_m / CELL_M) + REACH_CELLS + 2)
    return max(least, 1 << (needed - 1).bit_length())


def disc() -> np.ndarray:
    """Return dx, dy and ring of all cells that a hit is written to, [197, 3] int32, the nearest cells first."""
    dx, dy = (axis.ravel() - REACH_CELLS for axis in np.indices((2 * REACH_CELLS + 1, 2 * REACH_CELLS + 1)))
    ring = np.searchsorted(np.array(RING_EDGES_M) + 1e-6, np.hypot(dx, dy) * CELL_M)
    rows = np.stack([dx, dy, ring], axis=1)[np.lexsort((dy, dx, ring))]
    return rows[rows[:, 2] < RINGS].astype(np.int32)


def stencils() -> np.ndarray:
    """Return the bits that a hit in all height bands sets, [BLOCK, DISC_CELLS, BLOCKS, 2 * BLOCK] uint64.

    The first axis is the place of the hit's cell in its block, the others are rows along x, blocks along y, and words.
    """
    bits = np.zeros((BLOCK, DISC_CELLS, BLOCKS * BLOCK, 2), np.uint64)
    for dx, dy, ring in disc().tolist():
        for place in range(BLOCK):
            bits[place, dx + REACH_CELLS, place + dy + REACH_CELLS, ring // 4] = 0xFFFF << 16 * (ring % 4)
    return bits.reshape(BLOCK, DISC_CELLS, BLOCKS, 2 * BLOCK)


def ring_distances() -> np.ndarray:
    """Return the mean distance of each ring's cells from the hit, m, [9] float32; the last entry stands for no hit."""
    rows = disc()
    away = np.hypot(rows[:, 0], rows[:, 1]) * CELL_M
    means = [away[rows[:, 2] == k].mean() for k in range(RINGS)]
    return np.array([*means, 1.0e6], np.float32)


@wp.struct
class LocalMap:
    """Maps of N drones. `size` is a power of two."""

    size: int
    cells: wp.array2d(dtype=cell)  # [N, size * size]
    blocks: wp.array2d(dtype=block)  # [N, size * size / BLOCK]: the same memory
    centre: wp.array(dtype=wp.vec2i)  # [N] cell of the drone
    fresh: wp.array(dtype=wp.bool)  # [N] true if nothing is remembered yet
    drawn: wp.array(dtype=wp.float32)  # [N] sum over the last scan, by which a scan that is held is known
    stencils: wp.array3d(dtype=block)  # [BLOCK, DISC_CELLS, BLOCKS]


@wp.func
def to_cell(x: float) -> int:
    return int(wp.floor(x * INV_CELL))


@wp.func
def place_of(m: LocalMap, ix: int, iy: int) -> int:
    """Return the index of a cell; negative cells wrap around too, since sizes are powers of two."""
    last = m.size - 1
    return (ix & last) * m.size + (iy & last)


@wp.func_native("""
#if !defined(__CUDACC__)
    __builtin_prefetch(&wp::index(cells, i, at));
#endif
""")
def fetch(cells: wp.array2d(dtype=cell), i: int, at: int):
    """Start to load a cell into the processor's cache."""


@wp.func
def fetch_at(m: LocalMap, i: int, x: float, y: float):
    """Start to load the cell at a point into the processor's cache."""
    fetch(m.cells, i, place_of(m, to_cell(x), to_cell(y)))


@wp.func
def bands_between(low: float, high: float) -> wp.uint32:
    """Return a bit mask of the height bands that the heights from `low` to `high`, m, touch."""
    a = wp.clamp(int(wp.floor(low * INV_BAND)), 0, BANDS - 1)
    b = wp.clamp(int(wp.floor(high * INV_BAND)), -1, BANDS - 1)
    if a > b:
        return wp.uint32(0)
    return (wp.uint32(2) << wp.uint32(b)) - (wp.uint32(1) << wp.uint32(a))


@wp.func
def in_every_ring(bands: wp.uint32) -> wp.uint64:
    """Return a word that has a mask of height bands in each of its four rings."""
    word = wp.uint64(bands)
    word = word | (word << wp.uint64(16))
    return word | (word << wp.uint64(32))


@wp.func
def wipe_line(m: LocalMap, i: int, line: int, along_x: int):
    """Clear the cells with ix = `line` (if `along_x` is 1) or iy = `line`, whose memory the window's other side reuses."""
    for k in range(m.size):
        m.cells[i, wp.where(along_x == 1, place_of(m, line, k), place_of(m, k, line))] = cell()


@wp.func
def roll(m: LocalMap, i: int, ix: int, iy: int, forget: int):
    """Move the window of drone i so that cell (ix, iy) is its centre; clear the cells that enter it.

    If the drone's memory is empty (`m.fresh`) or `forget` is 1, clear all cells.
    """
    old = m.centre[i]
    m.centre[i] = wp.vec2i(ix, iy)
    dx = ix - old[0]
    dy = iy - old[1]
    if m.fresh[i] or forget == 1 or wp.abs(dx) >= m.size or wp.abs(dy) >= m.size:
        for k in range(m.size * m.size):
            m.cells[i, k] = cell()
        m.fresh[i] = False
        return
    half = m.size / 2
    for k in range(wp.abs(dx)):  # lines that enter on one side use the memory of those that leave on the other
        wipe_line(m, i, wp.min(ix, old[0]) + half + k, 1)
    for k in range(wp.abs(dy)):
        wipe_line(m, i, wp.min(iy, old[1]) + half + k, 0)


@wp.func
def draw_hit(m: LocalMap, i: int, ix: int, iy: int, bands: wp.uint32):
    """Mark the rings around a hit in the map, unless all of its height bands are marked already."""
    known = wp.uint32(m.cells[i, place_of(m, ix, iy)][0] & wp.uint64(0xFFFF))
    if (known & bands) == bands:
        return
    every = block(in_every_ring(bands))
    place = iy & (BLOCK - 1)
    for r in range(DISC_CELLS):
        for b in range(BLOCKS):
            at = place_of(m, ix + r - REACH_CELLS, iy - place + BLOCK * b - REACH_CELLS) / BLOCK
            m.blocks[i, at] = m.blocks[i, at] | (every & m.stencils[place, r, b])


@wp.kernel
def draw_hits(
    m: LocalMap, first: wp.array(dtype=wp.int32), at: wp.array(dtype=wp.int32), bands: wp.array(dtype=wp.int32)
):
    """Draw hits first[i] to first[i + 1] - 1, in these cells and bands, into the map of drone i."""
    i = wp.tid()
    for n in range(first[i], first[i + 1]):
        draw_hit(m, i, at[n] / m.size, at[n] % m.size, wp.uint32(bands[n]))


@wp.func
def is_on_mover(movers: Movers, i: int, x: float, y: float) -> bool:
    """Return whether a hit at (x, y) lies on one of the observed movers, which the map must not keep as static."""
    for k in range(NEAREST):
        place = movers.place[i, k]
        dx = x - place[0]
        dy = y - place[1]
        reach = place[3] + MOVER_SLACK_M
        if dx * dx + dy * dy < reach * reach:
            return True
    return False


@wp.func
def remember_rays(m: LocalMap, i: int, seen: Seen, movers: Movers, pos: wp.vec3, yaw: float):
    """Add a scan of rays of any direction to the map, without the hits on observed movers; see `remember`."""
    turn = sensor_turn(seen, i, yaw)
    for n in range(seen.rays.shape[0]):
        value = seen.lidar[i, n]
        if value > 0.0:
            hit = (seen.range_m - value + INSIDE_M) * wp.quat_rotate(turn, seen.rays[n])
            flat = wp.sqrt(hit[0] * hit[0] + hit[1] * hit[1])
            z = pos[2] + hit[2]
            if flat < seen.reach_m and z > GROUND_M + seen.angle_error * flat:
                bands = bands_between(wp.where(seen.standing == 1, 0.0, z), z)
                if bands != wp.uint32(0) and not is_on_mover(movers, i, pos[0] + hit[0], pos[1] + hit[1]):
                    draw_hit(m, i, to_cell(pos[0] + hit[0]), to_cell(pos[1] + hit[1]), bands)


@wp.func
def is_new(m: LocalMap, i: int, seen: Seen, fresh: bool) -> bool:
    """Return whether drone i's scan must be drawn: it is not the one that was drawn last, or nothing is remembered."""
    total = float(0.0)
    for n in range(seen.lidar.shape[1]):
        total = total + seen.lidar[i, n]
    same = total == m.drawn[i] and not fresh and seen.memory == 1
    m.drawn[i] = total
    return not same


@wp.func
def any_hit(seen: Seen, i: int, first: int, count: int) -> bool:
    """Return whether any of `count` rays from number `first` on hits something."""
    for n in range(count):
        if seen.lidar[i, first + n] > 0.0:
            return True
    return False


@wp.func
def remember(m: LocalMap, i: int, seen: Seen, movers: Movers, own: Own, fresh: bool):
    """Add a scan to the map, from where the drone was when it was taken."""
    yaw = own.yaw
    roll(m, i, to_cell(own.pos[0]), to_cell(own.pos[1]), 1 - seen.memory)
    if not is_new(m, i, seen, fresh):
        return
    pos = own.pos - seen.late_s * own.vel
    if seen.rays.shape[0] > 0:
        remember_rays(m, i, seen, movers, pos, yaw)
        return
    elevations = seen.cosine.shape[0]
    for h in range(seen.azimuths):
        if not any_hit(seen, i, h * elevations, elevations):
            continue
        angle = yaw + TWO_PI * float(h) / float(seen.azimuths)
        dx = wp.cos(angle)
        dy = wp.sin(angle)
        for n in range(elevations):
            v = elevations - 1 - n  # downwards: the highest hit on a column contains those below
            value = seen.lidar[i, h * elevations + v]
            if value > 0.0:
                d = seen.range_m - value + INSIDE_M
                z = pos[2] + d * seen.sine[v]
                if z > GROUND_M:
                    bands = bands_between(wp.where(seen.standing == 1, 0.0, z), z)
                    if bands != wp.uint32(0):
                        flat = d * seen.cosine[v]
                        draw_hit(m, i, to_cell(pos[0] + flat * dx), to_cell(pos[1] + flat * dy), bands)


@wp.func
def is_empty(word: wp.uint64) -> int:
    return wp.where(word == wp.uint64(0), 1, 0)


@wp.func
def nearest_ring(found: cell, every: wp.uint64) -> int:
    """Return the nearest ring, 0 to 7, in which a cell has a bit of the mask `every`; 8 if there is none."""
    near = found[0] & every
    word = wp.where(near == wp.uint64(0), found[1] & every, near)
    return (
        4 * is_empty(near)
        + is_empty(word & wp.uint64(0xFFFF))
        + is_empty(word & wp.uint64(0xFFFFFFFF))
        + is_empty(word & wp.uint64(0xFFFFFFFFFFFF))
        + is_empty(word)
    )


@wp.func
def ring_at(m: LocalMap, i: int, x: float, y: float, bands: wp.uint32) -> int:
    """Return the ring, 0 to 7, in which a point lies around the nearest remembered hit in these height bands; 8 if there is
    no such hit, or if the point is off the map."""
    ix = to_cell(x)
    iy = to_cell(y)
    c = m.centre[i]
    half = m.size / 2
    if ix < c[0] - half or ix >= c[0] + half or iy < c[1] - half or iy >= c[1] + half:
        return RINGS
    return nearest_ring(m.cells[i, place_of(m, ix, iy)], in_every_ring(bands))
