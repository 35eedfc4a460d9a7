"""The local map and the cost-to-go, as in native/local_map.c and native/cost_to_go.c."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from fledge_runtime.numpy_engine.floats import (
    HALF,
    ONE,
    TWO_PI,
    ZERO,
    F,
    about_axis,
    bands_between,
    combine,
    cos,
    hypot,
    in_every_ring,
    rotate,
    scale,
    sin,
    sub,
    to_cell,
)
from fledge_runtime.numpy_engine.tables import REACH_CELLS, RINGS, ring_table, stencil

GROUND_M, INSIDE_M, MOVER_SLACK_M = F(0.1), F(0.02), F(0.25)
POINTS, SPACING_M, INV_SPACING, UNKNOWN = 64, F(0.2), F(5.0), F(1.0e6)
NEAR_GOAL_M, DIAGONAL = F(0.4), F(1.41421356)
LOW, MIDDLE, HIGH = (np.uint64(mask) for mask in (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFF))
NONE = np.uint64(0)
AROUND = np.arange(-REACH_CELLS, REACH_CELLS + 1)
RING_CELLS = [(np.argwhere(ring_table() == k) - REACH_CELLS).tolist() for k in range(RINGS)]


def nearest_ring(first: Any, second: Any, every: Any) -> Any:
    """Return the nearest ring in which cells, of these two words, have a bit of the mask; RINGS if there is none."""
    near = first & every
    empty = near == NONE
    word = np.where(empty, second & every, near)
    ring = 4 * empty.astype(np.int64)
    for mask in (LOW, MIDDLE, HIGH, ~NONE):
        ring += (word & mask) == NONE
    return ring


def sensor_turn(sensor: SimpleNamespace, seen: Any, yaw: Any) -> Any:
    """Return the rotation from the sensor's frame to the frame in which the drone has this yaw."""
    turn = about_axis(2, yaw)
    if sensor.tilts:
        roll, pitch = seen["attitude"]
        turn = combine(combine(turn, about_axis(1, pitch)), about_axis(0, roll))
    return turn


def scan_hits(sensor: SimpleNamespace, seen: Any, pos: Any, yaw: Any) -> SimpleNamespace:
    """Return the hits of a scan of rays of any direction that are in reach and not the ground: ray numbers, points, heights
    and height bands."""
    value = seen["lidar"]
    n = np.flatnonzero(value > 0)
    rays = tuple(axis[n] for axis in sensor.rays)
    hit = scale(rotate(sensor_turn(sensor, seen, yaw), rays), sensor.range_m - value[n] + INSIDE_M)
    flat, z = hypot(hit[0], hit[1]), pos[2] + hit[2]
    keep = (flat < sensor.reach_m) & (z > GROUND_M + sensor.angle_error * flat)
    x, y, z = pos[0] + hit[0][keep], pos[1] + hit[1][keep], z[keep]
    bands = bands_between(np.zeros_like(z) if sensor.standing else z, z)
    return SimpleNamespace(n=n[keep], x=x, y=y, z=z, flat=flat[keep], bands=bands)


