"""Convert ROS 2 messages to inputs and commands to messages. Messages are any objects with the fields of the ROS types."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from fledge_runtime.bridges.frames import rotate, swap_attitude, swap_body, swap_world
from fledge_runtime.errors import InputError
from fledge_runtime.inputs import Camera, Mount

FLOATS = {7: "f4", 8: "f8"}  # sensor_msgs/PointField
DEPTHS = {
    "32FC1": ("f4", 1.0),
    "16UC1": ("u2", 1e-3),
    "mono16": ("u2", 1e-3),
}  # encoding: type and metres for each count
PX4_NED, PX4_BODY = 1, 3  # px4_msgs/VehicleOdometry: pose and velocity frames
PX4_ARMED, PX4_OFFBOARD = 2, 14  # px4_msgs/VehicleStatus
NAN3 = (math.nan, math.nan, math.nan)


def stamp_s(stamp: Any) -> float:
    """Return the seconds of a builtin_interfaces/Time."""
    return float(stamp.sec) + 1e-9 * float(stamp.nanosec)


def odometry_state(message: Any, twist_in_body: bool = True) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Return time, position, velocity and quaternion (w, x, y, z), world, of a nav_msgs/Odometry.

    Args:
        twist_in_body: The velocity is in the child frame, as REP 105 has it; some drivers give it in the world.
    """
    place, turn = message.pose.pose.position, message.pose.pose.orientation
    speed = message.twist.twist.linear
    quaternion = np.array([turn.w, turn.x, turn.y, turn.z], float)
    velocity = np.array([speed.x, speed.y, speed.z], float)
    if twist_in_body:
        velocity = rotate(quaternion, velocity)
    return stamp_s(message.header.stamp), np.array([place.x, place.y, place.z], float), velocity, quaternion


def px4_odometry_state(message: Any) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Return time (PX4's clock), position, velocity and quaternion, ENU, of a px4_msgs/VehicleOdometry."""
    if message.pose_frame != PX4_NED or message.velocity_frame not in (PX4_NED, PX4_BODY):
        raise InputError(
            f"VehicleOdometry has pose_frame {message.pose_frame} and velocity_frame {message.velocity_frame}, but the pose "
            f"must be in NED ({PX4_NED}), the velocity in NED or in the body ({PX4_BODY})."
        )
    quaternion = swap_attitude(np.asarray(message.q, float))
    velocity = np.asarray(message.velocity, float)
    in_body = message.velocity_frame == PX4_BODY
    velocity = rotate(quaternion, swap_body(velocity)) if in_body else swap_world(velocity)
    at = 1e-6 * float(message.timestamp_sample or message.timestamp)
    return at, swap_world(np.asarray(message.position, float)), velocity, quaternion


def cloud_points(message: Any) -> np.ndarray:
    """Return the finite points of a sensor_msgs/PointCloud2, [P, 3] float32, in the frame of the message.

    A cloud without any finite point is returned as it is: its sensor is broken, and an empty cloud would be free space.
    """
    fields = {field.name: field for field in message.fields}
    if not {"x", "y", "z"} <= set(fields) or any(fields[axis].datatype not in FLOATS for axis in "xyz"):
        raise InputError("PointCloud2 must have the fields x, y and z as float32 or float64.")
    order = ">" if message.is_bigendian else "<"
    kinds = [order + FLOATS[fields[axis].datatype] for axis in "xyz"]
    layout: Any = {"names": list("xyz"), "formats": kinds, "offsets": [fields[axis].offset for axis in "xyz"]}
    layout["itemsize"] = message.point_step
    data = np.frombuffer(bytes(message.data), np.uint8)
    if data.size < message.height * message.row_step or message.row_step < message.width * message.point_step:
        raise InputError("PointCloud2 has less data than its height, width and steps say.")
    rows = data[: message.height * message.row_step].reshape(message.height, message.row_step)
    packed = np.ascontiguousarray(rows[:, : message.width * message.point_step]).view(np.dtype(layout)).ravel()
    points = np.stack([packed[axis].astype(np.float32) for axis in "xyz"], axis=-1)
    finite = np.isfinite(points).all(axis=-1)
    return np.ascontiguousarray(points[finite]) if finite.any() else points


def depth_image(message: Any) -> np.ndarray:
    """Return the depths of a sensor_msgs/Image, [rows, columns] float32, m; 0 without a reading."""
    if message.encoding not in DEPTHS:
        raise InputError(f"Image has encoding {message.encoding!r}, but a depth image has one of {', '.join(DEPTHS)}.")
    kind, metres = DEPTHS[message.encoding]
    width = np.dtype(kind).itemsize * message.width
    data = np.frombuffer(bytes(message.data), np.uint8)
    if message.step < width or data.size < message.height * message.step:
        raise InputError("Image has less data than its height, width and step say.")
    rows = data[: message.height * message.step].reshape(message.height, message.step)[:, :width]
    image = np.ascontiguousarray(rows).view((">" if message.is_bigendian else "<") + kind)
    return (image * metres).astype(np.float32)


def camera_of(message: Any, mount: Mount | None = None) -> Camera:
    """Return the camera of a sensor_msgs/CameraInfo of a rectified image."""
    k = np.asarray(message.k, float)
    return Camera(float(k[0]), float(k[4]), float(k[2]), float(k[5]), mount or Mount())


def fill_twist(message: Any, velocity_w: Any, time_s: float, frame: str) -> Any:
    """Return a geometry_msgs/TwistStamped with a velocity, m/s, in the world frame."""
    message.header.frame_id = frame
    message.header.stamp.sec = int(time_s // 1.0)
    message.header.stamp.nanosec = int(1e9 * (time_s % 1.0))
    linear = message.twist.linear
    linear.x, linear.y, linear.z = (float(value) for value in velocity_w)
    return message


def fill_setpoint(message: Any, velocity_w: Any, time_us: int) -> Any:
    """Return a px4_msgs/TrajectorySetpoint with a velocity, ENU; the yaw is held."""
    message.timestamp = time_us
    message.velocity = [float(value) for value in swap_world(velocity_w)]
    message.position, message.acceleration = list(NAN3), list(NAN3)
    message.yaw, message.yawspeed = math.nan, 0.0
    return message


def fill_offboard_mode(message: Any, time_us: int) -> Any:
    """Return a px4_msgs/OffboardControlMode for velocities; PX4 wants it above 2 Hz."""
    message.timestamp = time_us
    for name in ("position", "acceleration", "attitude", "body_rate"):
        setattr(message, name, False)
    message.velocity = True
    return message


def fill_hold(message: Any, time_us: int) -> Any:
    """Return a px4_msgs/VehicleCommand that requests hold mode."""
    message.timestamp, message.command = time_us, 176  # VEHICLE_CMD_DO_SET_MODE
    message.param1, message.param2, message.param3 = 1.0, 4.0, 3.0  # a mode of PX4: auto, loiter
    message.target_system = message.target_component = message.source_system = message.source_component = 1
    message.from_external = True
    return message


def find_type(name: str) -> Any:
    """Return the class of a message type such as `nav_msgs/msg/Odometry`."""
    package, _, kind = name.partition("/msg/")
    try:
        __import__(package + ".msg")
        return getattr(sys.modules[package + ".msg"], kind)
    except (ImportError, AttributeError):
        raise InputError(
            f"The message type {name} is not installed here: source the workspace that has {package}."
        ) from None
