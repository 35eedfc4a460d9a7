"""From readings to observations: the frames, the LiDAR's rays and the rows of moving obstacles.

The goal frame has x along the horizontal direction from the start to the goal; it is fixed when the flight begins. State and
obstacles are computed in single precision and in the order of the simulator's kernels, so that they are equal to the last bit
for most readings: the planner rounds places to cells. Differences of places are taken in double precision, since the world's
origin may be far away.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fledge_runtime.errors import InputError
from fledge_runtime.geometry import Rays
from fledge_runtime.inputs import Camera, Inputs, Mount

F32 = np.float32
ONE, TWO, CIRCLE = F32(1), F32(2), F32(2 * np.pi)
TALLEST_BOX_M = 1.0  # a taller moving obstacle counts as an upright cylinder of any height
WIDEST_CLASS = 3.4
NEAR_0 = F32(1e-6)
PIXELS = 25_000  # of a depth image that are read at most


class Observer:
    """Observations of one flight, by the geometry of a contract; call `reset` before the first reading."""

    def __init__(self, contract: dict[str, Any]) -> None:
        sensor = contract["sensor"]
        self.rays, self.tilts = Rays(sensor), sensor["frame"] == "body"
        self.mover_range_m, self.mover_rows = float(sensor["mover_range_m"]), int(sensor["mover_rows"])

    def reset(self, start_w: Any, goal_w: Any) -> None:
        """Begin a flight: fix the goal frame."""
        start, self.goal = numbers("position_w", start_w, 3), numbers("goal_w", goal_w, 3)
        x, y, _ = (self.goal - start).astype(F32)
        length = np.sqrt(x * x + y * y)
        self.along = (x / length, y / length) if length >= NEAR_0 else (F32(1), F32(0))
        self.direction = np.array([[x, y, 0]], F32)

    def to_goal_frame(self, vector: np.ndarray) -> np.ndarray:
        """Turn vectors [..., 3] from the world into the goal frame."""
        (c, s), (x, y, z) = self.along, (vector[..., k] for k in range(3))
        return np.stack([c * x + s * y, -s * x + c * y, z], axis=-1)

    def to_world(self, vector: np.ndarray) -> np.ndarray:
        """Turn vectors [..., 3] from the goal frame into the world."""
        (c, s), (x, y, z) = self.along, (vector[..., k] for k in range(3))
        return np.stack([c * x - s * y, s * x + c * y, z], axis=-1)

    def read(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """Return every observation that the readings allow, float32, in the shapes of the contract.

        Raises:
            InputError: if a reading is missing, has a wrong shape or is not finite.
        """
        position = numbers("position_w", inputs.position_w, 3)
        velocity = numbers("velocity_w", inputs.velocity_w, 3).astype(F32)
        quaternion = unit_quaternion("quaternion_wxyz", inputs.quaternion_wxyz)
        w, x, y, z = (F32(part) for part in quaternion)
        away = (self.goal - position).astype(F32)
        yaw = angle(TWO * (w * z + x * y), ONE - TWO * (y * y + z * z))
        turned = yaw - angle(self.along[1], self.along[0])
        roll = angle(TWO * (w * x + y * z), ONE - TWO * (x * x + y * y))
        pitch = F32(math.asin(min(max(TWO * (w * y - z * x), -ONE), ONE)))
        pointing = self.to_goal_frame(away / max(length_of(away), NEAR_0))
        flat = np.sqrt(away[0] * away[0] + away[1] * away[1])
        observed = {
            "state": [*pointing, flat, away[2], *self.to_goal_frame(velocity)],
            "direction": self.direction,
            "pose": [position[2], turned - CIRCLE * np.floor(turned / CIRCLE + F32(0.5))],
            "attitude": [roll, pitch],
            "lidar": self.scan(inputs, position, rotation(quaternion), float(yaw))[None],
            "dynamic_obstacle": self.movers(inputs.movers, position)[None],
        }
        return {name: np.asarray(value, F32) for name, value in observed.items()}

    def scan(self, inputs: Inputs, position: np.ndarray, body: np.ndarray, yaw: float) -> np.ndarray:
        """Return range less distance of the nearest point on each ray, [H, V]; 0 where nothing is hit."""
        given = [name for name in ("points_w", "points_b", "depth") if getattr(inputs, name) is not None]
        if len(given) != 1:
            raise InputError(
                "Give one of points_w, points_b and depth, got %s; a scan that hits nothing is an empty array."
                % (" and ".join(given) or "none of them")
            )
        sensor = body if self.tilts else rotation((np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)))
        if inputs.points_w is not None:
            return self._hits(cloud("points_w", inputs.points_w), sensor.T, -sensor.T @ position)
        if inputs.points_b is not None:
            points, mount = cloud("points_b", inputs.points_b), inputs.mount
        else:
            points, mount = depth_points(inputs.depth, inputs.camera)
        if not isinstance(mount, Mount):
            raise InputError(f"mount must be a Mount, got {mount!r}.")
        turn = sensor.T @ body
        onto = turn @ rotation(unit_quaternion("mount.quaternion_wxyz", mount.quaternion_wxyz))
        return self._hits(points, onto, turn @ numbers("mount.position_b", mount.position_b, 3))

    def _hits(self, points: np.ndarray, turn: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Return the hits of points [P, 3], after `turn` and `shift` into the sensor's frame at the drone."""
        with np.errstate(invalid="ignore", over="ignore"):  # points that are not finite are in no range
            placed = turn @ points.T.astype(np.float64, copy=False)
            return self.rays.nearest_hits(*(row + by for row, by in zip(placed, shift)))

    def movers(self, given: Any, position: np.ndarray) -> np.ndarray:
        """Return the rows of the nearest moving obstacles within range, nearest first, [rows, 10]; empty rows are 0."""
        table, rows = mover_rows(given), np.zeros((self.mover_rows, 10), F32)
        if not len(table):
            return rows
        away = (table[:, :3] - position).astype(F32)
        squared = away[:, 0] * away[:, 0] + away[:, 1] * away[:, 1]
        order = np.argsort(squared, kind="stable")
        order = order[squared[order] <= F32(self.mover_range_m) ** 2][: self.mover_rows]
        away, table, n = away[order], table[order], len(order)
        box = table[:, 7] <= TALLEST_BOX_M
        away[:, 2] *= box
        length = np.maximum(length_of(away.T), NEAR_0)
        rows[:n, 0:3] = self.to_goal_frame(away / length[:, None])
        rows[:n, 3], rows[:n, 4] = np.sqrt(squared[order]), away[:, 2]
        rows[:n, 5:8] = self.to_goal_frame(table[:, 3:6].astype(F32))
        rows[:n, 8], rows[:n, 9] = np.clip(4 * table[:, 6] - 1, 0, WIDEST_CLASS), box
        return rows


