"""MAVLink: odometry and obstacles from PX4 or ArduPilot, velocity setpoints to it. Needs the extra `mavlink`.

    bridge = MavlinkBridge("udpin:127.0.0.1:14540", send=False)
    bridge.poll(0.02)
    inputs = bridge.inputs()       # None until position and attitude have arrived
    bridge.send_velocity([0.2, 0.0, 0.0])   # m/s, ENU; sends nothing unless send=True

The world frame is ENU with the origin of the flight controller's local frame. The bridge never arms and never enters offboard
mode. Without `send` it sends heartbeats, time synchronization and requests for messages, but no setpoint and no mode.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import threading
import time
from typing import Any, Callable

import numpy as np

from fledge_runtime.bridges.clock import ClockOffset
from fledge_runtime.bridges.frames import rotate, swap_attitude, swap_body, swap_world, yaw_of
from fledge_runtime.errors import InputError, UsageError
from fledge_runtime.inputs import Inputs

PX4, ARDUPILOT = 12, 3  # MAV_AUTOPILOT
PX4_OFFBOARD, PX4_AUTO, PX4_LOITER = 6, 4, 3  # main modes, and the sub mode that holds the position
COPTER_GUIDED, COPTER_BRAKE = 4, 17  # ArduPilot's copter: takes setpoints; stops and holds
NAMES = {PX4: "PX4", ARDUPILOT: "ArduPilot"}
AUTOPILOT_1 = 1  # MAV_COMP_ID_AUTOPILOT1
ARMED = 128  # MAV_MODE_FLAG_SAFETY_ARMED
INVALID_AUTOPILOT, GROUND_STATION = 8, 6
LOCAL_NED, BODY_FRD = 1, 12  # MAV_FRAME
LOCAL_POSES = (1, 20)  # MAV_FRAME_LOCAL_NED, MAV_FRAME_LOCAL_FRD
# POSITION_TARGET_TYPEMASK: ignore position (1, 2, 4), acceleration (64, 128, 256) and yaw (1024); velocity and yaw rate count
VELOCITY_MASK = 1 | 2 | 4 | 64 | 128 | 256 | 1024
SET_MODE, SET_MESSAGE_INTERVAL = 176, 511  # MAV_CMD
WANTED = {32: 50.0, 31: 50.0, 330: 10.0}  # LOCAL_POSITION_NED, ATTITUDE_QUATERNION, OBSTACLE_DISTANCE: Hz
MOST_MESSAGES = 500  # in a call of poll
SKEW_S = 0.1  # between position and attitude
OBSTACLE_HEIGHTS_M = (-0.4, -0.2, 0.0, 0.2, 0.4)
NO_DISTANCE = 65535
ENTRIES = {"points_w", "points_b", "mount", "depth", "camera", "movers"}
OTHER_CLOCK_S = 5.0  # obstacles with times further away were stamped by another clock


class LinkError(UsageError):
    """The link to the flight controller cannot be opened or its package is missing."""


def import_mavutil() -> Any:
    """Return pymavlink's mavutil, with MAVLink 2."""
    os.environ.setdefault("MAVLINK20", "1")
    try:
        from pymavlink import mavutil
    except ImportError:
        raise LinkError("MAVLink needs pymavlink: pip install fledge-runtime[mavlink].") from None
    return mavutil


