"""ROS 2: messages become inputs, commands become messages, and the node is a vehicle that the guard flies."""

from __future__ import annotations

import math
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fledge_runtime.bridges.ros2 import Ros2Bridge
from fledge_runtime.bridges.ros2_messages import (
    camera_of,
    cloud_points,
    depth_image,
    fill_offboard_mode,
    fill_setpoint,
    fill_twist,
    find_type,
    odometry_state,
    px4_odometry_state,
    stamp_s,
)
from fledge_runtime.errors import InputError
from fledge_runtime.fly import fly
from fledge_runtime.inputs import Inputs
from fledge_runtime.limits import Limits, invalid
from fledge_runtime.safety import Guard
from tests.runtime.pilots import StraightPilot

LEFT = math.sqrt(0.5)  # w and z of a turn by 90 degrees to the left


class Message(types.SimpleNamespace):
    """Any message: fields that are missing are made when they are read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = Message()
        setattr(self, name, made)
        return made


def stamp(seconds: float) -> Message:
    return Message(sec=int(seconds), nanosec=round(1e9 * (seconds % 1.0)))


def odometry(at: float, position: Any = (1.0, 2.0, 3.0), velocity: Any = (1.0, 0.0, 0.5)) -> Message:
    message = Message(header=Message(stamp=stamp(at), frame_id="odom"))
    message.pose.pose.position = Message(**dict(zip("xyz", position, strict=True)))
    message.pose.pose.orientation = Message(w=LEFT, x=0.0, y=0.0, z=LEFT)
    message.twist.twist.linear = Message(**dict(zip("xyz", velocity, strict=True)))
    return message


def cloud(
    points: np.ndarray, at: float = 5.0, big: bool = False, kind: str = "f4", padding: int = 0, rows: int = 1
) -> Message:
    """A PointCloud2 with the fields intensity, x, y, z, and padding after each row."""
    order = ">" if big else "<"
    layout = np.dtype(
        {
            "names": ["i", *"xyz"],
            "formats": [f"{order}f4", *[order + kind] * 3],
            "offsets": [0, 4, 12, 20],
            "itemsize": 32,
        }
    )
    packed = np.zeros(len(points), layout)
    for k, axis in enumerate("xyz"):
        packed[axis] = points[:, k]
    width = len(points) // rows
    data = b"".join(packed[r * width : (r + 1) * width].tobytes() + b"\xff" * padding for r in range(rows))
    number = {"f4": 7, "f8": 8}[kind]
    fields = [Message(name="i", offset=0, datatype=7, count=1)]
    fields += [Message(name=axis, offset=4 + 8 * k, datatype=number, count=1) for k, axis in enumerate("xyz")]
    size = {"point_step": 32, "row_step": 32 * width + padding, "height": rows, "width": width}
    header = Message(stamp=stamp(at), frame_id="lidar")
    return Message(header=header, fields=fields, is_bigendian=big, data=data, is_dense=False, **size)


# ---- messages --------------------------------------------------------------------------------------------------------


def test_odometry_turns_the_velocity_of_the_body_into_the_world() -> None:
    at, position, velocity, quaternion = odometry_state(odometry(12.25))
    assert at == 12.25
    assert position.tolist() == [1.0, 2.0, 3.0]
    assert np.allclose(velocity, [0.0, 1.0, 0.5])
    assert quaternion.tolist() == [LEFT, 0.0, 0.0, LEFT]
    assert np.allclose(odometry_state(odometry(12.25), twist_in_body=False)[2], [1.0, 0.0, 0.5])


@pytest.mark.parametrize(("frame", "velocity"), [(1, [0.0, 1.0, -0.5]), (3, [1.0, 0.0, -0.5])])
def test_px4_odometry_is_ned_and_becomes_enu(frame: int, velocity: list[float]) -> None:
    q = [LEFT, 0.0, 0.0, LEFT]  # its nose to the east
    message = Message(timestamp=9, timestamp_sample=2_500_000, pose_frame=1, velocity_frame=frame, q=q)
    message.position, message.velocity = [1.0, 2.0, -3.0], velocity
    at, position, world, quaternion = px4_odometry_state(message)
    assert (at, position.tolist()) == (2.5, [2.0, 1.0, 3.0])
    assert np.allclose(world, [1.0, 0.0, 0.5])
    assert np.allclose(quaternion, [1.0, 0.0, 0.0, 0.0])
    message.velocity_frame = 2
    with pytest.raises(InputError, match="velocity_frame 2"):
        px4_odometry_state(message)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize(("padding", "rows"), [(0, 1), (8, 2)])
def test_clouds_of_every_layout_give_their_points(big: bool, kind: str, padding: int, rows: int) -> None:
    points = np.arange(18, dtype=float).reshape(6, 3) / 8.0
    assert cloud_points(cloud(points, big=big, kind=kind, padding=padding, rows=rows)).tolist() == points.tolist()


def test_points_that_are_not_finite_are_left_out_and_empty_clouds_are_fine() -> None:
    points = np.array([[1.0, 2.0, 3.0], [math.nan, 0.0, 0.0], [0.0, math.inf, 0.0], [4.0, 5.0, 6.0]])
    assert cloud_points(cloud(points)).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert cloud_points(cloud(np.zeros((0, 3)))).shape == (0, 3)


def test_a_cloud_without_a_finite_point_is_no_free_space() -> None:
    points = cloud_points(cloud(np.full((4, 3), math.nan)))
    assert points.shape == (4, 3)
    assert invalid(Inputs(0.0, [0.0, 0.0, 1.0], [0.0] * 3, [1.0, 0.0, 0.0, 0.0], points_b=points))


def test_damaged_clouds_and_images_are_refused() -> None:
    short = cloud(np.ones((4, 3)))
    short.data = short.data[:-1]
    with pytest.raises(InputError, match="less data"):
        cloud_points(short)
    whole = cloud(np.ones((4, 3)))
    whole.fields = whole.fields[:3]
    with pytest.raises(InputError, match="fields x, y and z"):
        cloud_points(whole)
    with pytest.raises(InputError, match="encoding 'rgb8'"):
        depth_image(Message(encoding="rgb8"))
    with pytest.raises(InputError, match="less data"):
        depth_image(Message(encoding="16UC1", width=2, height=2, step=4, data=b"1234567", is_bigendian=0))


def test_depth_images_are_metres() -> None:
    counts = np.array([[1000, 0, 2500], [1, 2, 65535]], np.uint16)
    padded = b"".join(row.astype(">u2").tobytes() + b"xx" for row in counts)
    message = Message(encoding="16UC1", width=3, height=2, step=8, data=padded, is_bigendian=1)
    assert np.allclose(depth_image(message), counts * 0.001)
    metres = np.array([[1.5, np.nan]], np.float32)
    message = Message(encoding="32FC1", width=2, height=1, step=8, data=metres.tobytes(), is_bigendian=0)
    assert np.array_equal(depth_image(message), metres, equal_nan=True)
    camera = camera_of(Message(k=[380.0, 0.0, 320.0, 0.0, 381.0, 240.0, 0.0, 0.0, 1.0]))
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (380.0, 381.0, 320.0, 240.0)


def test_commands_are_filled_into_messages() -> None:
    twist = fill_twist(Message(), [1.0, 2.0, 3.0], 7.25, "odom")
    assert (twist.twist.linear.x, twist.twist.linear.y, twist.twist.linear.z) == (1.0, 2.0, 3.0)
    assert (stamp_s(twist.header.stamp), twist.header.frame_id) == (7.25, "odom")
    setpoint = fill_setpoint(Message(), [1.0, 2.0, 3.0], 42)
    assert (setpoint.timestamp, setpoint.velocity, setpoint.yawspeed) == (42, [2.0, 1.0, -3.0], 0.0)
    assert all(map(math.isnan, [*setpoint.position, *setpoint.acceleration, setpoint.yaw]))
    mode = fill_offboard_mode(Message(), 42)
    assert (mode.velocity, mode.position, mode.body_rate) == (True, False, False)


def test_a_type_that_is_not_installed_is_one_sentence() -> None:
    with pytest.raises(InputError, match="nowhere_msgs/msg/Thing is not installed"):
        find_type("nowhere_msgs/msg/Thing")


# ---- the node --------------------------------------------------------------------------------------------------------


class FakeNode:
    """An rclpy node without ROS: topics in dictionaries, a clock that the test sets."""

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[[Any], None]] = {}
        self.published: dict[str, list[Any]] = {}
        self.time_s = 100.0

    def create_subscription(self, kind: Any, topic: str, handler: Callable[[Any], None], qos: Any) -> None:
        self.handlers[topic] = handler

    def create_publisher(self, kind: Any, topic: str, qos: Any) -> Any:
        published = self.published.setdefault(topic, [])
        return types.SimpleNamespace(publish=published.append)

    def get_clock(self) -> Any:
        return types.SimpleNamespace(now=lambda: types.SimpleNamespace(nanoseconds=int(1e9 * self.time_s)))


def bridge_on(node: FakeNode, **settings: Any) -> Ros2Bridge:
    return Ros2Bridge(node, settings.pop("spin", lambda s: None), types=lambda name: Message, **settings)


def test_the_newest_odometry_and_cloud_are_the_inputs() -> None:
    node = FakeNode()
    bridge = bridge_on(node, cloud="/points")
    assert bridge.inputs() is None
    node.handlers["/odom"](odometry(99.9))
    bridge.inputs()
    assert bridge.points_time_s == -math.inf
    node.handlers["/points"](cloud(np.ones((2, 3)), at=99.8))
    inputs = bridge.inputs()
    assert inputs is not None
    assert (inputs.time_s, bridge.points_time_s) == (99.9, 99.8)
    assert inputs.points_b.shape == (2, 3)
    assert inputs.points_w is None


def test_a_message_that_cannot_be_read_is_left_out() -> None:
    node = FakeNode()
    bridge = bridge_on(node, cloud="/points", cloud_in_world=True)
    node.handlers["/points"](cloud(np.ones((2, 3)), at=99.8))
    bad = cloud(np.ones((4, 3)), at=99.9)
    bad.data = b""
    node.handlers["/points"](bad)
    assert bridge.seen is not None
    assert bridge.seen[1] == 99.8
    assert isinstance(bridge.error, InputError)


def test_px4_takes_setpoints_when_armed_in_offboard_mode_and_is_asked_to_hold() -> None:
    node = FakeNode()
    bridge = bridge_on(node, output="px4", send=True, blind=True)
    for arming, nav, takes in ((2, 14, True), (1, 14, False), (2, 4, False)):
        node.handlers["/fmu/out/vehicle_status"](Message(arming_state=arming, nav_state=nav))
        assert bridge.takes_setpoints is takes
    bridge.tick()
    bridge.send_velocity([1.0, 0.0, 0.0])
    bridge.request_hold()
    assert node.published["/fmu/in/offboard_control_mode"][0].velocity is True
    assert node.published["/fmu/in/trajectory_setpoint"][0].velocity == [0.0, 1.0, -0.0]
    hold = node.published["/fmu/in/vehicle_command"][0]
    assert (hold.command, hold.param2, hold.param3) == (176, 4.0, 3.0)


def test_without_send_nothing_is_published() -> None:
    node = FakeNode()
    bridge = bridge_on(node, output="px4", blind=True)
    bridge.tick()
    bridge.send_velocity([1.0, 0.0, 0.0])
    bridge.request_hold()
    assert not any(node.published.values())


def test_a_node_without_a_sensor_must_say_that_it_flies_blind() -> None:
    with pytest.raises(InputError, match="blind=True"):
        bridge_on(FakeNode())
    with pytest.raises(InputError, match="camera_info"):
        bridge_on(FakeNode(), depth="/depth")


def test_a_flight_by_topics_begins_when_engaged_and_reaches_its_goal() -> None:
    node, place, velocity = FakeNode(), np.array([0.0, 0.0, 1.5]), np.zeros(3)

    def spin(seconds: float) -> None:
        nonlocal place, velocity
        node.time_s += 0.01
        sent = node.published["/cmd_vel"]
        if sent:
            linear = sent[-1].twist.linear
            velocity = np.array([linear.x, linear.y, linear.z])
        place = place + 0.01 * velocity
        message = odometry(node.time_s, place, velocity)
        message.pose.pose.orientation = Message(w=1.0, x=0.0, y=0.0, z=0.0)
        node.handlers["/odom"](message)
        node.handlers["/fledge/engage"](Message(data=node.time_s > 100.5))
        node.handlers["/points"](cloud(np.ones((2, 3)), at=node.time_s))
        time.sleep(0.001)  # the sender's thread runs in real time

    bridge = bridge_on(node, spin=spin, send=True, cloud="/points")
    limits = Limits(
        speed_m_s=1.0,
        acceleration_m_s2=50.0,
        hover_s=0.5,
        clock_jump_s=5.0,
        decision_timeout_s=5.0,
        input_timeout_s=5.0,
    )
    guard = Guard(StraightPilot(), limits, send=True, clock=bridge.clock)
    guard.reset((2.0, 0.0, 1.5))
    told = fly(bridge, guard, 0.05, 60.0, tell=lambda text: None)
    assert told["reason"] == "goal_reached"
    assert guard.history[0][0] > 100.49
    assert np.linalg.norm(place - [2.0, 0.0, 1.5]) < 1.5


# ---- real message classes --------------------------------------------------------------------------------------------


def test_messages_of_the_ros_2_definitions_are_read_and_filled() -> None:
    stores = pytest.importorskip("rosbags.typesys")
    store = stores.get_typestore(stores.Stores.ROS2_HUMBLE)
    kinds = store.types
    time_ = kinds["builtin_interfaces/msg/Time"](sec=3, nanosec=500_000_000)
    header = kinds["std_msgs/msg/Header"](stamp=time_, frame_id="lidar")
    field = kinds["sensor_msgs/msg/PointField"]
    fields = [field(name=axis, offset=4 * k, datatype=7, count=1) for k, axis in enumerate("xyz")]
    points = np.arange(12, dtype=np.float32).reshape(4, 3)
    data = np.frombuffer(points.tobytes(), np.uint8)
    whole = kinds["sensor_msgs/msg/PointCloud2"](header, 1, 4, fields, False, 12, 48, data, True)
    back = store.deserialize_cdr(store.serialize_cdr(whole, whole.__msgtype__), whole.__msgtype__)
    assert cloud_points(back).tolist() == points.tolist()
    assert stamp_s(back.header.stamp) == 3.5
    vector, point = kinds["geometry_msgs/msg/Vector3"], kinds["geometry_msgs/msg/Point"]
    twist = kinds["geometry_msgs/msg/Twist"](linear=vector(0.0, 0.0, 0.0), angular=vector(0.0, 0.0, 0.0))
    filled = fill_twist(kinds["geometry_msgs/msg/TwistStamped"](header, twist), [1.0, 2.0, 3.0], 8.5, "odom")
    again = store.deserialize_cdr(store.serialize_cdr(filled, filled.__msgtype__), filled.__msgtype__)
    assert (again.twist.linear.y, again.header.stamp.sec) == (2.0, 8)
    turn = kinds["geometry_msgs/msg/Quaternion"](0.0, 0.0, LEFT, LEFT)  # x, y, z, w
    pose = kinds["geometry_msgs/msg/PoseWithCovariance"](
        kinds["geometry_msgs/msg/Pose"](point(1.0, 2.0, 3.0), turn), np.zeros(36)
    )
    speed = kinds["geometry_msgs/msg/TwistWithCovariance"](
        kinds["geometry_msgs/msg/Twist"](vector(1.0, 0.0, 0.0), vector(0.0, 0.0, 0.0)), np.zeros(36)
    )
    _, position, velocity, _ = odometry_state(kinds["nav_msgs/msg/Odometry"](header, "base", pose, speed))
    assert position.tolist() == [1.0, 2.0, 3.0]
    assert np.allclose(velocity, [0.0, 1.0, 0.0])
