"""A forest of upright columns with a LiDAR: the world of `simulate` and of the fake flight controller."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fledge_runtime.bridges.frames import rotate, yaw_of

SENSOR_UP_DEG = tuple(float(angle) for angle in range(-30, 31, 2))
CORRIDOR_M = 4.0  # half the width on which columns stand along the way
FREE_M = 1.5  # around start and goal


class Columns:
    """Columns from the ground to 5 m, along the way from `start` to `goal`.

    Args:
        count: Columns for every 10 m of the way.
    """

    def __init__(self, seed: int, start: Any, goal: Any, count: float = 6.0) -> None:
        rng = np.random.default_rng(seed)
        start, goal = np.asarray(start, float)[:2], np.asarray(goal, float)[:2]
        away = goal - start
        length = float(np.linalg.norm(away))
        ahead = away / max(length, 1e-9)
        total = round(count * length / 10.0)
        along, across = rng.uniform(0.0, length, total), rng.uniform(-CORRIDOR_M, CORRIDOR_M, total)
        self.centre = start + along[:, None] * ahead + across[:, None] * [-ahead[1], ahead[0]]
        self.radius, self.height = rng.uniform(0.15, 0.5, total), 5.0
        gap = [np.linalg.norm(self.centre - place, axis=-1) - self.radius for place in (start, goal)]
        keep = (gap[0] > FREE_M) & (gap[1] > FREE_M)
        self.centre, self.radius = self.centre[keep], self.radius[keep]

    def clearance(self, position: Any) -> float:
        """Return the distance from a point to the nearest column or the ground, m; negative inside of a column."""
        away = np.linalg.norm(self.centre - np.asarray(position, float)[:2], axis=-1) - self.radius
        return float(min(away.min(initial=math.inf), position[2]))

    def ranges(self, origin: Any, rays: np.ndarray, range_m: float) -> np.ndarray:
        """Return the distance along rays [R, 3] (unit vectors, world) to what they hit first; inf beyond `range_m`."""
        origin = np.asarray(origin, float)
        level = np.hypot(rays[:, 0], rays[:, 1])
        best = np.full(len(rays), np.inf)
        down = rays[:, 2] < -1e-9
        best[down] = origin[2] / -rays[down, 2]
        near = np.linalg.norm(self.centre - origin[:2], axis=-1) - self.radius < range_m
        unit = rays[:, :2] / np.maximum(level, 1e-9)[:, None]
        for centre, radius in zip(self.centre[near], self.radius[near]):
            away = centre - origin[:2]
            along = unit @ away
            inside = radius * radius - (away @ away - along * along)
            flat = along - np.sqrt(np.maximum(inside, 0.0))
            distance = flat / np.maximum(level, 1e-9)
            hit = (inside > 0) & (flat > 0) & (origin[2] + distance * rays[:, 2] < self.height)
            best = np.where(hit & (distance < best), distance, best)
        return np.where(best <= range_m, best, np.inf)

    def points(self, position: Any, quaternion_wxyz: Any, sensor: dict[str, Any] | None = None) -> np.ndarray:
        """Return the hits of a LiDAR on the drone, [P, 3] m, world.

        Args:
            sensor: Entry `sensor` of a contract: rays as in training. None: 360 by 31 rays that turn with the drone.
        """
        told = sensor or {"azimuths_deg": range(360), "elevations_deg": SENSOR_UP_DEG, "range_m": 10.0, "frame": "body"}
        around, up = np.meshgrid(np.radians(told["azimuths_deg"]), np.radians(told["elevations_deg"]), indexing="ij")
        rays = np.stack([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)], axis=-1).reshape(-1, 3)
        turn = np.asarray(quaternion_wxyz, float)
        if told["frame"] != "body":
            yaw = yaw_of(turn)
            turn = np.array([math.cos(0.5 * yaw), 0.0, 0.0, math.sin(0.5 * yaw)])
        rays = rotate(turn, rays)
        distance = self.ranges(position, rays, float(told["range_m"]))
        hit = np.isfinite(distance)
        return np.asarray(position, float) + distance[hit, None] * rays[hit]