def angle(y: Any, x: Any) -> Any:
    """Return atan2 in single precision; that of NumPy depends on the machine in its last bit."""
    return F32(math.atan2(y, x))


def length_of(vector: np.ndarray) -> np.ndarray:
    """Return the lengths of vectors [3, ...]."""
    x, y, z = vector
    return np.sqrt(x * x + y * y + z * z)


def mover_rows(given: Any) -> np.ndarray:
    """Return moving obstacles as rows of 8 numbers: centre, velocity, width, height.

    An obstacle that is given with its width alone is as tall as a cylinder.
    """
    if given is None:
        return np.zeros((0, 8))
    try:
        if not len(given):
            return np.zeros((0, 8))
        if not isinstance(given, np.ndarray):
            given = [row if np.ndim(row[0]) == 0 else flat_mover(*row) for row in given]
        table = np.asarray(given, np.float64).reshape(len(given), 8)
    except (TypeError, ValueError, IndexError):
        raise InputError(
            "movers must be rows of 8 numbers (centre, velocity, width, height), or tuples (position_w, velocity_w, size)."
        ) from None
    if not np.isfinite(table[:, :7]).all() or (table[:, 6] < 0).any():
        raise InputError("movers has NaN, infinity or a negative width: leave such a row out.")
    return table


