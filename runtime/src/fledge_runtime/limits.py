"""Limits of a guarded flight, geofences, and the reasons for which the guard stops flying."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from fledge_runtime.errors import InputError
from fledge_runtime.observe import cloud, depth_image

Vector = np.ndarray


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why the guard stops flying. After a reason that does not resume, the flight ends in `handed_over`."""

    name: str
    when: str
    resumes: bool = False


REASONS: dict[str, Reason] = {
    reason.name: reason
    for reason in (
        Reason("stale_odometry", "the newest odometry was measured more than `input_timeout_s` ago", True),
        Reason("stale_points", "the newest point cloud was measured more than `points_timeout_s` ago", True),
        Reason("invalid_input", "odometry is not finite, a whole scan is not finite, or a shape is wrong", True),
        Reason("late_decision", "the last decision ended more than `decision_timeout_s` ago", True),
        Reason("frozen_odometry", "the position has not changed by a bit for `frozen_s` although the drone moves"),
        Reason("decision_failed", "the policy raised an error or returned a velocity that is not finite"),
        Reason("clock_jump", "a clock went back, or inputs come from the future, by more than `clock_jump_s`"),
        Reason("position_jump", "the position moved further than the speed allows, by more than `position_jump_m`"),
        Reason("out_of_height", "the height is outside of `height_m`"),
        Reason("too_fast", "the measured speed is above `measured_speed_m_s`"),
        Reason("too_tilted", "the tilt is above `tilt_deg`"),
        Reason("geofence", "the drone is outside of the geofence, or will be in `fence_lookahead_s` at its velocity"),
        Reason("too_many_faults", "the guard has resumed `max_resumes` times in this flight"),
        Reason("goal_reached", "the drone is within `goal_radius_m` of the goal"),
        Reason("taken_over", "the flight controller was disarmed or left offboard mode: handed over at once"),
        Reason("stopped", "`stop()` was called, for example by Ctrl-C: handed over at once"),
        Reason("input_failed", "reading the inputs raised an error, for example the function of `--points`"),
        Reason("duration", "the time of `--duration` is over"),
    )
}
AT_ONCE = ("taken_over", "stopped", "input_failed", "duration")  # reasons that hand over without hovering


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a guarded flight, SI units."""

    speed_m_s: float = 0.2  # of commands; raise it step by step
    acceleration_m_s2: float | None = None  # change of the command; None: 5 · speed_m_s. Hovering is commanded at once
    input_timeout_s: float = 0.3
    points_timeout_s: float = 0.5
    decision_timeout_s: float = 0.5
    clock_jump_s: float = 0.1
    frozen_s: float = 1.0
    position_jump_m: float = 0.5
    height_m: Sequence[float] = (-1.0, 120.0)
    measured_speed_m_s: float | None = None  # None: 1 m/s + 2 · speed_m_s
    tilt_deg: float = 45.0
    fence_lookahead_s: float = 1.0
    goal_radius_m: float = 0.5
    hover_s: float = 3.0
    recover_s: float = 0.5
    max_resumes: int = 10

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "height_m" and value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{field.name}={value!r} must be a positive number.")
        if len(self.height_m) != 2 or not self.height_m[0] < self.height_m[1]:
            raise ValueError(f"height_m={self.height_m!r} must be (lowest, highest).")

    @property
    def slew_m_s2(self) -> float:
        """Return the largest change of the command in a second."""
        return 5.0 * self.speed_m_s if self.acceleration_m_s2 is None else self.acceleration_m_s2

    @property
    def fastest_m_s(self) -> float:
        """Return the measured speed above which the drone is out of control."""
        return 1.0 + 2.0 * self.speed_m_s if self.measured_speed_m_s is None else self.measured_speed_m_s


@dataclasses.dataclass(frozen=True)
class Box:
    """Geofence: an axis-aligned box, world frame, m."""

    low: Sequence[float]
    high: Sequence[float]

    def contains(self, position_w: Vector) -> bool:
        """Return whether a position is inside."""
        return bool(np.all(np.asarray(self.low) <= position_w) and np.all(position_w <= np.asarray(self.high)))


@dataclasses.dataclass(frozen=True)
class Cylinder:
    """Geofence: a radius around a point, and two heights, world frame, m."""

    centre: Sequence[float]  # x, y
    radius: float
    low: float
    high: float

    def contains(self, position_w: Vector) -> bool:
        """Return whether a position is inside."""
        away = math.hypot(position_w[0] - self.centre[0], position_w[1] - self.centre[1])
        return bool(away <= self.radius and self.low <= position_w[2] <= self.high)


Fence = Union[Box, Cylinder]


def tilt_deg(quaternion_wxyz: Sequence[float]) -> float:
    """Return the angle between the drone's up axis and the world's, degrees."""
    _, x, y, _ = (float(value) for value in quaternion_wxyz)
    norm = float(np.sum(np.square(np.asarray(quaternion_wxyz, float))))
    return math.degrees(math.acos(max(-1.0, min(1.0, 1.0 - 2.0 * (x * x + y * y) / norm))))


def invalid(inputs: Any) -> bool:
    """Return whether inputs have numbers that are not finite, arrays of the wrong shape, or a scan without any reading."""
    try:
        for name, size in (("position_w", 3), ("velocity_w", 3), ("quaternion_wxyz", 4)):
            value = np.asarray(getattr(inputs, name), float)
            if value.shape != (size,) or not np.isfinite(value).all():
                return True
        if not math.isfinite(inputs.time_s) or abs(float(np.linalg.norm(inputs.quaternion_wxyz)) - 1.0) > 0.01:
            return True
        for name in ("points_w", "points_b"):
            if getattr(inputs, name, None) is not None:
                cloud(name, getattr(inputs, name))
        if getattr(inputs, "depth", None) is not None:
            depth_image(inputs.depth)
    except (InputError, TypeError, ValueError, OverflowError):
        return True
    return False