class LocalMap:
    """The window of cells around the drone that stores how near past hits are."""

    def __init__(self, size: int, sensor: SimpleNamespace) -> None:
        self.size, self.half, self.sensor, self.last = size, size // 2, sensor, size - 1
        self.cells = np.zeros((2, size, size), np.uint64)
        self.stencil = np.ascontiguousarray(np.moveaxis(stencil(), -1, 0))
        self.centre, self.drawn = (0, 0), ZERO

    def rings_at(self, ix: Any, iy: Any, every: Any) -> Any:
        """Return the rings in which cells lie around the nearest hit with height bands of the mask `every`."""
        (cx, cy), half = self.centre, self.half
        on_map = (ix >= cx - half) & (ix < cx + half) & (iy >= cy - half) & (iy < cy + half)
        at = (ix & self.last) * self.size + (iy & self.last)
        first, second = (words.reshape(-1).take(at) for words in self.cells)
        return np.where(on_map, nearest_ring(first, second, every), RINGS)

    def roll(self, ix: int, iy: int, forget: bool) -> None:
        """Move the window; clear the cells that enter it, or all if `forget`."""
        (old_x, old_y), self.centre = self.centre, (ix, iy)
        dx, dy = abs(ix - old_x), abs(iy - old_y)
        if forget or dx >= self.size or dy >= self.size:
            self.cells[:] = 0
            return
        self.cells[:, (min(ix, old_x) + self.half + np.arange(dx)) & self.last, :] = 0
        self.cells[:, :, (min(iy, old_y) + self.half + np.arange(dy)) & self.last] = 0

    def draw(self, ix: Any, iy: Any, bands: Any) -> None:
        """Mark the rings around hits, one after the other, unless all height bands of a hit are marked already."""
        known = self.cells[0, ix & self.last, iy & self.last]
        for k in np.flatnonzero((known & bands) != bands):
            x, y = int(ix[k]), int(iy[k])
            if (self.cells[0, x & self.last, y & self.last] & LOW & bands[k]) != bands[k]:
                rows, columns = (x + AROUND) & self.last, (y + AROUND) & self.last
                self.cells[:, rows[:, None], columns] |= in_every_ring(bands[k]) & self.stencil

    def draw_all(self, ix: Any, iy: Any, bands: Any) -> None:
        """Mark the rings around hits of different cells in an empty map."""
        hits = np.zeros((self.size, self.size), np.uint64)
        hits[ix & self.last, iy & self.last] = bands
        wide = np.pad(hits, REACH_CELLS, mode="wrap")
        for k, cells in enumerate(RING_CELLS):
            ring = np.zeros_like(hits)
            for dx, dy in cells:
                x, y = REACH_CELLS - dx, REACH_CELLS - dy
                ring |= wide[x : x + self.size, y : y + self.size]
            self.cells[k // 4] |= ring << np.uint64(16 * (k % 4))

    def remember(self, seen: Any, movers: Any, own: Any, fresh: bool) -> None:
        """Add a scan, from where the drone was when it was taken; a scan that is held is drawn once."""
        sensor = self.sensor
        self.roll(int(to_cell(own.pos[0])), int(to_cell(own.pos[1])), fresh or not sensor.memory)
        total = np.cumsum(seen["lidar"], dtype=np.float32)[-1]
        same = total == self.drawn and not fresh and sensor.memory
        self.drawn = total
        if same:
            return
        pos = sub(own.pos, scale(own.vel, sensor.late_s))
        if sensor.rays is None:
            self.draw(*self.upright_hits(seen["lidar"], pos, own.yaw))
            return
        hits = scan_hits(sensor, seen, pos, own.yaw)
        reach = movers.place[:, 3] + MOVER_SLACK_M
        dx, dy = (at[:, None] - movers.place[:, k] for k, at in enumerate((hits.x, hits.y)))
        static = ~(dx * dx + dy * dy < reach * reach).any(axis=1) & (hits.bands != NONE)
        self.draw(to_cell(hits.x[static]), to_cell(hits.y[static]), hits.bands[static])

    def upright_hits(self, lidar: np.ndarray, pos: Any, yaw: Any) -> tuple[Any, Any, Any]:
        """Return cells and height bands of the hits of upright rays, the highest of each azimuth first."""
        sensor = self.sensor
        value = lidar.reshape(sensor.azimuths, -1)[:, ::-1]
        angles = [yaw + TWO_PI * F(h) / F(sensor.azimuths) for h in range(sensor.azimuths)]
        d = sensor.range_m - value + INSIDE_M
        z = pos[2] + d * sensor.sine[::-1]
        bands = bands_between(np.zeros_like(z) if sensor.standing else z, z)
        flat = d * sensor.cosine[::-1]
        x, y = (at + flat * np.array([f(a) for a in angles], np.float32)[:, None] for at, f in zip(pos, (cos, sin)))
        keep = (value > 0) & (z > GROUND_M) & (bands != NONE)
        return to_cell(x[keep]), to_cell(y[keep]), bands[keep]


class CostToGo:
    """The length of the shortest path to the goal from each point of a grid around the drone, at its height."""

    def __init__(self, slowness: np.ndarray, every: int) -> None:
        self.slowness, self.every, self.rounds = slowness, every, 3
        self.length = np.zeros((POINTS, POINTS), np.float32)
        self.corner, self.age = (ZERO, ZERO), 0

    def update(self, m: LocalMap, pos: Any, body: Any, fresh: bool) -> None:
        """Solve the grid again if the flight is new or `every` decisions have passed since the last time."""
        if fresh:
            self.age = 0
        if self.every and self.age % self.every == 0:
            self.clear(m, pos, body)
            self.sweep()
        self.age += 1

    def clear(self, m: LocalMap, pos: Any, body: Any) -> None:
        """Initialise the grid: straight-line lengths at its border and near the goal, unknown lengths elsewhere."""
        steps, points = np.arange(POINTS).astype(np.float32), F(POINTS)
        corner = [
            np.floor(at * INV_SPACING) * SPACING_M - HALF * points * SPACING_M + HALF * SPACING_M for at in pos[:2]
        ]
        x, y = corner[0] + steps[:, None] * SPACING_M, corner[1] + steps * SPACING_M
        every = in_every_ring(bands_between(pos[2] - body, pos[2] + body))
        self.corner = (corner[0], corner[1])
        self.slow = (SPACING_M * self.slowness)[m.rings_at(to_cell(x), to_cell(y), every)]
        square = x * x + y * y
        straight = square < NEAR_GOAL_M * NEAR_GOAL_M
        straight[[0, -1]] = straight[:, [0, -1]] = True
        self.length = np.where(straight, np.sqrt(square), UNKNOWN)

    def relax_row(self, row: int, before: int) -> bool:
        """Update the points of a row from the row `before` it and from each other; return whether a length changed."""
        slow, side, old = self.slow[row], self.length[before], self.length[row]
        found = old.copy()
        straight = np.minimum(old[1:-1], side[1:-1] + slow[1:-1])
        found[1:-1] = np.minimum(straight, np.minimum(side[:-2], side[2:]) + DIAGONAL * slow[1:-1])
        now = np.minimum(along(found, slow), along(found[::-1], slow[::-1])[::-1])[1:-1]
        changed = bool((now < old[1:-1]).any())
        self.length[row, 1:-1] = now
        return changed

    def sweep(self) -> None:
        """Sweep the rows forth and back until no length changes; the first sweep comes from the goal."""
        stale = {1: {*range(POINTS)}, -1: {*range(POINTS)}}  # rows that the next sweep in each direction must update
        for k in range(2 * self.rounds):
            step = (-1 if self.corner[0] < 0 else 1) * (1 - 2 * (k % 2))
            if not stale[step]:
                return
            for row in range(1, POINTS - 1)[::step]:
                if row in stale[step] and self.relax_row(row, row - step):
                    stale[1].add(row + 1)
                    stale[-1].add(row - 1)
            stale[step] = set()

    def at(self, x: Any, y: Any) -> Any:
        """Return the lengths of the shortest paths from points to the goal, m; off the grid, of straight lines."""
        away = hypot(x, y)
        if not self.every:
            return away
        u, v = (x - self.corner[0]) * INV_SPACING, (y - self.corner[1]) * INV_SPACING
        fu, fv = np.floor(u), np.floor(v)
        last = F(POINTS - 1)
        off = (away < ONE) | (fu < 0) | (fv < 0) | (fu >= last) | (fv >= last)
        r, c = (np.where(off, 0, f).astype(np.int64) for f in (fu, fv))
        a, b = u - fu, v - fv
        low = (ONE - b) * self.length[r, c] + b * self.length[r, c + 1]
        high = (ONE - b) * self.length[r + 1, c] + b * self.length[r + 1, c + 1]
        return np.where(off, away, (ONE - a) * low + a * high)


def along(found: np.ndarray, slow: np.ndarray) -> np.ndarray:
    """Return the least lengths along a row, where each point but the last may be reached from the one before it."""
    ends, out = len(found) - 1, found.copy()
    worse = np.flatnonzero(found[1:ends] > found[: ends - 1] + slow[1:ends]) + 1
    done = 0
    for first in worse.tolist():
        k, low = first, out[first - 1] + slow[first]
        if first <= done:  # improved already
            continue
        while low < found[k]:
            out[k] = low
            done = k
            k += 1
            if k == ends:
                break
            low = low + slow[k]
    return out
