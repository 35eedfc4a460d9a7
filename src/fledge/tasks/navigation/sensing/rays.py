"""Directions of the LiDAR's rays, and depth images from their distances.

A sensor has H columns and V rows of rays. Column h has the azimuth `azimuths_deg(cfg)[h]`, counter-clockwise from straight
ahead, and row v the elevation `elevations_deg(cfg)[v]`, upwards; in a camera (`lidar_pinhole`) this is the elevation in the
middle of the image, and the ray of pixel (h, v) is (1, tan(azimuth), tan(elevation)), normalised. x points ahead, y to the
left, z up: in the drone's body frame if the sensor tilts with it (`lidar_tilts`), else in a frame turned by yaw only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.tasks.navigation.sensing.observations import SensorConfig


def middles(low: float, high: float, count: int) -> np.ndarray:
    """Return the middles of `count` equal bins between two numbers, [count] float64."""
    return low + (high - low) * (np.arange(count) + 0.5) / count


def azimuths_deg(cfg: SensorConfig) -> np.ndarray:
    """Return the azimuths of the columns, [H] degrees counter-clockwise from straight ahead."""
    count, half = cfg.lidar_azimuths, cfg.lidar_view_deg / 2
    if cfg.lidar_pinhole:
        edge = np.tan(np.radians(half))
        return np.degrees(np.arctan(middles(-edge, edge, count)))
    if cfg.lidar_view_deg < 360:
        return middles(-half, half, count)
    return np.array([360.0 * h / count for h in range(count)])


def elevations_deg(cfg: SensorConfig) -> np.ndarray:
    """Return the elevations of the rows, [V] degrees; of a camera, in the middle of the image."""
    if not cfg.lidar_rows:
        return np.asarray(cfg.lidar_elevations_deg, np.float64)
    low, high = cfg.lidar_elevations_deg
    if cfg.lidar_pinhole:
        bottom, top = np.tan(np.radians([low, high])).tolist()
        return np.degrees(np.arctan(middles(bottom, top, cfg.lidar_rows)))
    return middles(low, high, cfg.lidar_rows)


def bin_deg(cfg: SensorConfig) -> tuple[float, float]:
    """Return the width and the height of a bin of a sensor with `lidar_rows`, degrees."""
    low, high = cfg.lidar_elevations_deg[0], cfg.lidar_elevations_deg[-1]
    return cfg.lidar_view_deg / cfg.lidar_azimuths, (high - low) / max(cfg.lidar_rows, 1)


def directions(cfg: SensorConfig) -> np.ndarray:
    """Return the unit vectors of all rays, [H, V, 3]; with `lidar_jitter`, those to the middles of their bins."""
    around, up = np.radians(azimuths_deg(cfg))[:, None], np.radians(elevations_deg(cfg))[None]
    if cfg.lidar_pinhole:
        rays = np.stack(np.broadcast_arrays(1.0, np.tan(around), np.tan(up)), axis=-1)
        return rays / np.linalg.norm(rays, axis=-1, keepdims=True)
    return np.stack(np.broadcast_arrays(np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)), axis=-1)


def depth_image(lidar: Tensor, cfg: SensorConfig) -> Tensor:
    """Return depth images [..., V, H] from the observation `lidar` [..., 1, H, V], as a depth camera gives them.

    A pixel is the depth along the optical axis, m, which points ahead; 0 where nothing was hit. Row 0 is the top, column 0
    the left. The sensor must look ahead only (`lidar_view_deg` below 180).
    """
    ahead: Any = torch.as_tensor(directions(cfg)[..., 0], dtype=lidar.dtype, device=lidar.device)
    depth = torch.where(lidar > 0, (cfg.lidar_range_m - lidar) * ahead, 0.0).squeeze(-3)
    return depth.transpose(-1, -2).flip(-1, -2)
