"""Logs of real flights become recordings: the same path and hits from ULog, ROS bags, MCAP and the runtime's own log."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fledge.cli import main
from fledge.core.errors import ConfigError, FormatError
from fledge.deployment.flight_logs import convert_flight, read_flight
from fledge.storage import Recording
from fledge_runtime import Inputs
from fledge_runtime.log import FlightLog, LoggedPilot
from tests.runtime.pilots import StraightPilot

SAMPLES = 41
TIMES = 3.0 + 0.1 * np.arange(SAMPLES)  # four seconds
PATH = np.stack([2.0 * (TIMES - 3.0), np.sin(TIMES - 3.0), 1.5 + 0.0 * TIMES], axis=1)
YAW = math.radians(170.0) + 0.02 * np.arange(SAMPLES)  # past 180 degrees
ANGLES, HEIGHTS = np.meshgrid(np.linspace(0.0, math.tau, 60), np.linspace(0.0, 3.0, 30))
PILLAR = np.stack([4.0 + 0.3 * np.cos(ANGLES), 2.0 + 0.3 * np.sin(ANGLES), HEIGHTS], axis=-1).reshape(-1, 3)


def turn(yaw: float) -> tuple[float, float]:
    return math.cos(0.5 * yaw), math.sin(0.5 * yaw)


def in_body(k: int) -> np.ndarray:
    """Return the pillar's points in the frame of the body at sample k."""
    c, s = math.cos(YAW[k]), math.sin(YAW[k])
    return (PILLAR - PATH[k]) @ np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


# ---- files -----------------------------------------------------------------------------------------------------------


def write_ulog(path: Path) -> None:
    """Write a ULog by its specification: header, format, subscription and data."""

    def message(kind: bytes, body: bytes) -> bytes:
        return struct.pack("<Hc", len(body), kind) + body

    name = b"vehicle_local_position"
    parts = [b"ULog\x01\x12\x35\x01" + struct.pack("<Q", 0), message(b"B", bytes(40))]
    parts.append(message(b"F", name + b":uint64_t timestamp;float x;float y;float z;float heading;"))
    parts.append(message(b"A", struct.pack("<BH", 0, 0) + name))
    for at, (x, y, z), yaw in zip(TIMES, PATH, YAW, strict=True):
        body = struct.pack("<HQffff", 0, round(1e6 * at), y, x, -z, 0.5 * math.pi - yaw)
        parts.append(message(b"D", body))
    path.write_bytes(b"".join(parts))


def bag_messages(kinds: Any, ros1: bool) -> Any:
    """Yield (topic, message type, message, nanoseconds): odometry, and now and then a cloud of the pillar."""
    get = kinds.__getitem__
    vector, zero = get("geometry_msgs/msg/Vector3"), np.zeros(36)
    for k, (at, place, yaw) in enumerate(zip(TIMES, PATH, YAW, strict=True)):
        stamp = get("builtin_interfaces/msg/Time")(sec=int(at), nanosec=round(1e9 * (at % 1.0)) % 10**9)
        number = {"seq": k} if ros1 else {}
        header = get("std_msgs/msg/Header")(stamp=stamp, frame_id="odom", **number)
        w, z = turn(yaw)
        pose = get("geometry_msgs/msg/Pose")(
            get("geometry_msgs/msg/Point")(*map(float, place)), get("geometry_msgs/msg/Quaternion")(0.0, 0.0, z, w)
        )
        still = get("geometry_msgs/msg/Twist")(vector(0.0, 0.0, 0.0), vector(0.0, 0.0, 0.0))
        twist = get("geometry_msgs/msg/TwistWithCovariance")(still, zero)
        odometry = get("nav_msgs/msg/Odometry")
        message = odometry(header, "base", get("geometry_msgs/msg/PoseWithCovariance")(pose, zero), twist)
        yield "/odom", "nav_msgs/msg/Odometry", message, round(1e9 * at)
        if k % 10 == 0:
            field = get("sensor_msgs/msg/PointField")
            fields = [field(name, 4 * i, 7, 1) for i, name in enumerate("xyz")]
            data = np.frombuffer(in_body(k).astype("<f4").tobytes(), np.uint8)
            header = get("std_msgs/msg/Header")(stamp=stamp, frame_id="lidar", **number)
            size = len(PILLAR)
            cloud = get("sensor_msgs/msg/PointCloud2")(header, 1, size, fields, False, 12, 12 * size, data, True)
            yield "/points", "sensor_msgs/msg/PointCloud2", cloud, round(1e9 * at) + 1


def write_bag(path: Path, kind: str) -> Path:
    """Write a bag of a kind, and return the file that a user would name."""
    pytest.importorskip("rosbags")
    from rosbags import rosbag1, rosbag2
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC if kind == "bag" else Stores.ROS2_HUMBLE)
    if kind == "bag":
        file = path / "flight.bag"
        writer: Any = rosbag1.Writer(file)
    else:
        storage = rosbag2.StoragePlugin.MCAP if kind == "mcap" else rosbag2.StoragePlugin.SQLITE3
        writer, file = (
            rosbag2.Writer(path / "flight", version=9, storage_plugin=storage),
            path / "flight" / f"flight.{kind}",
        )
    with writer:
        links: dict[str, Any] = {}
        for topic, name, message, at in bag_messages(store.types, kind == "bag"):
            if topic not in links:
                links[topic] = writer.add_connection(topic, name, typestore=store)
            raw = store.serialize_ros1(message, name) if kind == "bag" else store.serialize_cdr(message, name)
            writer.write(links[topic], at, raw)
    return file


