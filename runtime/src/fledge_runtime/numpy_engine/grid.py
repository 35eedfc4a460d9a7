"""The tracker's memory of past hits in cells of 0.1 m, as in native/tracker_memory.c."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Iterable

import numpy as np

from fledge_runtime.numpy_engine.floats import HALF, F, bands_between, to_cell
from fledge_runtime.numpy_engine.local_map import LocalMap
from fledge_runtime.numpy_engine.tables import REACH_CELLS, TRACK_RANGE_M, window_cells

STATIC, KNOWN, CAME = 0, 1, 2
BESIDE_CELLS, BANDS_MASK, CAME_BIT, STATIC_BIT, PASSED, ERASE = 2, 0xFFFF, 0x10000, 0x20000, 0x40000, 3
NUMBER_OFFSET, NUMBER_MASK = 0x4000, 0x7FFF
BANDS, BAND_M, CELL_M, SLACK_M, MARGIN_M, NEAR_CELLS = 16, F(0.25), F(0.1), F(0.2), F(0.15), 3


def number_of(ix: Any, iy: Any) -> Any:
    """Return the numbers of cells. They repeat every 3.2 km, far beyond the grid."""
    return ((ix + NUMBER_OFFSET) & NUMBER_MASK) << 15 | ((iy + NUMBER_OFFSET) & NUMBER_MASK)


def coordinates(numbers: Any, near: int) -> Any:
    """Return the coordinates nearest to `near` whose last 15 bits, after adding the offset, are those of `numbers`."""
    ahead = (numbers - NUMBER_OFFSET - near) & NUMBER_MASK
    return near + ahead - np.where(ahead > NUMBER_MASK // 2, NUMBER_MASK + 1, 0)


class Grid:
    """Cells by place: number, first and last hit of the stay, bits; and the marks of cells that rays passed through.

    The fields of cells are int64 arrays, and memory views of the same memory, whose single items are faster to read.
    """

    def __init__(self, times: SimpleNamespace) -> None:
        self.size, self.times = window_cells(TRACK_RANGE_M), times
        self.last_cell = self.size - 1
        names = ("number", "first", "last", "bits", "free_number", "free_stamp")
        self.arrays = {name: np.zeros(self.size * self.size, np.int64) for name in names}
        views = [array.data for array in self.arrays.values()]
        self.number, self.first, self.last, self.bits, self.free_number, self.free_stamp = views

    def clear(self) -> None:
        for array in self.arrays.values():
            array[:] = 0

    def place(self, ix: Any, iy: Any) -> Any:
        return (ix & self.last_cell) * self.size + (iy & self.last_cell)

    def erase(self, at: int) -> None:
        self.number[at] = self.first[at] = self.last[at] = self.bits[at] = 0

    def is_beside_static(self, ix: int, iy: int, now: int) -> bool:
        t, number, bits, first, last = self.times, self.number, self.bits, self.first, self.last
        for x in range(ix - BESIDE_CELLS, ix + BESIDE_CELLS + 1):
            for y in range(iy - BESIDE_CELLS, iy + BESIDE_CELLS + 1):
                at = (x & self.last_cell) * self.size + (y & self.last_cell)
                if number[at] != number_of(x, y):
                    continue
                if bits[at] & STATIC_BIT:
                    return True
                if not bits[at] & CAME_BIT and now - last[at] <= t.gap and now - first[at] >= t.confirm:
                    return True
        return False

    def was_free(self, ix: int, iy: int, band: int, now: int) -> bool:
        """Return whether rays recently passed through a cell and its eight neighbours, at a height band."""
        for x in range(ix - 1, ix + 2):
            for y in range(iy - 1, iy + 2):
                at = (x & self.last_cell) * self.size + (y & self.last_cell)
                if self.free_number[at] != number_of(x, y):
                    return False
                stamp = self.free_stamp[at]
                if now - stamp // BANDS > self.times.recent or stamp % BANDS > band:
                    return False
        return True

    def stamp(self, hits: SimpleNamespace, on_track: Any, now: int) -> np.ndarray:
        """Store hits, and return what each is: STATIC, KNOWN or CAME. `on_track(x, y, ago_s)` tells whether points lie on
        obstacles that move."""
        ix, iy = to_cell(hits.x), to_cell(hits.y)
        at, number, bands = self.place(ix, iy), number_of(ix, iy), hits.bands.astype(np.int64)
        arrays, kinds = self.arrays, np.full(len(at), STATIC)
        settled = (arrays["number"][at] == number) & ((arrays["bits"][at] & STATIC_BIT) > 0)
        settled &= now - arrays["first"][at] >= self.times.overrule
        # the hits on settled cells change nothing that other hits of this scan depend on
        old = at[settled]
        kept = arrays["bits"][old] & (BANDS_MASK | CAME_BIT | STATIC_BIT)
        arrays["bits"][old] = kept
        np.bitwise_or.at(arrays["bits"], old, bands[settled])
        arrays["last"][old] = now
        moving = on_track(hits.x, hits.y, F(0.0))
        rows: Iterable[Any] = zip(
            *(a.tolist() for a in (ix, iy, at, number, bands, (hits.z / BAND_M).astype(np.int64), moving))
        )
        open_hits = set(np.flatnonzero(~settled).tolist())
        for n, row in enumerate(rows):
            if n in open_hits:
                kinds[n] = self.stamp_one(now, *row)
        return kinds

    def stamp_one(self, now: int, ix: int, iy: int, at: int, number: int, bands: int, band: int, moving: bool) -> int:
        t, known = self.times, self.number[at] == number
        old, first, kind = self.bits[at], self.first[at], STATIC
        bits = (old & (BANDS_MASK | CAME_BIT | STATIC_BIT)) | bands
        if not known or (not old & STATIC_BIT and now - self.last[at] > t.gap):
            first, bits = now, bands
            if self.was_free(ix, iy, band, now):
                bits |= CAME_BIT
        if moving and now - first < t.overrule:
            if known:
                self.erase(at)
            return CAME
        if not bits & STATIC_BIT:
            if bits & CAME_BIT:
                kind = CAME if now - first < t.confirm_late else STATIC
            elif not self.is_beside_static(ix, iy, now):
                kind = KNOWN
            if kind == STATIC:
                bits = (bits | STATIC_BIT) & (BANDS_MASK | STATIC_BIT)
        self.number[at], self.first[at], self.last[at], self.bits[at] = number, first, now, bits
        return kind

    def free(self, returns: SimpleNamespace, pos: Any, pitch: Any, wraps: bool, now: int) -> None:
        """Mark the cells that lie between neighbouring azimuths, before the nearest hit of both, as free."""
        level = int(bands_between(pos[2], pos[2]))
        h = np.arange(len(returns.ux) - 1 + wraps)
        after = (h + 1) % len(returns.ux)
        nearest = np.minimum(returns.first_hit[h], returns.first_hit[after])
        steps = ((nearest - MARGIN_M) / CELL_M).astype(np.int64)
        slope = np.maximum(returns.slope[h], returns.slope[after])
        h, k = pairs(h, np.maximum(steps - NEAR_CELLS, 0))
        k = k + NEAR_CELLS
        parts = (pitch * k.astype(np.float32)).astype(np.int64) + 1
        row, n = pairs(np.arange(len(h)), parts)
        h, k, parts = h[row], k[row].astype(np.float32), parts[row].astype(np.float32)
        d, s, to = CELL_M * k, n.astype(np.float32) / parts, after[h]
        low = np.clip(np.floor((pos[2] + d * slope[h]) / BAND_M).astype(np.int64) + 1, 0, BANDS - 1)
        x, y = (at + d * (u[h] + s * (u[to] - u[h])) for at, u in zip(pos, (returns.ux, returns.uy)))
        self.free_cells(to_cell(x), to_cell(y), low, level, now)

    def free_cells(self, ix: Any, iy: Any, low: Any, level: int, now: int) -> None:
        """Mark cells as free from height bands `low` on, in this order; cells with hits are erased after ERASE rays."""
        at, number = self.place(ix, iy), number_of(ix, iy)
        hit = self.arrays["number"][at] == number
        clear = np.flatnonzero(~hit)
        self.arrays["free_number"][at[clear]] = number[clear]  # of equal places the last one counts
        self.arrays["free_stamp"][at[clear]] = BANDS * now + low[clear]
        for place, cell, band in zip(*(a[hit].tolist() for a in (at, number, low))):
            if self.number[place] != cell:  # erased by a ray before
                self.free_number[place], self.free_stamp[place] = cell, BANDS * now + band
            elif self.last[place] < now and self.bits[place] & level:
                self.bits[place] += PASSED
                if self.bits[place] >= ERASE * PASSED:
                    self.erase(place)

    def draw(self, m: LocalMap, pos: Any, memory: bool, on_track: Any, decision_s: Any, now: int) -> None:
        """Draw the local map, which is empty, anew: recent hits that do not move, and static cells."""
        bits, number = self.arrays["bits"], self.arrays["number"]
        recent = (bits > 0) & (now - self.arrays["last"] <= self.times.hold) & (bits < PASSED)
        at = np.flatnonzero(recent | (((bits & STATIC_BIT) > 0) & memory))
        centre = (int(to_cell(pos[0])), int(to_cell(pos[1])))
        cx, cy = coordinates(number[at] >> 15, centre[0]), coordinates(number[at], centre[1])
        reach = m.half - REACH_CELLS - 1
        near = (np.abs(cx - centre[0]) <= reach) & (np.abs(cy - centre[1]) <= reach)
        at, cx, cy = at[near], cx[near], cy[near]
        fixed = (bits[at] & STATIC_BIT) > 0
        ago = (now - self.arrays["last"][at]).astype(np.float32) * decision_s
        x, y = (CELL_M * (c.astype(np.float32) + HALF) for c in (cx, cy))
        drawn = fixed | ~on_track(x, y, ago)
        m.draw_all(cx[drawn], cy[drawn], (bits[at] & BANDS_MASK)[drawn].astype(np.uint64))


def pairs(rows: np.ndarray, counts: np.ndarray) -> Any:
    """Return each row as often as its count says, and the numbers 0 .. count - 1 beside it."""
    repeated = np.repeat(rows, counts)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    return repeated, np.arange(len(repeated)) - starts
