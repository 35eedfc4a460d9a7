"""Read logs of real flights, and write them as recordings: ULog of PX4, ROS bags (1 and 2), MCAP, and the runtime's own.

A flight is its path, and a map of the hits of its LiDAR if the log has point clouds. Positions are metres with z up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fledge.core.errors import ConfigError, FormatError
from fledge.core.extras import extra
from fledge.deployment.runtime import find_runtime
from fledge.storage import RecordingWriter

FRAME_S = 0.05
CELL_M = 0.2  # of the map of hits
HITS = 3  # in a cell that counts as solid
GROUND_M = 0.2  # lower hits are the ground
MOST_CELLS = 8_000_000
MARGIN_M = 3.0
ODOMETRY = ("nav_msgs/msg/Odometry", "px4_msgs/msg/VehicleOdometry", "geometry_msgs/msg/PoseStamped")
CLOUD = "sensor_msgs/msg/PointCloud2"


@dataclass
class FlightLog:
    """Path of a flight, T samples in order of time, and hits of its LiDAR."""

    time_s: np.ndarray  # [T]
    position: np.ndarray  # [T, 3] m
    heading: np.ndarray  # [T] rad, counter-clockwise from x
    points: np.ndarray  # [P, 3] m, world; P = 0 without a cloud
    goal: np.ndarray | None = None
    ending: str = ""  # why the flight ended, if the log says so


def read_flight(path: Path) -> FlightLog:
    """Read the log of a flight; the ending of the file tells its kind.

    Raises:
        ConfigError: There is no such file, or its ending is not that of a log.
        FormatError: The file is damaged, or has no positions.
        MissingExtraError: The extra `logs` is not installed.
    """
    kind = path.suffix.lower()
    if kind not in READERS:
        raise ConfigError(f"{path} is not the log of a flight: its ending must be one of {', '.join(READERS)}.")
    if not path.exists():
        raise ConfigError(f"There is no file {path}: check the name.")
    find_runtime()
    flight = READERS[kind](path)
    finite = np.isfinite(flight.position).all(axis=1) & np.isfinite(flight.heading)
    order = np.flatnonzero(finite)[np.argsort(flight.time_s[finite], kind="stable")]
    if len(order) < 2 or flight.time_s[order[-1]] <= flight.time_s[order[0]]:
        raise FormatError(f"{path} has no path: it needs at least two positions at different times.")
    flight.time_s, flight.position, flight.heading = flight.time_s[order], flight.position[order], flight.heading[order]
    flight.points = flight.points[np.isfinite(flight.points).all(axis=1)]
    return flight


def convert_flight(source: Path, target: Path) -> dict[str, Any]:
    """Write a log as a recording of navigation (.frec), or its hits as a point cloud (.xyz); return facts of it."""
    flight = read_flight(source)
    seconds = float(flight.time_s[-1] - flight.time_s[0])
    length = float(np.linalg.norm(np.diff(flight.position, axis=0), axis=1).sum())
    facts = {"seconds": seconds, "length_m": length, "points": len(flight.points)}
    if target.suffix == ".xyz":
        if not len(flight.points):
            raise ConfigError(f"{source} has no point clouds, so that there is nothing to write to {target}.")
        np.savetxt(target, flight.points, fmt="%.3f")
    elif target.suffix == ".frec":
        write_flight(flight, target, source.name)
    else:
        raise ConfigError(
            f"A flight's log can be converted to .frec (a recording) or .xyz (a point cloud), not to {target}."
        )
    return {**facts, "bytes": target.stat().st_size}


def describe_flight(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what happened in a flight of the runtime, from its log (.flog), and the same as lines of text."""
    find_runtime()
    from fledge_runtime.errors import RuntimeFault
    from fledge_runtime.flight_report import describe, report

    try:
        told = report(path)
    except RuntimeFault as error:
        raise FormatError(str(error)) from None
    return told, describe(told)