def write_runtime_log(path: Path) -> Path:
    file = path / "flight.flog"
    with FlightLog(file) as log:
        pilot = LoggedPilot(StraightPilot(), log)
        pilot.reset(PATH[0], np.array([9.0, 0.0, 1.5]))
        for k, (at, place) in enumerate(zip(TIMES, PATH, strict=True)):
            w, z = turn(YAW[k])
            log.inputs(Inputs(float(at), place, [0.0, 0.0, 0.0], [w, 0.0, 0.0, z], points_b=in_body(k)))
        log.add("event", {"state": "hovering", "reason": "goal_reached"})
    return file


def written(kind: str, path: Path) -> Path:
    if kind == "ulg":
        pytest.importorskip("pyulog")
        write_ulog(path / "flight.ulg")
        return path / "flight.ulg"
    return write_runtime_log(path) if kind == "flog" else write_bag(path, kind)


# ---- tests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ulg", "bag", "db3", "mcap", "flog"])
def test_every_kind_of_log_gives_the_same_recording(kind: str, tmp_path: Path) -> None:
    source, target = written(kind, tmp_path), tmp_path / "out.frec"
    facts = convert_flight(source, target)
    assert facts["seconds"] == pytest.approx(4.0, abs=0.01)
    with Recording(target) as recording:
        assert recording.task == "navigation"
        episode = recording[0]
        frames, scene = episode.frames(), episode.scene
    at = TIMES[0] + 0.05 * np.arange(len(frames["pos"]))
    expected = np.stack([np.interp(at, TIMES, PATH[:, k]) for k in range(3)], axis=1)
    assert np.abs(frames["pos"] - expected).max() < 1e-3
    assert np.abs(np.exp(1j * frames["heading"]) - np.exp(1j * np.interp(at, TIMES, YAW))).max() < 1e-3
    assert np.allclose(frames["vel"][1:-1, 0], 2.0, atol=0.01)
    if kind == "ulg":
        assert len(scene["boxes"]) == 0
    else:
        shape, cell = tuple(scene["shape"]), scene["cell_m"]
        solid = np.argwhere(np.unpackbits(scene["voxels"], count=math.prod(shape)).reshape(shape))
        places = np.asarray(scene["origin"]) + cell * (solid + 0.5)
        away = np.abs(np.hypot(*(places[:, :2] - [4.0, 2.0]).T) - 0.3)
        assert len(places) > 50
        assert away.max() < cell


def test_a_recording_of_a_log_is_drawn_and_its_hits_are_a_point_cloud(tmp_path: Path) -> None:
    source, run = write_runtime_log(tmp_path), CliRunner()
    for target in ("a.frec", "a.xyz"):
        done = run.invoke(main, ["convert", str(source), str(tmp_path / target)])
        assert done.exit_code == 0, done.output
        assert "4.0 s" in done.output
    assert np.loadtxt(tmp_path / "a.xyz").shape == (SAMPLES * len(PILLAR), 3)
    for target in ("a.json", "a.png"):
        done = run.invoke(main, ["convert", str(tmp_path / "a.frec"), str(tmp_path / target)])
        assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "a.json").read_text())
    with Recording(tmp_path / "a.frec") as recording:
        assert recording.outcomes() == {"success": 1}


def test_wrong_names_and_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        read_flight(tmp_path / "none.flog")
    with pytest.raises(ConfigError, match="must be one of"):
        read_flight(tmp_path / "flight.txt")
    for ending in (".flog", ".ulg", ".db3", ".mcap", ".bag"):
        if ending != ".flog":
            pytest.importorskip("pyulog" if ending == ".ulg" else "rosbags")
        (tmp_path / f"bad{ending}").write_bytes(b"not a log at all" * 20)
        with pytest.raises(FormatError, match="bad"):
            read_flight(tmp_path / f"bad{ending}")
    source = write_runtime_log(tmp_path)
    with pytest.raises(ConfigError, match=r"\.frec"):
        convert_flight(source, tmp_path / "a.png")


def test_a_log_without_a_path_or_without_clouds_says_so(tmp_path: Path) -> None:
    with FlightLog(tmp_path / "short.flog") as log:
        log.inputs(Inputs(1.0, [0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]))
    with pytest.raises(FormatError, match="two positions"):
        read_flight(tmp_path / "short.flog")
    with FlightLog(tmp_path / "blind.flog") as log:
        for at in (1.0, 2.0):
            log.inputs(Inputs(at, [at, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]))
    with pytest.raises(ConfigError, match="no point clouds"):
        convert_flight(tmp_path / "blind.flog", tmp_path / "a.xyz")


def test_a_recording_carries_the_reason_of_the_end(tmp_path: Path) -> None:
    with FlightLog(tmp_path / "a.flog") as log:
        for k in range(5):
            log.inputs(Inputs(0.1 * k, [0.1 * k, 0.0, 1.5], np.zeros(3), [1.0, 0.0, 0.0, 0.0]))
        log.add("event", {"state": "handed_over", "reason": "geofence"})
    convert_flight(tmp_path / "a.flog", tmp_path / "a.frec")
    with Recording(tmp_path / "a.frec") as recording:
        assert recording.outcomes() == {"geofence": 1}
