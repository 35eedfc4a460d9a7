"""A plain tracker in NumPy float64: the same contract as the kernels, with dictionaries and loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fledge.tasks.navigation.tracking import clusters as c
from fledge.tasks.navigation.tracking import memory as m
from fledge.tasks.navigation.tracking import structs as s
from fledge.tasks.navigation.tracking import tracks as k

CELL, BAND, INSIDE, GROUND = 0.1, 0.25, 0.02, 0.1


class ReferenceTracker:
    """Tracks of one drone whose rays are upright; `rays` has their unit vectors, [H, V, 3], in a frame without yaw."""

    def __init__(self, rays: np.ndarray, range_m: float, decision_s: float) -> None:
        self.rays, self.range_m, self.decision_s = rays, range_m, decision_s
        self.reach = min(range_m, s.MAP_RANGE_M)
        self.pitch = 2 * math.pi / len(rays)
        self.times = {n: max(1, round(getattr(s, n) / decision_s)) for n in dir(s) if n.endswith("_S")}
        self.cells: dict[tuple[int, int], dict[str, Any]] = {}
        self.free: dict[tuple[int, int], tuple[int, int]] = {}
        self.tracks: list[dict[str, Any] | None] = [None] * s.TRACKS
        self.now = -1

    def update(self, pos: np.ndarray, lidar: np.ndarray) -> list[dict[str, Any]]:
        """Return the moving tracks after a new scan [H, V] of `range - distance`."""
        self.now += 1
        for track in filter(None, self.tracks if self.now else []):
            self.predict(track)
        self.assign(self.clusters(pos, lidar), pos)
        return [track for track in self.tracks if track and track["moves"]]

    def predict(self, track: dict[str, Any]) -> None:
        dt = self.decision_s
        step = np.array([[1, dt], [0, 1]])
        noise = k.JERKINESS * np.array([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]])
        track["pos"] = track["pos"] + dt * track["vel"]
        track["cov"] = step @ track["cov"] @ step.T + noise

    def on_track(self, x: float, y: float) -> bool:
        moving = [t for t in self.tracks if t and t["moves"]]
        return any(math.hypot(x - t["pos"][0], y - t["pos"][1]) < t["width"] / 2 + m.SLACK_M for t in moving)

    def came(self, ix: int, iy: int, band: int) -> bool:
        around = [self.free.get((ix + a, iy + b), (-(10**6), 0)) for a in (-1, 0, 1) for b in (-1, 0, 1)]
        return all(self.now - when <= self.times["RECENT_S"] and low <= band for when, low in around)

    def beside_static(self, ix: int, iy: int) -> bool:
        near = range(-s.BESIDE_CELLS, s.BESIDE_CELLS + 1)
        for cell in (self.cells.get((ix + a, iy + b)) for a in near for b in near):
            if cell is None:
                continue
            alive, age = self.now - cell["last"] <= self.times["GAP_S"], self.now - cell["first"]
            if cell["static"] or (not cell["came"] and alive and age >= self.times["CONFIRM_S"]):
                return True
        return False

    def stamp(self, x: float, y: float, z: float) -> int:
        key = (math.floor(x / CELL), math.floor(y / CELL))
        cell = self.cells.get(key)
        if cell is None or (not cell["static"] and self.now - cell["last"] > self.times["GAP_S"]):
            came = self.came(*key, int(z / BAND))
            cell = {"first": self.now, "static": False, "came": came, "top": 0.0}
        if self.now - cell["first"] < self.times["OVERRULE_S"] and self.on_track(x, y):
            self.cells.pop(key, None)
            return m.CAME
        kind = m.STATIC
        if not cell["static"]:
            if cell["came"]:
                kind = m.CAME if self.now - cell["first"] < self.times["CONFIRM_LATE_S"] else m.STATIC
            elif not self.beside_static(*key):
                kind = m.KNOWN
            if kind == m.STATIC:
                cell.update(static=True, came=False)
        self.cells[key] = {**cell, "last": self.now, "passed": 0, "top": max(cell["top"], z)}
        return kind

    def set_free(self, pos: np.ndarray, ends: np.ndarray) -> None:
        for h in range(len(ends)):
            a, b = self.level(h), self.level((h + 1) % len(ends))
            slope = max(self.slope(h), self.slope((h + 1) % len(ends)))
            for n in range(m.NEAR_CELLS, int((min(ends[h], ends[(h + 1) % len(ends)]) - m.MARGIN_M) / CELL)):
                low = min(max(math.floor((pos[2] + CELL * n * slope) / BAND) + 1, 0), 15)
                parts = int(self.pitch * n) + 1
                for part in range(parts):
                    x, y = pos[:2] + CELL * n * (a + part / parts * (b - a))
                    key = (math.floor(x / CELL), math.floor(y / CELL))
                    cell = self.cells.get(key)
                    if cell is None:
                        self.free[key] = (self.now, low)
                    elif cell["last"] < self.now and math.floor(cell["top"] / BAND) >= math.floor(pos[2] / BAND):
                        cell["passed"] += 1
                        if cell["passed"] >= m.ERASE:
                            del self.cells[key]

    def level(self, h: int) -> np.ndarray:
        ray = self.rays[h, self.rays.shape[1] // 2]
        return ray[:2] / np.linalg.norm(ray[:2])

    def slope(self, h: int) -> float:
        return float(self.rays[h, 0, 2] / np.linalg.norm(self.rays[h, 0, :2]))

    def clusters(self, pos: np.ndarray, lidar: np.ndarray) -> list[tuple[np.ndarray, float, float, float]]:
        """Return clusters as (centroid, width, distance, share of hits that came)."""
        ends, found = np.full(len(lidar), self.reach), {}
        for h, column in enumerate(lidar):
            hits: list[tuple[float, float, float, bool]] = []
            for v in np.flatnonzero(column > 0):
                hit = (self.range_m - column[v] + INSIDE) * self.rays[h, v]
                flat, z = float(np.linalg.norm(hit[:2])), pos[2] + hit[2]
                if flat >= self.reach or z <= GROUND:
                    continue
                ends[h] = min(ends[h], flat)
                kind = self.stamp(pos[0] + hit[0], pos[1] + hit[1], z)
                nearest = min((q[2] for q in hits), default=math.inf)
                if kind != m.STATIC and flat < nearest + c.DEPTH_M:
                    if flat < nearest - c.DEPTH_M:
                        hits = []
                    hits.append((pos[0] + hit[0], pos[1] + hit[1], flat, kind == m.CAME))
            if hits:
                found[h] = np.mean(np.array(hits, float), axis=0)
        self.set_free(pos, ends)
        return [self.cluster(group) for group in self.groups(found, len(lidar)) if self.cluster(group)[1] <= c.WIDEST_M]

    def groups(self, found: dict[int, np.ndarray], count: int) -> list[list[np.ndarray]]:
        empty = (h for h in range(1, count) if h not in found and h - 1 not in found)
        start = next(empty, 0)
        groups: list[list[np.ndarray]] = []
        last = -100
        for n in range(count):
            at = found.get((start + n) % count)
            if at is None:
                continue
            near = max(c.JOIN_M, c.JOIN_PITCHES * self.pitch * at[2])
            if n - last > c.SKIPPED or math.dist(at[:2], groups[-1][-1][:2]) > near:
                groups.append([])
            groups[-1].append(at)
            last = n
        return groups

    def cluster(self, group: list[np.ndarray]) -> tuple[np.ndarray, float, float, float]:
        mean = np.mean(group, axis=0)
        return mean[:2], math.dist(group[0][:2], group[-1][:2]) + self.pitch * mean[2], mean[2], mean[3]

    def centre(self, at: np.ndarray, width: float, pos: np.ndarray) -> np.ndarray:
        away = at - pos[:2]
        return at + k.PUSH * min(max(width, k.NARROWEST_M), k.WIDEST_M) * away / np.linalg.norm(away)

    def assign(self, clusters: list[tuple[np.ndarray, float, float, float]], pos: np.ndarray) -> None:
        alive = [n for n, track in enumerate(self.tracks) if track]
        pairs = [
            (float(np.linalg.norm(self.centre(at[0], self.tracks[n]["width"], pos) - self.tracks[n]["pos"])), n, j)
            for n in alive
            for j, at in enumerate(clusters)
        ]
        tracked, taken = set(), set()
        for away, n, j in sorted(pairs):
            if away < k.GATE_M and n not in tracked and j not in taken:
                tracked.add(n)
                taken.add(j)
                self.correct(self.tracks[n], clusters[j], pos)
        for n in set(alive) - tracked:
            unseen = (self.now - self.tracks[n]["last"]) * self.decision_s
            if unseen > (k.COAST_S if self.tracks[n]["moves"] else k.WAIT_S):
                self.tracks[n] = None
        for j, (at, width, flat, came) in enumerate(clusters):
            if j not in taken and None in self.tracks:
                first = self.centre(at, width, pos)
                cov = np.diag([self.sigma(flat) ** 2, k.FIRST_SPEED**2])
                self.tracks[self.tracks.index(None)] = {
                    "pos": first, "vel": np.zeros(2), "cov": cov, "born": first, "width": width, "came": came,
                    "scans": 1, "last": self.now, "moves": False,
                }  # fmt: skip

    def sigma(self, flat: float) -> float:
        return k.RANGE_SIGMA_M + k.PITCH_SIGMA * self.pitch * flat

    def correct(self, track: dict[str, Any], cluster: tuple[np.ndarray, float, float, float], pos: np.ndarray) -> None:
        at, width, flat, came = cluster
        track["width"] += (k.GROW if width > track["width"] else k.SHRINK) * (width - track["width"])
        track["came"] += k.CAME_SHARE * (came - track["came"])
        gain = track["cov"][:, 0] / (track["cov"][0, 0] + self.sigma(flat) ** 2)
        error = self.centre(at, track["width"], pos) - track["pos"]
        track["pos"], track["vel"] = track["pos"] + gain[0] * error, track["vel"] + gain[1] * error
        track["cov"] = track["cov"] - np.outer(gain, track["cov"][0])
        track["scans"], track["last"] = track["scans"] + 1, self.now
        speed, away = np.linalg.norm(track["vel"]), np.linalg.norm(track["pos"] - track["born"])
        came_in = track["came"] >= k.CAME and track["scans"] >= k.SCANS and speed > k.SPEED and away > k.MOVED_M
        far = track["scans"] >= k.SCANS_ELSE and speed > k.SPEED_ELSE and away > k.MOVED_ELSE_M
        track["moves"] = bool(k.REST_SPEED <= speed <= k.FASTEST and (track["moves"] or came_in or far))
