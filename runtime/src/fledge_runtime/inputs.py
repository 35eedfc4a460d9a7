"""What a pilot reads and what it returns. Frames: world (any frame with z up and the ground near 0); body (x ahead, y left,
z up). Quaternions are (w, x, y, z) and turn vectors of the body into the world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Mount:
    """Where a sensor is on the body."""

    position_b: Sequence[float] = (0.0, 0.0, 0.0)
    """Of the sensor, m, body frame."""
    quaternion_wxyz: Sequence[float] = (1.0, 0.0, 0.0, 0.0)
    """Turns vectors of the sensor's frame into the body's."""


@dataclass
class Camera:
    """A depth camera: pinhole intrinsics in pixels, and its mount. Its frame: x along the optical axis, y left, z up."""

    fx: float
    fy: float
    cx: float
    cy: float
    mount: Mount = field(default_factory=Mount)


@dataclass
class Inputs:
    """Readings for one decision. Give one of `points_w`, `points_b` and `depth`; without hits, an empty array."""

    time_s: float
    """Time of the odometry, s, by any clock that does not jump."""
    position_w: Any
    """[3] m; height above the ground is z."""
    velocity_w: Any
    """[3] m/s."""
    quaternion_wxyz: Any
    """[4] body to world."""
    points_w: Any = None
    """[P, 3] m, world, floating-point: hits of a LiDAR. Points that are not finite are left out; if all are, the cloud is
    refused."""
    points_b: Any = None
    """[P, 3] m, in the frame of the sensor on the body, which `mount` describes."""
    mount: Mount = field(default_factory=Mount)
    """Of the sensor of `points_b`."""
    depth: Any = None
    """[rows, columns] m along the optical axis, floating-point, row 0 at the top. Infinity: nothing within range; 0, negative
    and NaN: no reading. An image without any reading is refused."""
    camera: Camera | None = None
    """Of `depth`."""
    movers: Any = None
    """Moving obstacles that a detector tracks: rows of 8 numbers, centre (3), velocity (3), width, height (m, world), or
    tuples (position_w, velocity_w, size) with size a width or (width, height). None: no detector."""
    flown_w: Any = None
    """[3] m/s: the velocity that was sent to the drone since the last decision, which the Guard sets; None: that of the last
    Command."""


@dataclass
class Command:
    """A velocity to fly until the next decision."""

    velocity_w: np.ndarray
    """[3] m/s, world."""
    time_s: float
    """Time of the inputs from which it was computed."""
    action: np.ndarray
    """The network's action."""
    info: dict[str, Any] = field(default_factory=dict)
    """arrived (within the goal's radius), goal_m; nearest_m, the nearest hit, and nearest_mover_m, the nearest moving
    obstacle's centre (infinite: none); rays_hit; plan_cost (-1 to 1) and hover_time (share of the planner's horizon until a
    collision when hovering; 1: none), None without a planner; ms by stage: observe, plan, network, total."""
