"""ROS 2: odometry and a point cloud or depth image in, velocity commands out. Needs rclpy, from a ROS 2 installation.

    python -m fledge_runtime.bridges.ros2 FOLDER --goal 10,0,1.5 --cloud /points                       # a dry run
    python -m fledge_runtime.bridges.ros2 FOLDER --goal 10,0,1.5 --cloud /points --output px4 --send

Odometry is nav_msgs/Odometry in a frame with z up, or px4_msgs/VehicleOdometry; commands are geometry_msgs/TwistStamped in
that frame, or px4_msgs/TrajectorySetpoint. The flight begins when PX4 is armed in offboard mode, or, with TwistStamped, when
`std_msgs/Bool` on `/fledge/engage` is true.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, Callable

import numpy as np

from fledge_runtime.bridges.clock import ClockOffset
from fledge_runtime.bridges.ros2_messages import (
    PX4_ARMED,
    PX4_OFFBOARD,
    camera_of,
    cloud_points,
    depth_image,
    fill_hold,
    fill_offboard_mode,
    fill_setpoint,
    fill_twist,
    find_type,
    odometry_state,
    px4_odometry_state,
    stamp_s,
)
from fledge_runtime.errors import InputError
from fledge_runtime.inputs import Inputs, Mount

PX4_TOPICS = {"status": "/fmu/out/vehicle_status", "odometry": "/fmu/out/vehicle_odometry"}
ENGAGE = "/fledge/engage"


class Ros2Bridge:
    """A vehicle for `fledge_runtime.fly.fly`.

    Args:
        node: An rclpy node, or an object with `create_subscription`, `create_publisher` and `get_clock`.
        spin: Handles what has arrived within some seconds: `lambda s: rclpy.spin_once(node, timeout_sec=s)`.
        cloud: Topic of a PointCloud2. None: `depth` and `camera_info` are topics of a depth camera.
        blind: Fly without either.
        cloud_in_world: The cloud is in the frame of the odometry; else in the sensor's, at `mount`.
        output: `twist` or `px4`.
        qos: Quality of service of subscriptions: best effort for PX4 and most sensors.
    """

    def __init__(
        self,
        node: Any,
        spin: Callable[[float], Any],
        send: bool = False,
        odometry: str = "/odom",
        cloud: str | None = None,
        cloud_in_world: bool = False,
        depth: str | None = None,
        camera_info: str | None = None,
        mount: Mount | None = None,
        blind: bool = False,
        output: str = "twist",
        command: str = "/cmd_vel",
        twist_in_body: bool = True,
        qos: Any = 10,
        types: Callable[[str], Any] = find_type,
    ) -> None:
        self.node, self.spin, self.allowed, self.output, self.mount = node, spin, send, output, mount or Mount()
        self.cloud_in_world, self.twist_in_body, self.qos, self.types = cloud_in_world, twist_in_body, qos, types
        self.blind, self.frame = blind, "map"
        self.camera: Any = None
        self.state: tuple[float, np.ndarray, np.ndarray, np.ndarray] | None = None
        self.seen: tuple[dict[str, Any], float] | None = None
        self.points_time_s: float | None = None
        self.error: InputError | None = None  # of the last message that could not be read
        self._engaged, self.offset = False, ClockOffset()
        if output == "px4":
            self._listen("px4_msgs/msg/VehicleOdometry", PX4_TOPICS["odometry"], self._on_px4_odometry)
            self._listen("px4_msgs/msg/VehicleStatus", PX4_TOPICS["status"], self._on_px4_status)
            names = ("TrajectorySetpoint", "OffboardControlMode", "VehicleCommand")
            topics = ("trajectory_setpoint", "offboard_control_mode", "vehicle_command")
            kinds = [f"px4_msgs/msg/{name}" for name in names]
            self.publishers = [(types(kind), self._publisher(kind, f"/fmu/in/{t}")) for kind, t in zip(kinds, topics)]
        elif output == "twist":
            self._listen("nav_msgs/msg/Odometry", odometry, self._on_odometry)
            self._listen("std_msgs/msg/Bool", ENGAGE, self._on_engage)
            kind = "geometry_msgs/msg/TwistStamped"
            self.publishers = [(types(kind), self._publisher(kind, command))]
        else:
            raise InputError(f"output={output!r} must be 'twist' or 'px4'.")
        if cloud is not None:
            self._listen("sensor_msgs/msg/PointCloud2", cloud, self._on_cloud)
        elif depth is not None:
            if camera_info is None:
                raise InputError("A depth image needs camera_info, the topic of its CameraInfo.")
            self._listen("sensor_msgs/msg/Image", depth, self._on_depth)
            self._listen("sensor_msgs/msg/CameraInfo", camera_info, self._on_camera)
        elif not blind:
            raise InputError("Give cloud or depth, the topic of what the drone sees, or blind=True to fly without.")

    def _listen(self, kind: str, topic: str, handler: Callable[[Any], None]) -> None:
        def take(message: Any) -> None:
            try:
                handler(message)
            except InputError as error:  # the inputs become stale, and the guard hovers
                self.error = error

        self.node.create_subscription(self.types(kind), topic, take, self.qos)

    def _publisher(self, kind: str, topic: str) -> Any:
        return self.node.create_publisher(self.types(kind), topic, 10)

    def clock(self) -> float:
        """Return ROS time, s: of messages, and for the guard."""
        return 1e-9 * float(self.node.get_clock().now().nanoseconds)

    # ---- messages ----------------------------------------------------------------------------------------------------

    def _on_odometry(self, message: Any) -> None:
        self.frame = message.header.frame_id or self.frame
        self.state = odometry_state(message, self.twist_in_body)

    def _on_px4_odometry(self, message: Any) -> None:
        theirs, position, velocity, quaternion = px4_odometry_state(message)
        self.state = (self.offset.message(theirs, self.clock()), position, velocity, quaternion)

    def _on_px4_status(self, message: Any) -> None:
        self._engaged = message.arming_state == PX4_ARMED and message.nav_state == PX4_OFFBOARD

    def _on_engage(self, message: Any) -> None:
        self._engaged = bool(message.data)

    def _on_cloud(self, message: Any) -> None:
        points = cloud_points(message)
        entries = {"points_w": points} if self.cloud_in_world else {"points_b": points, "mount": self.mount}
        self.seen = (entries, stamp_s(message.header.stamp))

    def _on_camera(self, message: Any) -> None:
        self.camera = camera_of(message, self.mount)

    def _on_depth(self, message: Any) -> None:
        if self.camera is not None:
            self.seen = ({"depth": depth_image(message), "camera": self.camera}, stamp_s(message.header.stamp))

    # ---- the interface of a vehicle ------------------------------------------------------------------------------------

    @property
    def takes_setpoints(self) -> bool:
        """Whether the vehicle follows commands: PX4 armed in offboard mode, or engaged by topic."""
        return self._engaged

    def poll(self, wait_s: float = 0.0) -> None:
        """Handle what has arrived, waiting at most `wait_s`."""
        self.spin(wait_s)

    def inputs(self) -> Inputs | None:
        """Return the newest inputs; None before the first odometry."""
        if self.state is None:
            return None
        seen = ({"points_w": np.zeros((0, 3))}, 0.0) if self.seen is None else self.seen
        self.points_time_s = seen[1] if self.seen is not None else None if self.blind else -math.inf
        return Inputs(*self.state, **seen[0])

    def tick(self) -> None:
        """Publish PX4's offboard control mode, without which it takes no setpoints."""
        if self.output == "px4" and self.allowed:
            kind, publisher = self.publishers[1]
            publisher.publish(fill_offboard_mode(kind(), self._time_us()))

    def send_velocity(self, velocity_w: Any) -> None:
        """Publish a velocity, m/s, world."""
        if self.allowed:
            kind, publisher = self.publishers[0]
            if self.output == "px4":
                publisher.publish(fill_setpoint(kind(), velocity_w, self._time_us()))
            else:
                publisher.publish(fill_twist(kind(), velocity_w, self.clock(), self.frame))

    def request_hold(self) -> None:
        """Request PX4's hold mode. A controller that follows TwistStamped must stop by itself when commands stop."""
        if self.allowed and self.output == "px4":
            kind, publisher = self.publishers[2]
            publisher.publish(fill_hold(kind(), self._time_us()))

    def _time_us(self) -> int:
        return int(1e6 * self.clock())