class MavlinkBridge:
    """Link to one vehicle.

    Args:
        address: As pymavlink has it: udpin:127.0.0.1:14540, udpout:…, tcp:…, /dev/ttyACM0.
        send: Allow setpoints and the request for hold mode.
        points: Returns the surroundings, as entries of Inputs (`points_w`, `points_b` and `mount`, or `depth` and `camera`),
            and the time at which they were measured on `clock`; None before the first. Without it, OBSTACLE_DISTANCE.
        blind: Fly although no surroundings are measured; else inputs without them are stale.
        system: Of the vehicle, 1 to 255. None: the first autopilot that is heard; `autopilots` has all of them.
    """

    def __init__(
        self,
        address: str,
        send: bool = False,
        points: Callable[[], tuple[dict[str, Any], float] | None] | None = None,
        blind: bool = False,
        clock: Callable[[], float] = time.monotonic,
        baud: int = 921600,
        system: int | None = None,
    ) -> None:
        mavutil = import_mavutil()
        try:
            if address.startswith("udpin:"):
                check_port_is_free(address)
            self.link = mavutil.mavlink_connection(address, baud=baud, source_system=1, source_component=191)
        except ImportError:
            raise LinkError(f"The serial port {address} needs pyserial: pip install fledge-runtime[mavlink].") from None
        except (OSError, ValueError, IndexError, OverflowError) as error:
            raise LinkError(f"The link {address} cannot be opened: {error}. Example: udpin:127.0.0.1:14540") from None
        self.allowed, self.points, self.blind, self.clock, self.offset = send, points, blind, clock, ClockOffset()
        self.wanted, self.system = system, None  # type: int | None, int | None
        self.autopilots: dict[int, int] = {}  # MAV_AUTOPILOT of every system that was heard
        self.autopilot, self.armed, self.mode = 0, False, 0
        self.position: tuple[float, np.ndarray, np.ndarray] | None = None  # time, position and velocity, ENU
        self.attitude: tuple[float, np.ndarray] | None = None
        self.obstacles: tuple[dict[str, Any], float] | None = None
        self.points_time_s: float | None = None  # of the newest inputs
        self.counts: dict[str, int] = {}
        self._position_message = self._beat = self._asked = -math.inf
        self._lock = threading.Lock()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def poll(self, wait_s: float = 0.0) -> int:
        """Wait at most `wait_s` for a message, then read those that are there; return their number."""
        if wait_s > 0:
            self.link.select(wait_s)
        for count in range(MOST_MESSAGES):
            message = self.link.recv_msg()
            if message is None:
                return count
            self.take(message, self.clock())
        return MOST_MESSAGES

    def take(self, message: Any, now: float) -> None:
        """Take a message; those of other systems are left out, and of other components all but obstacles."""
        name, system, autopilot = message.get_type(), message.get_srcSystem(), message.get_srcComponent() == AUTOPILOT_1
        if not autopilot and name != "OBSTACLE_DISTANCE":
            return
        if name == "HEARTBEAT" and message.autopilot != INVALID_AUTOPILOT and message.type != GROUND_STATION:
            self.autopilots[system] = message.autopilot
            if self.system is None and self.wanted in (None, system):
                self.system, self.autopilot = system, message.autopilot
            if system == self.system:
                self.mode, self.armed = message.custom_mode, bool(message.base_mode & ARMED)
        if self.system is None or system != self.system:
            return
        self.counts[name] = self.counts.get(name, 0) + 1
        handler = getattr(self, "_on_" + name.lower(), None)
        if handler is not None:
            handler(message, now)

    def _on_local_position_ned(self, message: Any, now: float) -> None:
        self._position_message = now
        at = self.offset.message(1e-3 * message.time_boot_ms, now)
        self._place(at, (message.x, message.y, message.z), swap_world((message.vx, message.vy, message.vz)))

    def _place(self, at: float, position_ned: Any, velocity_w: np.ndarray) -> None:
        # an older message than the last is left out, unless the clock went back: the guard has to see that
        if self.position is None or at > self.position[0] or at < self.position[0] - 1.0:
            self.position = (at, swap_world(position_ned), velocity_w)

    def _on_attitude_quaternion(self, message: Any, now: float) -> None:
        at = self.offset.message(1e-3 * message.time_boot_ms, now)
        if self.attitude is None or at > self.attitude[0] or at < self.attitude[0] - 1.0:
            self.attitude = (at, swap_attitude((message.q1, message.q2, message.q3, message.q4)))

    def _on_odometry(self, message: Any, now: float) -> None:
        if now - self._position_message < 1.0 or message.frame_id not in LOCAL_POSES:
            return  # LOCAL_POSITION_NED is preferred
        at = self.offset.message(1e-6 * message.time_usec, now)
        if self.attitude is None or at > self.attitude[0] or at < self.attitude[0] - 1.0:
            self.attitude = (at, swap_attitude(message.q))
        velocity = np.array([message.vx, message.vy, message.vz], float)
        in_body = message.child_frame_id == BODY_FRD
        velocity = rotate(swap_attitude(message.q), swap_body(velocity)) if in_body else swap_world(velocity)
        self._place(at, (message.x, message.y, message.z), velocity)

    def _on_timesync(self, message: Any, now: float) -> None:
        if message.tc1 == 0:
            self._send("timesync_send", int(1e9 * now), message.ts1)
        else:
            self.offset.reply(1e-9 * message.ts1, 1e-9 * message.tc1, now)

    def _on_obstacle_distance(self, message: Any, now: float) -> None:
        if self.position is not None and self.attitude is not None:
            at = 1e-6 * message.time_usec + (self.offset.value or 0.0)
            at = at if abs(at - now) < OTHER_CLOCK_S else now  # Unix time, for example
            self.obstacles = ({"points_w": obstacle_points(message, self.position[1], self.attitude[1])}, at)

    @property
    def takes_setpoints(self) -> bool:
        """Whether the vehicle is armed and in the mode that follows setpoints: PX4's offboard, ArduPilot's guided."""
        if self.autopilot == PX4:
            return self.armed and (self.mode >> 16) & 255 == PX4_OFFBOARD
        return self.armed and self.autopilot == ARDUPILOT and self.mode == COPTER_GUIDED

    def inputs(self) -> Inputs | None:
        """Return the newest inputs, and set `points_time_s`; None before position and attitude have arrived."""
        if self.position is None or self.attitude is None:
            return None
        at, position, velocity = self.position
        if self.attitude[0] < at - SKEW_S:  # an attitude that stopped makes the inputs stale
            at = self.attitude[0]
        seen = read_points(self.points) if self.points is not None else self.obstacles
        if seen is None:
            seen, self.points_time_s = ({"points_w": np.zeros((0, 3))}, 0.0), None if self.blind else -math.inf
        else:
            self.points_time_s = finite_time(seen[1])
        return Inputs(at, position, velocity, self.attitude[1], **seen[0])

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _send(self, name: str, *values: Any) -> None:
        with self._lock:
            try:
                getattr(self.link.mav, name)(*values)
            except OSError:
                self.counts["send_failed"] = self.counts.get("send_failed", 0) + 1

    def tick(self) -> None:
        """Send what is due: heartbeat and time synchronization at 1 Hz, requests for messages every 5 s."""
        now = self.clock()
        if now - self._beat < 1.0:
            return
        self._beat = now
        self._send("heartbeat_send", 18, INVALID_AUTOPILOT, 0, 0, 4)  # an onboard computer, active
        self._send("timesync_send", 0, int(1e9 * now))
        if self.system is not None and now - self._asked > 5.0:
            self._asked = now
            for number, rate in WANTED.items():
                self._send(
                    "command_long_send", self.system, 1, SET_MESSAGE_INTERVAL, 0, number, 1e6 / rate, 0, 0, 0, 0, 0
                )

    def send_velocity(self, velocity_w: Any) -> None:
        """Send a velocity setpoint, m/s, ENU; the yaw is held."""
        if not self.allowed or self.system is None:
            return
        velocity_ned, zeros = swap_world(velocity_w).tolist(), (0.0, 0.0, 0.0)
        fields = (self.system, 1, LOCAL_NED, VELOCITY_MASK, *zeros, *velocity_ned, *zeros, 0.0, 0.0)
        self._send("set_position_target_local_ned_send", int(1e3 * self.clock()) & 0xFFFFFFFF, *fields)

    def request_hold(self) -> None:
        """Request the mode in which the flight controller stops and holds by itself: PX4's hold, ArduPilot's brake."""
        if not self.allowed or self.system is None:
            return
        modes = (PX4_AUTO, PX4_LOITER) if self.autopilot == PX4 else (COPTER_BRAKE, 0)
        self._send("command_long_send", self.system, 1, SET_MODE, 0, 1, *modes, 0, 0, 0, 0)

    def close(self) -> None:
        """Close the link."""
        self.link.close()