def flat_mover(position_w: Any, velocity_w: Any, size: Any) -> Any:
    width, height = size if np.ndim(size) else (size, np.inf)
    return [*position_w, *velocity_w, width, height]


def numbers(name: str, given: Any, count: int) -> np.ndarray:
    """Return a reading as [count] float64; raise InputError if it has another shape or is not finite."""
    try:
        value = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        value = np.empty(0)
    if value.shape != (count,):
        raise InputError(f"{name} must be {count} numbers, got {given!r}.")
    if not np.isfinite(value).all():
        raise InputError(f"{name} has NaN or infinity: pass the last finite reading, or hold.")
    return value


def unit_quaternion(name: str, given: Any) -> tuple[float, ...]:
    q = numbers(name, given, 4)
    length = np.linalg.norm(q)
    if not 0.9 < length < 1.1:
        raise InputError(f"{name} has length {length:.3f}, but must be a unit quaternion in the order w, x, y, z.")
    return tuple((q if abs(length - 1) < 1e-5 else q / length).tolist())


def rotation(q: tuple[float, ...]) -> np.ndarray:
    """Return the matrix of a unit quaternion (w, x, y, z)."""
    w, x, y, z = q
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def array_of(name: str, given: Any) -> np.ndarray:
    """Return a reading as an array of numbers; raise InputError for anything else."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):  # rows of several lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} must be an array of numbers, got {type(given).__name__} of {array.dtype}.")
    return array


def cloud(name: str, given: Any) -> np.ndarray:
    """Return a point cloud [P, 3]; raise InputError if its shape or type is wrong or all its points are not finite."""
    points = array_of(name, given)
    if points.shape == (0,):
        return np.zeros((0, 3))
    if points.ndim != 2 or points.shape[1] != 3 or (points.size and points.dtype.kind != "f"):
        raise InputError(
            f"{name} must be an array [P, 3] of floating-point numbers, m, got {points.dtype} {list(points.shape)}."
        )
    if len(points) and not np.isfinite(points).all(axis=1).any():
        raise InputError(
            f"{name} has no finite point: the sensor sees nothing. Where nothing is hit, give an empty array."
        )
    return points


def depth_image(given: Any) -> np.ndarray:
    """Return a depth image [rows, columns]; raise InputError if its shape or type is wrong or no pixel has a reading."""
    image = array_of("depth", given)
    if image.ndim != 2 or image.dtype.kind != "f":
        raise InputError(
            f"depth must be an array [rows, columns] of floating-point numbers, m, got {image.dtype} {list(image.shape)}: "
            "multiply integers of millimetres by 0.001."
        )
    if not (image > 0).any():
        raise InputError("depth has no reading: no pixel is above 0. Where nothing is within range, give infinity.")
    return image


def depth_points(depth: Any, camera: Any) -> tuple[np.ndarray, Mount]:
    """Return the points of a depth image in the camera's frame, [P, 3], of at most about PIXELS pixels, and its mount."""
    if not isinstance(camera, Camera):
        raise InputError(f"depth must come with `camera`, its Camera, got {camera!r}.")
    focal = numbers("camera (fx, fy, cx, cy)", (camera.fx, camera.fy, camera.cx, camera.cy), 4)[:2]
    if not (focal > 0).all():
        raise InputError(f"camera has fx={camera.fx!r} and fy={camera.fy!r}: both must be above 0, in pixels.")
    image = depth_image(depth).astype(np.float32)
    step = max(1, int(np.ceil(np.sqrt(image.size / PIXELS))))
    image = image[step // 2 :: step, step // 2 :: step]
    row, column = np.meshgrid(*(step // 2 + step * np.arange(n) for n in image.shape), indexing="ij")
    seen = np.isfinite(image) & (image > 0)
    x = image[seen].astype(np.float64)
    left, up = (camera.cx - column[seen]) / camera.fx, (camera.cy - row[seen]) / camera.fy
    return np.stack([x, x * left, x * up], axis=1), camera.mount