def write_flight(flight: FlightLog, target: Path, name: str) -> None:
    """Write a recording with one episode, at 20 frames per second."""
    at = np.arange(flight.time_s[0], flight.time_s[-1], FRAME_S)
    position = np.stack([np.interp(at, flight.time_s, flight.position[:, k]) for k in range(3)], axis=1)
    heading = np.interp(at, flight.time_s, np.unwrap(flight.heading))
    velocity = np.gradient(position, FRAME_S, axis=0) if len(at) > 1 else np.zeros_like(position)
    frames = {
        "pos": position.astype(np.float32),
        "vel": velocity.astype(np.float32),
        "heading": np.angle(np.exp(1j * heading)).astype(np.float32),
    }
    goal = position[-1] if flight.goal is None else flight.goal
    scene = {**map_of_hits(flight), "start": position[0].astype(np.float32), "goal": np.asarray(goal, np.float32)}
    example = {key: value[0] for key, value in frames.items()}
    with RecordingWriter(target, "navigation", example, FRAME_S, facts={"log": name}, when_full="wait") as writer:
        episode = writer.begin({**scene, "clock_s": 0.0, "goal_radius_m": 0.5}, {"log": name})
        writer.add_many(episode, frames)
        writer.end(episode, flight.ending or "unknown", 0.0)


def map_of_hits(flight: FlightLog) -> dict[str, Any]:
    """Return the entries of a scene: the cells with several hits near the path, else no obstacles and the path's bounds."""
    low, high = flight.position.min(axis=0) - MARGIN_M, flight.position.max(axis=0) + MARGIN_M
    low[2] = min(flight.position[:, 2].min(), 0.0)
    near = flight.points[((flight.points >= low) & (flight.points < high)).all(axis=1)]
    near = near[near[:, 2] > low[2] + GROUND_M]
    if not len(near):
        return {"map": 0, "boxes": np.zeros((0, 6), np.float32), "bounds": [low.tolist(), high.tolist()]}
    cell_m = max(CELL_M, float(np.prod(high - low) / MOST_CELLS) ** (1.0 / 3.0))
    shape = np.ceil((high - low) / cell_m).astype(int)
    counts = np.zeros(shape, np.int32)
    np.add.at(counts, tuple(np.minimum((near - low) / cell_m, shape - 1).astype(int).T), 1)
    solid = np.packbits(counts >= HITS)
    return {"map": 0, "voxels": solid, "world": "hits", "origin": low, "cell_m": cell_m, "shape": shape.tolist()}


# ---- readers -----------------------------------------------------------------------------------------------------------


def read_ulog(path: Path) -> FlightLog:
    """Read PX4's vehicle_local_position."""
    from fledge_runtime.bridges.frames import swap_world

    with extra("logs"):
        from pyulog import ULog
    try:
        log = ULog(str(path), ["vehicle_local_position"])
        rows = log.get_dataset("vehicle_local_position").data
    except Exception as error:  # pyulog raises whatever a damaged file leads to
        raise FormatError(f"{path} is no ULog with vehicle_local_position: {error}.") from None
    position = swap_world(np.stack([rows["x"], rows["y"], rows["z"]], axis=1))
    heading = 0.5 * np.pi - np.asarray(rows["heading"], float)
    return FlightLog(1e-6 * np.asarray(rows["timestamp"], float), position, heading, np.zeros((0, 3)))


def read_bag(path: Path) -> FlightLog:
    """Read the first odometry and the first point cloud of a ROS 1 or ROS 2 bag, or of an MCAP file with ROS 2 messages."""
    with extra("logs"):
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore
    try:
        store = get_typestore(Stores.ROS2_HUMBLE)
        # a ROS 2 bag is the folder of its metadata; a file alone is read as it is
        whole = path.parent if path.suffix == ".db3" and (path.parent / "metadata.yaml").is_file() else path
        with AnyReader([whole], default_typestore=store) as reader:
            odometry = first_topic(reader.connections, ODOMETRY)
            if not odometry:
                raise FormatError(f"{path} has no odometry: it needs a topic of one of {', '.join(ODOMETRY)}.")
            wanted = [*odometry, *first_topic(reader.connections, (CLOUD,))]
            return follow(
                (reader.deserialize(data, link.msgtype), link.msgtype)
                for link, _, data in reader.messages(connections=wanted)
            )
    except FormatError:
        raise
    except Exception as error:  # rosbags raises whatever a damaged file leads to
        raise FormatError(f"{path} cannot be read as a bag: {error}.") from None


