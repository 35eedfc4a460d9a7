"""The planner in plain NumPy, one drone, written from its description: a dict of cells, and every candidate to its end."""

from __future__ import annotations

import math

import numpy as np

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.planner.config import PlannerConfig

EDGES = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
HALF_WINDOW = 64
SPAN = range(-8, 9)


def ring_of_cells(dx: int, dy: int) -> int | None:
    away = math.hypot(dx, dy) * 0.1
    return next((k for k, edge in enumerate(EDGES) if away <= edge + 1e-6), None)


RINGS = {(dx, dy): ring for dx in SPAN for dy in SPAN if (ring := ring_of_cells(dx, dy)) is not None}
RING_M = [float(np.mean([0.1 * math.hypot(*d) for d, r in RINGS.items() if r == k])) for k in range(8)]


class PlainPlanner:
    """One drone's memory and search."""

    def __init__(self, cfg: PlannerConfig, world: NavigationConfig) -> None:
        self.cfg, self.world = cfg, world
        self.rings: dict[tuple[int, int], list[set[int]]] = {}  # cell -> bands that have a hit, by ring
        self.forget()

    def forget(self) -> None:
        self.rings, self.acc = {}, np.zeros(3)
        self.stay_pos, self.stay = np.full(3, np.inf), 0

    def act(self, obs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The command in the goal frame, m/s, and the costs of all candidates in order."""
        state, height, yaw = obs["state"].astype(float), float(obs["pose"][0]), float(obs["pose"][1])
        ahead = state[:2] / np.hypot(*state[:2])
        self.pos = np.array([*(-state[3] * ahead), height])
        self.goal = np.array([0.0, 0.0, height + state[4]])
        self.vel = state[5:8]
        self.remember(obs["lidar"][0], yaw)
        self.movers = [self.read(row) for row in obs["dynamic_obstacle"][0].astype(float) if np.any(row[:3])]
        if np.linalg.norm(self.pos - self.stay_pos) > 0.5:
            self.stay_pos, self.stay = self.pos, 0
        else:
            self.stay += 1
        waited_s = self.stay * self.world.dt_s * self.world.decimation
        self.patience = math.exp(-max(waited_s - self.cfg.patience_s, 0.0) / 2.0) if self.stay else 1.0
        radius = self.world.collision_radius_m
        self.columns = min(radius + self.patience * self.cfg.skin_m, self.column_gap(self.pos))
        self.crowd = min(radius + self.cfg.skin_m, self.mover_gap(self.pos, 0.0) - 0.02)
        turn = np.array([[ahead[0], -ahead[1], 0], [ahead[1], ahead[0], 0], [0, 0, 1.0]])
        commands = np.array([turn @ c for c in self.candidates()])
        kinds = [math.inf, self.cfg.brief_s] if self.cfg.brief_s else [math.inf]
        costs = np.concatenate([self.costs(commands, held_s) for held_s in kinds])
        chosen = commands[int(np.argmin(costs)) % len(commands)]
        self.acc = self.fly(chosen, [self.world.dt_s * self.world.decimation])[1]
        return chosen, costs

    def remember(self, lidar: np.ndarray, yaw: float) -> None:
        cx, cy = (math.floor(v * 10) for v in self.pos[:2])
        inside = lambda c: -HALF_WINDOW <= c[0] - cx < HALF_WINDOW and -HALF_WINDOW <= c[1] - cy < HALF_WINDOW  # noqa: E731
        self.rings = {cell: rings for cell, rings in self.rings.items() if inside(cell)} if self.cfg.memory else {}
        for h in range(lidar.shape[0]):
            for v, degrees in enumerate(self.world.lidar_elevations_deg):
                if lidar[h, v] <= 0:
                    continue
                d, tilt = self.world.lidar_range_m - float(lidar[h, v]) + 0.02, math.radians(degrees)
                angle = yaw + 2 * math.pi * h / lidar.shape[0]
                x = self.pos[0] + d * math.cos(tilt) * math.cos(angle)
                y = self.pos[1] + d * math.cos(tilt) * math.sin(angle)
                z = self.pos[2] + d * math.sin(tilt)
                if z <= 0.1:
                    continue
                band = min(math.floor(z / 0.25), 15)
                bands = set(range(band + 1)) if self.cfg.standing else {band}
                for (dx, dy), ring in RINGS.items():
                    cell = (math.floor(x * 10) + dx, math.floor(y * 10) + dy)
                    self.rings.setdefault(cell, [set() for _ in EDGES])[ring] |= bands

    def read(self, row: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, float]:
        flat = row[:2] / max(np.hypot(*row[:2]), 1e-6) * row[3]
        place = self.pos + np.array([*flat, row[4]])
        box = row[9] > 0.5  # counts as a cylinder 1.2 times as wide
        return place, row[5:8], 0.125 * (row[8] + 1) * (1.2 if box else 1.0), 0.5 if box else math.inf

    def candidates(self) -> list[np.ndarray]:
        cfg, found = self.cfg, []
        for speed in (cfg.fast, cfg.middle, cfg.slow):
            for climb in (0.0, -cfg.climb, cfg.climb):
                for k in sorted(range(cfg.headings), key=lambda k: (min(k, cfg.headings - k), k)):
                    a = 2 * math.pi * k / cfg.headings
                    found.append(np.array([speed * math.cos(a), speed * math.sin(a), climb]))
        return [*found, np.zeros(3)]

    def fly(self, commands: np.ndarray, times: list[float], held_s: float = math.inf) -> tuple[np.ndarray, np.ndarray]:
        """Positions at these times under each command, and accelerations at the last: Euler in steps of 0.5 ms."""
        lag = np.maximum([self.cfg.lag_s, self.cfg.lag_s, min(self.cfg.lag_s, 0.03)], 1e-3)
        pos, vel, acc = (np.broadcast_to(x, commands.shape).copy() for x in (self.pos, self.vel, self.acc))
        dt, t, seen = 5e-4, 0.0, []
        for until in times:
            while t < until - dt / 2:
                wanted = commands if t < held_s - dt / 2 else np.zeros_like(commands)
                rates = vel, acc - 0.2 * vel, (2.2 * (wanted - vel) - acc) / lag
                pos, vel, acc = pos + dt * rates[0], vel + dt * rates[1], acc + dt * rates[2]
                t += dt
            seen.append(pos.copy())
        return np.array(seen), acc

    def column_gap(self, at: np.ndarray) -> float:
        rings = self.rings.get((math.floor(at[0] * 10), math.floor(at[1] * 10)))
        if rings is None:
            return math.inf
        low, high = (min(math.floor((at[2] + z) / 0.25), 15) for z in (-0.4, 0.4))
        bands = set(range(low, high + 1))
        return next((RING_M[k] for k, found in enumerate(rings) if found & bands), math.inf)

    def mover_gap(self, at: np.ndarray, t: float, further_s: float = 0.0) -> float:
        gaps = [math.inf]
        for place, vel, wide, tall in self.movers:
            d = place + t * vel - at
            further = further_s * max(float(np.linalg.norm(vel)) - 1.5, 0.0)
            gaps.append(max(np.hypot(d[0], d[1]) - wide, abs(d[2]) - tall) - further)
        return min(gaps)

    def costs(self, commands: np.ndarray, held_s: float = math.inf) -> np.ndarray:
        """Of each command [C, 3]."""
        times = [(k + 1) * self.cfg.step_s for k in range(round(self.cfg.horizon_s / self.cfg.step_s))]
        ways = self.fly(commands, times, held_s)[0]
        return np.array([self.cost(ways[:, c], times) for c in range(len(commands))])

    def cost(self, way: np.ndarray, times: list[float]) -> float:
        cfg, world, now = self.cfg, self.world, np.linalg.norm(self.goal - self.pos)
        cost = np.linalg.norm(self.goal - way[-1]) - now + cfg.fast * cfg.horizon_s
        for t, at in zip(times, way, strict=True):
            low, high = 0.3 + 0.1, world.max_height_m - 0.1
            out = (at[2] < low and at[2] < self.pos[2]) or (at[2] > high and at[2] > self.pos[2])
            columns, crowd = self.column_gap(at) - self.columns, self.mover_gap(at, t) - self.crowd
            if out or min(columns, crowd) < 0:
                return float(cost + max(cfg.crash_cost - cfg.crash_relief * t, 0.0))
            if np.linalg.norm(self.goal - at) < world.goal_radius_m:
                return t - 1000.0
            counted = self.mover_gap(at, t, cfg.fast_mover_s) - self.crowd
            near = self.patience * cfg.margin_cost * max(cfg.margin_m - columns, 0.0)
            near += cfg.mover_cost * max(cfg.mover_margin_m - counted, 0.0)
            cost += near * math.exp(-t / cfg.fading_s)
        return float(cost)
