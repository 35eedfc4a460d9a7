"""The tracker: movers from the drone's own LiDAR, as in native/tracker.c and native/tracker_clusters.c."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from fledge_runtime.numpy_engine.floats import (
    HALF,
    ONE,
    TWO,
    ZERO,
    F,
    add,
    divide,
    hypot,
    length,
    rotate,
    scale,
    sub,
    to_cell,
)
from fledge_runtime.numpy_engine.grid import CAME, SLACK_M, STATIC, Grid
from fledge_runtime.numpy_engine.local_map import LocalMap, scan_hits, sensor_turn
from fledge_runtime.numpy_engine.search import read_own
from fledge_runtime.numpy_engine.tables import decision_s

TRACKS, CLUSTERS, NEAREST, SKIPPED = 16, 32, 5, 2
DEPTH_M, JOIN_M, JOIN_PITCHES, WIDEST_CLUSTER_M, OPEN = F(0.35), F(0.35), F(1.6), F(1.7), F(1.0e6)
HIGHEST_TOP_M, LOWEST_BOTTOM_M, HALF_BOX_M, LEVEL = F(4.6), F(0.3), F(0.5), F(1.0e-3)
GATE_M, JERKINESS, RANGE_SIGMA_M, PITCH_SIGMA, FIRST_SPEED, PUSH = F(0.5), F(1.5), F(0.03), F(0.25), F(0.7), F(0.42)
NARROWEST_M, WIDEST_M, GROW, SHRINK, UPRIGHT, UPRIGHT_SPEED = F(0.25), F(1.1), F(0.4), F(0.1), F(0.5), F(0.2)
SHARE, REST_SPEED, FASTEST = F(0.3), F(0.2), F(2.0)
SCANS, SPEED, MOVED_M, CAME_SHARE = 3, F(0.3), F(0.2), F(0.08)
SCANS_ELSE, SPEED_ELSE, MOVED_ELSE_M = 12, F(0.5), F(1.3)
COAST_S, WAIT_S = F(0.8), F(0.3)


class Track:
    """A Kalman filter of constant velocity. `seen` is 0 if there is no track."""

    def __init__(self) -> None:
        self.pos: Any = (ZERO, ZERO, ZERO)
        self.vel: Any = (ZERO, ZERO, ZERO)
        self.cov: Any = (ZERO, ZERO, ZERO)
        self.born: Any = (ZERO, ZERO)
        self.width = self.box = self.came = ZERO
        self.seen = self.last = 0
        self.moves = False

    def end(self) -> None:
        self.seen, self.last, self.moves = 0, 0, False

    def predict(self, seconds: Any) -> None:
        q, p, three = JERKINESS * seconds, self.cov, F(3.0)
        self.pos = add(self.pos, scale(self.vel, seconds))
        variance = p[0] + seconds * (TWO * p[1] + seconds * p[2]) + q * seconds * seconds / three
        self.cov = (variance, p[1] + seconds * p[2] + HALF * q * seconds, p[2] + q)

    def update(self, c: SimpleNamespace, sigma: Any, own: Any, now: int) -> None:
        self.width = self.width + (GROW if c.width > self.width else SHRINK) * (c.width - self.width)
        self.box = self.box + SHARE * (c.box - self.box)
        self.came = self.came + SHARE * (c.came - self.came)
        p = self.cov
        s = p[0] + sigma * sigma
        g, h, (x, y) = p[0] / s, p[1] / s, centre_of(c, self.width, own)
        dx, dy, dz = x - self.pos[0], y - self.pos[1], c.z - self.pos[2] if c.box > 0 else ZERO
        self.pos = add(self.pos, scale((dx, dy, UPRIGHT * dz), g))
        self.vel = add(self.vel, scale((dx, dy, UPRIGHT_SPEED * dz), h))
        self.cov = ((ONE - g) * p[0], (ONE - g) * p[1], p[2] - h * p[1])
        self.seen, self.last = self.seen + 1, now
        self.moves = self.is_moving()

    def is_moving(self) -> bool:
        speed = hypot(self.vel[0], self.vel[1])
        if speed > FASTEST or speed < REST_SPEED:
            return False
        if self.moves:
            return True
        away = hypot(self.pos[0] - self.born[0], self.pos[1] - self.born[1])
        if self.came >= CAME_SHARE and self.seen >= SCANS and speed > SPEED and away > MOVED_M:
            return True
        return bool(self.seen >= SCANS_ELSE and speed > SPEED_ELSE and away > MOVED_ELSE_M)

    def begin(self, c: SimpleNamespace, sigma: Any, own: Any, now: int) -> None:
        self.born = centre_of(c, c.width, own)
        self.pos, self.vel = (*self.born, c.z if c.box > 0 else own[2]), (ZERO, ZERO, ZERO)
        self.cov = (sigma * sigma, ZERO, FIRST_SPEED * FIRST_SPEED)
        self.width, self.box, self.came = c.width, c.box, c.came
        self.seen, self.last, self.moves = 1, now, False

    def row(self, away: Any) -> Any:
        """Return the row of dynamic_obstacle of a mover at `away` from the drone."""
        box = self.box > HALF
        vel = self.vel if box else (self.vel[0], self.vel[1], ZERO)
        away = away if box else (away[0], away[1], ZERO)
        unit = divide(away, max(length(away), F(1.0e-6)))
        width = F(4.0) * clamp_width(self.width) - ONE
        return (*unit, hypot(away[0], away[1]), away[2], *vel, width, ONE if box else ZERO)


def clamp_width(width: Any) -> Any:
    return min(max(NARROWEST_M, width), WIDEST_M)


def centre_of(c: SimpleNamespace, width: Any, own: Any) -> Any:
    """Return the centre of an obstacle of this width whose visible side is a cluster, seen from `own`."""
    x, y = c.x - own[0], c.y - own[1]
    push = PUSH * clamp_width(width) / max(hypot(x, y), LEVEL)
    return c.x + push * x, c.y + push * y


class Tracker:
    """Tracks of one drone, and its memory of hits."""

    def __init__(self, settings: Mapping[str, Any], sensor: SimpleNamespace) -> None:
        self.sensor, seconds = sensor, decision_s(settings)
        spans = {"confirm": 1.0, "confirm_late": 2.0, "gap": 0.7, "recent": 1.5, "hold": 0.3, "overrule": 3.0}
        self.grid = Grid(SimpleNamespace(**{name: max(1, round(s / seconds)) for name, s in spans.items()}))
        self.decision_s, self.wraps = F(seconds), settings["lidar_view_deg"] == 360
        self.pitch = F(math.radians(settings["lidar_view_deg"] / settings["lidar_azimuths"]))
        self.tracks = [Track() for _ in range(TRACKS)]
        self.clock = self.scanned = 0
        self.scan = np.zeros(0, np.float32)

    def track(self, seen: Any, fresh: bool) -> np.ndarray:
        """Update memory and tracks with the present scan, and return the rows of dynamic_obstacle, [50]."""
        if fresh:
            self.grid.clear()
            for each in self.tracks:
                each.end()
            self.clock = self.scanned = 0
        else:
            self.clock += 1
        own = read_own(seen)
        if fresh or not np.array_equal(seen["lidar"], self.scan):
            self.scan = seen["lidar"].copy()
            place = sub(own.pos, scale(own.vel, self.sensor.late_s))
            for each in self.tracks:
                if each.seen:
                    each.predict(F(self.clock - self.scanned) * self.decision_s)
            self.scanned = self.clock
            self.update(self.find_clusters(seen, place, own.yaw), place)
        return self.rows(own, F(self.clock - self.scanned) * self.decision_s + self.sensor.late_s)

    def draw(self, m: LocalMap, pos: Any, fresh: bool) -> None:
        """Draw the local map anew after a new scan."""
        is_new = self.scanned == self.clock
        m.roll(int(to_cell(pos[0])), int(to_cell(pos[1])), is_new)
        if is_new:
            self.grid.draw(m, pos, self.sensor.memory, self.on_track, self.decision_s, self.scanned)

    def on_track(self, x: Any, y: Any, ago_s: Any) -> Any:
        """Return whether points lie on obstacles that move, where they were `ago_s` before the last scan."""
        found = np.zeros(np.shape(x), bool)
        for each in self.tracks:
            if each.moves:
                dx, dy = x - each.pos[0] + ago_s * each.vel[0], y - each.pos[1] + ago_s * each.vel[1]
                reach = HALF * each.width + SLACK_M
                found |= dx * dx + dy * dy < reach * reach
        return found

    def find_clusters(self, seen: Any, pos: Any, yaw: Any) -> list[SimpleNamespace]:
        """Read a scan, taken at `pos` and `yaw`, and return its clusters, those of C at most."""
        sensor, now = self.sensor, self.clock
        hits = scan_hits(sensor, seen, pos, yaw)
        kinds = self.grid.stamp(hits, self.on_track, now)
        rays = rotate(sensor_turn(sensor, seen, yaw), sensor.rays)
        grid = [axis.reshape(sensor.azimuths, sensor.elevations) for axis in rays]
        middle, lowest = ([axis[:, v] for axis in grid] for v in (sensor.elevations // 2, 0))
        size, first_hit = np.maximum(hypot(middle[0], middle[1]), F(1.0e-6)), np.full(sensor.azimuths, sensor.reach_m)
        h = hits.n // sensor.elevations
        np.minimum.at(first_hit, h, hits.flat)
        slope = lowest[2] / np.maximum(hypot(lowest[0], lowest[1]), LEVEL)
        open_rays = SimpleNamespace(ux=middle[0] / size, uy=middle[1] / size, first_hit=first_hit, slope=slope)
        surfaces = self.surfaces(hits, kinds, h)
        returns = {k: self.close(s, seen, rays, k, pos[2]) for k, s in surfaces.items()}
        self.grid.free(open_rays, pos, self.pitch, self.wraps, now)
        return self.clusters(returns)

    def surfaces(self, hits: SimpleNamespace, kinds: np.ndarray, h: np.ndarray) -> dict[int, Any]:
        """Return sums over the nearest surface of each azimuth that is not static, by azimuth."""
        found: dict[int, Any] = {}
        for n in np.flatnonzero(kinds != STATIC).tolist():
            flat, s = hits.flat[n], found.get(int(h[n]))
            if s is None or flat < s.nearest - DEPTH_M:
                s = SimpleNamespace(x=ZERO, y=ZERO, flat=ZERO, count=ZERO, came=ZERO, nearest=flat, low=hits.z[n])
                s.bottom = int(hits.n[n])
                found[int(h[n])] = s
            elif not flat < s.nearest + DEPTH_M:
                continue
            s.nearest = min(s.nearest, flat)
            s.x, s.y, s.flat = s.x + hits.x[n], s.y + hits.y[n], s.flat + flat
            s.count, s.came = s.count + ONE, s.came + (ONE if kinds[n] == CAME else ZERO)
            s.high, s.top = hits.z[n], int(hits.n[n])
        return found

    def close(self, s: SimpleNamespace, seen: Any, rays: Any, h: int, z: Any) -> SimpleNamespace:
        """Return the return of an azimuth: means over its surface, and the heights at which rays pass below and above it."""
        rows, flat = self.sensor.elevations, s.flat / s.count

        def passed(n: int) -> Any:
            level, value = hypot(rays[0][n], rays[1][n]), seen["lidar"][n]
            if value > 0 and (self.sensor.range_m - value) * level < flat + DEPTH_M:
                return OPEN
            return z + flat * rays[2][n] / max(level, LEVEL)

        below = passed(s.bottom - 1) if s.bottom > h * rows else OPEN
        above = passed(s.top + 1) if s.top < h * rows + rows - 1 else OPEN
        means = {"x": s.x / s.count, "y": s.y / s.count, "came": s.came / s.count}
        return SimpleNamespace(**means, flat=flat, low=s.low, high=s.high, below=below, above=above)

    def clusters(self, returns: dict[int, Any]) -> list[SimpleNamespace]:
        """Join neighbouring returns that are close to each other."""
        count, last = self.sensor.azimuths, -SKIPPED - 1
        found: list[Any] = []
        members: list[Any] = []
        start = self.first_azimuth(returns)
        for k in range(count):
            at = returns.get((start + k) % count)
            if at is None:
                continue
            if members:
                apart = hypot(at.x - members[-1].x, at.y - members[-1].y)
                if k - last > SKIPPED or apart > max(JOIN_M, JOIN_PITCHES * self.pitch * at.flat):
                    found.append(self.join(members))
                    members = []
            members.append(at)
            last = k
        found.append(self.join(members) if members else None)
        return [c for c in found if c is not None][:CLUSTERS]

    def first_azimuth(self, returns: dict[int, Any]) -> int:
        """Return an azimuth at which no cluster is cut: the first after SKIPPED azimuths without a return."""
        empty = 0
        for h in range(self.sensor.azimuths if self.wraps else 0):
            empty = 0 if h in returns else empty + 1
            if empty == SKIPPED:
                return h
        return 0

    def join(self, members: list[SimpleNamespace]) -> SimpleNamespace | None:
        """Return the cluster of these returns, None if it is too wide."""
        count, sums = F(len(members)), dict.fromkeys(("x", "y", "flat", "came"), ZERO)
        tops, bottoms = [ZERO, ZERO], [ZERO, ZERO]  # sum of the heights of seen edges, number of them
        for at in members:
            sums = {name: value + getattr(at, name) for name, value in sums.items()}
            if at.below < OPEN and at.below < at.low:
                bottoms = [bottoms[0] + HALF * (at.low + at.below), bottoms[1] + ONE]
            if at.above < OPEN and at.above > at.high:
                tops = [tops[0] + HALF * (at.high + at.above), tops[1] + ONE]
        means = {name: value / count for name, value in sums.items()}
        width = hypot(members[-1].x - members[0].x, members[-1].y - members[0].y) + self.pitch * means["flat"]
        if width > WIDEST_CLUSTER_M:
            return None
        top, bottom = tops[0] / max(tops[1], ONE), bottoms[0] / max(bottoms[1], ONE)
        has_top = TWO * tops[1] > count and top < HIGHEST_TOP_M
        has_bottom = TWO * bottoms[1] > count and bottom > LOWEST_BOTTOM_M
        z = HALF * (top + bottom) if has_bottom else top - HALF_BOX_M
        z = z if has_top else bottom + HALF_BOX_M if has_bottom else ZERO
        return SimpleNamespace(**means, width=width, z=z, box=ONE if has_top or has_bottom else ZERO)

    def assign(self, clusters: list[SimpleNamespace], own: Any) -> dict[int, int]:
        """Return the clusters of tracks, by number: the nearest pair first, up to GATE_M apart."""
        pairs = []
        for k, each in enumerate(self.tracks):
            for n, c in enumerate(clusters if each.seen else ()):
                x, y = centre_of(c, each.width, own)
                away = hypot(x - each.pos[0], y - each.pos[1])
                if away < GATE_M:
                    pairs.append((away, k, n))
        match: dict[int, int] = {}
        for _, k, n in sorted(pairs):
            if k not in match and n not in match.values():
                match[k] = n
        return match

    def update(self, clusters: list[SimpleNamespace], own: Any) -> None:
        """Update the tracks; end those unseen for long, begin new ones."""
        match, now = self.assign(clusters, own), self.clock
        sigmas = [RANGE_SIGMA_M + PITCH_SIGMA * self.pitch * c.flat for c in clusters]
        for k, each in enumerate(self.tracks):
            if k in match:
                each.update(clusters[match[k]], sigmas[match[k]], own, now)
            elif each.seen and F(now - each.last) * self.decision_s > (COAST_S if each.moves else WAIT_S):
                each.end()
        unused = (each for each in self.tracks if not each.seen)
        for n, c in enumerate(clusters):
            if n not in match.values():
                free = next(unused, None)
                if free is None:
                    return
                free.begin(c, sigmas[n], own, now)

    def rows(self, own: Any, seconds: Any) -> np.ndarray:
        """Return the nearest moving tracks, predicted by `seconds`, the nearest first, [50]."""
        moving = []
        for k, each in enumerate(self.tracks):
            if each.moves:
                away = sub(add(each.pos, scale(each.vel, seconds)), own.pos)
                moving.append((away[0] * away[0] + away[1] * away[1], k, away))
        out = np.zeros((NEAREST, 10), np.float32)
        for row, (_, k, away) in zip(out, sorted(moving, key=lambda m: m[:2])):
            row[:] = self.tracks[k].row(away)
        return out.reshape(-1)