def first_topic(connections: Iterable[Any], kinds: Iterable[str]) -> list[Any]:
    """Return the connections of the first topic of the first of some message types that there is."""
    for kind in kinds:
        topics = sorted({one.topic for one in connections if one.msgtype == kind})
        if topics:
            return [one for one in connections if one.topic == topics[0]]
    return []


def follow(messages: Iterable[tuple[Any, str]]) -> FlightLog:
    """Return the flight of odometry and clouds; a cloud in another frame is one of the body, at the last position."""
    from fledge_runtime.bridges.frames import rotate, yaw_of
    from fledge_runtime.bridges.ros2_messages import cloud_points, odometry_state, px4_odometry_state, stamp_s

    path: list[tuple[float, np.ndarray, float]] = []
    clouds: list[np.ndarray] = [np.zeros((0, 3))]
    frame, turn = "", np.array([1.0, 0.0, 0.0, 0.0])
    for message, kind in messages:
        if kind == CLOUD:
            if path:
                points = cloud_points(message).astype(float)
                points = points[np.isfinite(points).all(axis=-1)]
                in_world = message.header.frame_id == frame
                clouds.append(points if in_world else rotate(turn, points) + path[-1][1])
            continue
        if kind == ODOMETRY[0]:
            at, position, _, turn = odometry_state(message)
            frame = message.header.frame_id
        elif kind == ODOMETRY[1]:
            at, position, _, turn = px4_odometry_state(message)
        else:
            place, q, at = message.pose.position, message.pose.orientation, stamp_s(message.header.stamp)
            position, turn = np.array([place.x, place.y, place.z], float), np.array([q.w, q.x, q.y, q.z], float)
            frame = message.header.frame_id
        path.append((at, position, yaw_of(turn)))
    time_s, positions, heading = (
        (np.array(column, float) for column in zip(*path, strict=True)) if path else [np.zeros(0)] * 3
    )
    return FlightLog(time_s, positions.reshape(-1, 3), heading, np.concatenate(clouds))


def read_runtime_log(path: Path) -> FlightLog:
    """Read a log that `fledge-runtime fly` or `simulate` wrote."""
    from fledge_runtime.bridges.frames import rotate, yaw_of
    from fledge_runtime.errors import RuntimeFault
    from fledge_runtime.flight_report import end_reason
    from fledge_runtime.log import read_log

    path_rows: list[tuple[float, np.ndarray, float]] = []
    clouds: list[np.ndarray] = [np.zeros((0, 3))]
    goal, events = None, []
    try:
        for record in read_log(path):
            if record.kind == "reset":
                goal = record.arrays["goal_w"]
            elif record.kind == "event":
                events.append(record.facts)
            elif record.kind == "inputs":
                turn, place = record.arrays["quaternion_wxyz"], record.arrays["position_w"]
                path_rows.append((record.facts["time_s"], place, yaw_of(turn)))
                if "points_w" in record.arrays:
                    clouds.append(record.arrays["points_w"])
                elif "points_b" in record.arrays:
                    offset, mounted = record.facts["mount"]
                    clouds.append(rotate(turn, rotate(mounted, record.arrays["points_b"]) + offset) + place)
    except RuntimeFault as error:
        raise FormatError(str(error)) from None
    columns = zip(*path_rows, strict=True) if path_rows else [np.zeros(0)] * 3
    time_s, positions, heading = (np.array(column, float) for column in columns)
    reason = end_reason(events)
    ending = "success" if reason == "goal_reached" else reason
    return FlightLog(time_s, positions.reshape(-1, 3), heading, np.concatenate(clouds), goal, ending)


READERS: dict[str, Callable[[Path], FlightLog]] = {
    ".ulg": read_ulog,
    ".bag": read_bag,
    ".db3": read_bag,
    ".mcap": read_bag,
    ".flog": read_runtime_log,
}