def main(words: list[str] | None = None) -> int:
    """Fly a folder from ROS 2."""
    from fledge_runtime.arguments import number, numbers, read_fence
    from fledge_runtime.fly import fly, quiet
    from fledge_runtime.limits import Limits
    from fledge_runtime.log import FlightLog, LoggedPilot
    from fledge_runtime.pilot import load
    from fledge_runtime.safety import Guard

    parser = argparse.ArgumentParser(prog="python -m fledge_runtime.bridges.ros2")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--goal", type=numbers(3), required=True, metavar="X,Y,Z", help="m, in the frame of the odometry"
    )
    parser.add_argument("--fence", type=read_fence, required=True, help="box:X,Y,Z,X,Y,Z or radius:X,Y,R,LOW,HIGH, m")
    parser.add_argument("--send", action="store_true", help="publish commands; without it nothing moves")
    parser.add_argument("--speed", type=number(above=0.0), default=0.2, help="largest command, m/s (0.2)")
    parser.add_argument("--duration", type=number(above=0.0, infinite=True), default=120.0)
    parser.add_argument("--log", type=Path, required=True)
    for name in ("odometry", "cloud", "depth", "camera-info", "output", "command"):
        parser.add_argument("--" + name, default=argparse.SUPPRESS)
    parser.add_argument("--cloud-in-world", action="store_true")
    parser.add_argument("--blind", action="store_true", help="fly without a cloud or depth image")
    given = vars(parser.parse_args(words))
    folder, goal, fence, log, send, speed, duration = (
        given.pop(name) for name in ("folder", "goal", "fence", "log", "send", "speed", "duration")
    )
    try:
        import rclpy
        from rclpy.qos import qos_profile_sensor_data
    except ImportError:
        parser.error("rclpy is missing: source a ROS 2 installation, for example /opt/ros/humble/setup.bash")
    if not fence.contains(np.asarray(goal)):
        parser.error(f"the goal {goal} is outside of the geofence {fence}")
    deployment = load(folder)
    rclpy.init()
    node = rclpy.create_node("fledge_runtime")
    bridge = Ros2Bridge(
        node, lambda s: rclpy.spin_once(node, timeout_sec=s), send, qos=qos_profile_sensor_data, **given
    )
    try:
        with FlightLog(log, {"identity": deployment.contract["identity"]}, bridge.clock) as flight_log:
            limits = Limits(speed_m_s=speed, goal_radius_m=float(deployment.contract["goal_radius_m"]))
            guard = Guard(LoggedPilot(deployment.pilot(), flight_log), limits, fence, send, bridge.clock)
            guard.reset(goal)
            told = fly(bridge, guard, float(deployment.contract["decision_s"]), duration, flight_log)
            quiet(print)(told)
    finally:
        node.destroy_node()
        rclpy.shutdown()
    return int(bool(told["error"]))


if __name__ == "__main__":
    raise SystemExit(main())
