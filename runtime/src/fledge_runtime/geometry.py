"""Rays of a sensor, and the nearest point on each: a cloud of 20,000 points takes less than a millisecond.

A sensor has H columns and V rows of rays, unit vectors in its own frame (x ahead, y left, z up). A point hits the ray to which
it is nearest in column and row if it is within `tolerance_deg` of that ray, or, for scans that do not repeat (`bins`), in the
ray's bin. Columns and rows are looked up by numbers that grow with the angle and need no trigonometry.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FINE = 16384  # entries of a table
NONE = -(1 << 24)  # of a direction that is in no column or row; two of them do not sum up to a number of a ray


class Rays:
    """The rays of a contract's `sensor`; `directions` are their unit vectors, [H, V, 3]."""

    def __init__(self, sensor: dict[str, Any]) -> None:
        around, up = np.radians(sensor["azimuths_deg"]), np.radians(sensor["elevations_deg"])
        self.range_m, self.min_range_m = float(sensor["range_m"]), float(sensor["min_range_m"])
        self.pinhole, self.bins = bool(sensor["pinhole"]), bool(sensor["bins"])
        self.shape = (len(around), len(up))
        self.directions = directions(around, up, self.pinhole)
        self.flat = np.ascontiguousarray(self.directions.reshape(-1, 3).T, np.float32)
        reach = np.radians(sensor["tolerance_deg"])
        self.cosine = np.float32(np.cos(reach))
        steepest = min(np.abs(up).max() + reach, np.radians(89.9))
        wide = np.arcsin(min(1.0, np.sin(reach) / np.cos(steepest))) if not self.bins else np.inf
        rises = np.arange(FINE) + 0.5
        rise = angle_of_turn(rises / FINE * 4 - 2) if self.pinhole else np.arcsin(rises / FINE * 2 - 1)
        turns = angle_of_turn(rises / FINE * 4 - 2)
        self.columns = nearest(turns, around, wide, sensor["view_deg"] >= 360) * np.int32(len(up))
        self.rows = nearest(rise, up, reach if not self.bins and not self.pinhole else np.inf, False)

    def nearest_hits(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return range less distance of the nearest point on each ray, [H, V] float32; 0 where nothing is hit.

        Args:
            x, y, z: [P] m, sensor frame.
        """
        values = np.zeros(self.shape[0] * self.shape[1], np.float32)
        x, y, z = (np.asarray(value, np.float32) for value in (x, y, z))
        squared = x * x + y * y + z * z
        near = np.flatnonzero((squared < self.range_m**2) & (squared >= max(self.min_range_m**2, 1e-12)))
        if len(near) < len(x):
            x, y, z, squared = x[near], y[near], z[near], squared[near]
        distance = np.sqrt(squared)
        column = np.take(
            self.columns, ((turn(x, y) + np.float32(2)) * np.float32(FINE / 4)).astype(np.int32), mode="clip"
        )
        if self.pinhole:
            rise = (turn(x, z) + np.float32(2)) * np.float32(FINE / 4)
        else:
            rise = (z / distance + np.float32(1)) * np.float32(FINE / 2)
        ray = column + np.take(self.rows, rise.astype(np.int32), mode="clip")
        hit = np.flatnonzero(ray >= 0)
        ray, distance = ray[hit], distance[hit]
        if not self.bins:
            along = self.flat[0, ray] * x[hit] + self.flat[1, ray] * y[hit] + self.flat[2, ray] * z[hit]
            thin = along >= distance * self.cosine
            ray, distance = ray[thin], distance[thin]
        if not len(ray):
            return values.reshape(self.shape)
        order = np.argsort(ray.astype(np.uint16) if len(values) <= 65536 else ray, kind="stable")
        ray, distance = ray[order], distance[order]
        first = np.flatnonzero(np.concatenate(([True], ray[1:] != ray[:-1])))
        values[ray[first]] = np.float32(self.range_m) - np.minimum.reduceat(distance, first)
        return values.reshape(self.shape)


def directions(around: np.ndarray, up: np.ndarray, pinhole: bool) -> np.ndarray:
    """Return the unit vectors of rays with these azimuths [H] and elevations [V], rad, [H, V, 3].

    The pixel (h, v) of a pinhole camera looks along (1, tan(azimuth), tan(elevation)).
    """
    a, e = around[:, None], up[None]
    if pinhole:
        rays = np.stack(np.broadcast_arrays(1.0, np.tan(a), np.tan(e)), axis=-1)
        return rays / np.linalg.norm(rays, axis=-1, keepdims=True)
    return np.stack(np.broadcast_arrays(np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)), axis=-1)


def turn(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a number in [-2, 2] that grows with the angle of (x, y), as atan2 does, for float32 arrays."""
    part = y / (np.abs(x) + np.abs(y) + np.float32(1e-30))
    return np.where(x < 0, np.copysign(np.float32(2), y) - part, part)


def angle_of_turn(turns: np.ndarray) -> np.ndarray:
    """Return the angles, rad, at which `turn` has these values."""
    size = np.abs(turns)
    behind = size > 1
    part = np.where(behind, 2 - size, size)
    return np.copysign(np.arctan2(part, np.where(behind, part - 1, 1 - part)), turns)


def nearest(angles: np.ndarray, of: np.ndarray, within: float, wraps: bool) -> np.ndarray:
    """Return the index of the nearest of the angles `of` for each of `angles`, int32; NONE if it is not `within` so many rad.

    An angle beyond half a spacing outside of `of` has none, unless they go all around (`wraps`).
    """
    away = angles[:, None] - of[None]
    if wraps:
        away -= 2 * np.pi * np.round(away / (2 * np.pi))
    away = np.abs(away)
    index = np.argmin(away, axis=1).astype(np.int32)
    far = away[np.arange(len(angles)), index]
    slack = 4.0 * np.pi / FINE * (1.5 if len(of) else 1)  # of a table's entry
    half = 0.5 * spacing(of) if not wraps else np.inf
    return np.where(far <= min(within, half) + slack, index, NONE).astype(np.int32)


def spacing(angles: np.ndarray) -> float:
    """Return the largest spacing of neighbouring angles, rad; infinity if there is only one."""
    return float(np.abs(np.diff(angles)).max()) if len(angles) > 1 else float(np.inf)