def check_port_is_free(address: str) -> None:
    """Raise LinkError if another program listens on the UDP port: pymavlink would share it, and one hears nothing."""
    _, host, port = address.split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise LinkError(f"Another program listens on {address}: end it, or choose another port.") from None
            raise


def read_points(points: Callable[[], Any]) -> tuple[dict[str, Any], Any] | None:
    """Return what the user's function returns; raise InputError if it fails or returns something else."""
    try:
        given = points()
    except Exception as error:
        raise InputError(f"the function of the points failed with {type(error).__name__}: {error}") from error
    if given is None:
        return None
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], dict) or set(given[0]) - ENTRIES:
        raise InputError(
            f"the function of the points must return None or (entries, time_s), where entries is a dict with some of "
            f"{', '.join(sorted(ENTRIES))}; it returned {type(given).__name__}"
        )
    return given


def finite_time(given: Any) -> float:
    """Return a time as a number; -inf, which is stale, if it is missing or not finite."""
    try:
        return float(given) if math.isfinite(given) else -math.inf
    except (TypeError, ValueError, OverflowError):
        return -math.inf


def obstacle_points(message: Any, position_w: np.ndarray, quaternion_wxyz: np.ndarray) -> np.ndarray:
    """Return the points of an OBSTACLE_DISTANCE message, [P, 3] m, ENU: arcs of its sectors at several heights.

    The message has one distance for each sector, at the sensor's height: an obstacle is taken to be upright.
    """
    raw = np.asarray(message.distances, float)
    width = float(getattr(message, "increment_f", 0.0) or message.increment)  # degrees, clockwise
    sectors = np.flatnonzero((raw >= message.min_distance) & (raw <= message.max_distance) & (raw != NO_DISTANCE))
    steps = math.ceil(abs(width)) + 1
    within = (np.arange(steps) + 0.5) / steps - 0.5
    angle = np.radians(getattr(message, "angle_offset", 0.0) + width * (sectors[:, None] + within)).ravel()
    distance = np.repeat(0.01 * raw[sectors], steps)
    flat = np.stack([distance * np.cos(angle), -distance * np.sin(angle), np.zeros_like(angle)], axis=-1)
    points = (flat + np.stack([[0.0, 0.0, z] for z in OBSTACLE_HEIGHTS_M])[:, None]).reshape(-1, 3)
    in_body = getattr(message, "frame", BODY_FRD) == BODY_FRD  # level: turned by yaw alone; else sector 0 is north
    yaw = yaw_of(quaternion_wxyz) if in_body else 0.5 * math.pi
    return rotate((math.cos(0.5 * yaw), 0.0, 0.0, math.sin(0.5 * yaw)), points) + position_w
