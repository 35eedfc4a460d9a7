"""Convert between the frames of aviation (MAVLink, PX4, ArduPilot) and of robotics (fledge_runtime, ROS).

World: NED (north, east, down) and ENU (east, north, up). Body: FRD (forward, right, down) and FLU (forward, left, up). Yaw in
NED is clockwise from north, in ENU counter-clockwise from east. Each `swap` is its own inverse.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

HALF = math.sqrt(0.5)


def swap_world(vectors: Any) -> np.ndarray:
    """Return vectors [..., 3] of NED in ENU, or of ENU in NED."""
    value = np.asarray(vectors, float)
    return np.stack([value[..., 1], value[..., 0], -value[..., 2]], axis=-1)


def swap_body(vectors: Any) -> np.ndarray:
    """Return vectors [..., 3] of FRD in FLU, or of FLU in FRD."""
    return np.asarray(vectors, float) * [1.0, -1.0, -1.0]


def swap_attitude(quaternion_wxyz: Any) -> np.ndarray:
    """Return the quaternion from FLU to ENU for one from FRD to NED, or the other way round."""
    w, x, y, z = np.asarray(quaternion_wxyz, float)
    return HALF * np.array([w + z, x + y, x - y, w - z])


def swap_yaw(yaw: float) -> float:
    """Return a yaw of NED in ENU, or of ENU in NED, in −π to π."""
    turned = 0.5 * math.pi - yaw
    return math.atan2(math.sin(turned), math.cos(turned))


def rotate(quaternion_wxyz: Any, vectors: Any) -> np.ndarray:
    """Return vectors [..., 3] of the body in the world."""
    w, *axis = np.asarray(quaternion_wxyz, float)
    across = 2.0 * np.cross(axis, np.asarray(vectors, float))
    return np.asarray(vectors, float) + w * across + np.cross(axis, across)


def yaw_of(quaternion_wxyz: Any) -> float:
    """Return the yaw of an attitude, rad."""
    w, x, y, z = (float(value) for value in quaternion_wxyz)
    return math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
