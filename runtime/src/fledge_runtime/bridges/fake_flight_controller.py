"""A flight controller to practise on: MAVLink over loopback UDP, a plain quadrotor behind it. No hardware, no radio.

It answers as PX4 or ArduPilot: it streams odometry, follows velocity setpoints in offboard mode alone, refuses that mode
without a stream of setpoints, and leaves it for hold mode when setpoints stop for a second. Its link loses, delays and
reorders datagrams as told; its faults are attributes that may change in flight.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import socket
import threading
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from fledge_runtime.bridges.frames import swap_attitude, swap_world
from fledge_runtime.bridges.mavlink import SET_MESSAGE_INTERVAL, SET_MODE, import_mavutil
from fledge_runtime.quadrotor import STEP_S, Quadrotor

MODES = {
    "px4": {"position": 3 << 16, "offboard": 6 << 16, "hold": 4 << 16 | 3 << 24},
    "ardupilot": {"position": 5, "offboard": 4, "hold": 17},  # loiter, guided, brake
}
AUTOPILOT = {"px4": 12, "ardupilot": 3}
ARM = 400  # MAV_CMD_COMPONENT_ARM_DISARM
SECTORS, SECTOR_DEG, FAR_CM = 72, 5.0, 1000
RATES = {"odometry": 50.0, "heartbeat": 1.0, "obstacles": 10.0}
BRAKED_M_S = 0.1
BOOT_S = 100.0  # its clock when it starts


class Link(NamedTuple):
    """What a link does to each datagram, in both directions."""

    loss: float = 0.0  # share
    delay_s: float = 0.0
    jitter_s: float = 0.0  # uniform, added to the delay


NO_FAULTS = Link()


class FakeFlightController:
    """Runs in a thread of its own between `start` and `stop`.

    Args:
        port: Of the runtime, on 127.0.0.1.
        place: Of the drone in the beginning, m, ENU; above 0.1 m it hovers, armed, in position mode.
        world: Has `ranges(origin, rays, range_m)`; sent as OBSTACLE_DISTANCE. None: nothing is sent.
    """

    def __init__(
        self,
        port: int,
        place: Any = (0.0, 0.0, 1.5),
        yaw: float = 0.0,
        link: Link = NO_FAULTS,
        world: Any = None,
        autopilot: str = "px4",
        offboard_loss_s: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.runtime, self.link, self.world, self.autopilot = ("127.0.0.1", port), link, world, autopilot
        self.offboard_loss_s = offboard_loss_s if autopilot == "px4" else 3.0  # COM_OF_LOSS_T; GUID_TIMEOUT
        self.mavlink = import_mavutil().mavlink
        self.codec = self.mavlink.MAVLink(None, srcSystem=1, srcComponent=1)
        self.codec.robust_parsing = True
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.drone = Quadrotor(place, yaw)
        self.armed, self.mode, self.failsafe = self.drone.position[2] > 0.1, "position", False
        self.braking = False
        self.place, self.setpoint, self.setpoint_time = self.drone.position.copy(), np.zeros(3), -math.inf
        self.setpoints: deque[tuple[float, np.ndarray]] = deque(maxlen=20_000)  # time and velocity, ENU
        self.trace: deque[tuple[float, str, np.ndarray, np.ndarray]] = deque(
            maxlen=20_000
        )  # time, mode, place, velocity
        self.asked_to_arm = 0
        # faults: stop odometry, send NaN, add to the clock
        self.muted, self.broken, self.clock_shift_s = False, False, 0.0
        self._random, self._order = random.Random(seed), itertools.count()
        self._incoming: list[Any] = []
        self._outgoing: list[Any] = []
        self._due = dict.fromkeys(RATES, 0.0)
        self._begun = self._flown = time.monotonic()
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fake-flight-controller", daemon=True)

    def start(self) -> FakeFlightController:
        """Start, and return itself."""
        self._begun = self._flown = time.monotonic()
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop and close the socket."""
        self._stop.set()
        self._thread.join(5.0)
        self.socket.close()

    def __enter__(self) -> FakeFlightController:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    # ---- the human pilot ---------------------------------------------------------------------------------------------

    def pilot_selects(self, mode: str) -> bool:
        """Select position, offboard or hold; return False if it was refused: offboard without a stream of setpoints."""
        with self._lock:
            now = time.monotonic()
            if mode == "offboard" and self.autopilot == "px4":
                recent = [at for at, _ in self.setpoints if at > now - 1.0]
                if len(recent) < 2 or now - self.setpoint_time > 0.5:
                    return False
            self._enter(mode)
            return True

    def pilot_arms(self, armed: bool = True) -> None:
        """Arm or disarm."""
        with self._lock:
            self.armed = armed
            self._due["heartbeat"] = 0.0

    def scan(self, sensor: dict[str, Any] | None = None) -> tuple[dict[str, Any], float]:
        """Return what a LiDAR on the drone sees now, and the time."""
        with self._lock:
            now, position, quaternion = time.monotonic(), self.drone.position.copy(), self.drone.quaternion
        return {"points_w": self.world.points(position, quaternion, sensor)}, now

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(0.003):
            now = time.monotonic()
            with self._lock:
                self._receive(now)
                self._fly(now)
                self._report(now)
            self._flush(now)

    def _clock(self, now: float) -> float:
        return now - self._begun + BOOT_S + self.clock_shift_s

    def _enter(self, mode: str) -> None:
        self.mode, self.place, self.braking = mode, self.drone.position.copy(), True
        self._due["heartbeat"] = 0.0  # told at once

    def _fly(self, now: float) -> None:
        silent = now - self.setpoint_time > self.offboard_loss_s
        if self.mode == "offboard" and silent and self.autopilot == "px4":
            self.failsafe = True
            self._enter("hold")
        for _ in range(min(int((now - self._flown) / STEP_S), 200)):
            self._flown += STEP_S
            if not self.armed:
                continue
            if self.mode == "offboard":
                self.drone.step(np.zeros(3) if silent else self.setpoint)  # ArduPilot stops in guided mode
                self.place = self.drone.position.copy()
            elif self.braking:  # stop first, then hold the place
                self.drone.step(np.zeros(3))
                self.place = self.drone.position.copy()
                self.braking = float(np.linalg.norm(self.drone.velocity)) > BRAKED_M_S
            else:
                self.drone.hold(self.place)

    def _report(self, now: float) -> None:
        due = [name for name, at in self._due.items() if now >= at]
        for name in due:
            self._due[name] = now + 1.0 / RATES[name]
        drone, boot_ms = self.drone, int(1e3 * self._clock(now)) & 0xFFFFFFFF
        if "heartbeat" in due:
            base = 1 | (128 if self.armed else 0)
            custom = MODES[self.autopilot][self.mode]
            self._send(self.mavlink.MAVLink_heartbeat_message(2, AUTOPILOT[self.autopilot], base, custom, 4, 3), now)
        if "odometry" in due:
            self.trace.append((now, self.mode, drone.position.copy(), drone.velocity.copy()))
            if not self.muted:
                x, y, z = (math.nan,) * 3 if self.broken else swap_world(drone.position)
                velocity, attitude = swap_world(drone.velocity), swap_attitude(drone.quaternion)
                self._send(self.mavlink.MAVLink_local_position_ned_message(boot_ms, x, y, z, *velocity), now)
                self._send(self.mavlink.MAVLink_attitude_quaternion_message(boot_ms, *attitude, 0.0, 0.0, 0.0), now)
        if "obstacles" in due and self.world is not None and not self.muted:
            self._send(self._obstacles(now), now)

    def _obstacles(self, now: float) -> Any:
        """Return the nearest hit within each sector, from straight ahead, clockwise."""
        each = 5
        turn = -np.radians((np.arange(SECTORS * each) + 0.5) * SECTOR_DEG / each - 0.5 * SECTOR_DEG) + self.drone.yaw
        rays = np.stack([np.cos(turn), np.sin(turn), np.zeros_like(turn)], axis=-1)
        nearest = self.world.ranges(self.drone.position, rays, 0.01 * FAR_CM).reshape(SECTORS, each).min(axis=1)
        distances = [FAR_CM + 1 if math.isinf(d) else round(100 * d) for d in nearest]
        fields = (distances, int(SECTOR_DEG), 10, FAR_CM, SECTOR_DEG, 0.0, 12)
        return self.mavlink.MAVLink_obstacle_distance_message(int(1e6 * self._clock(now)), 0, *fields)

    # ---- messages ----------------------------------------------------------------------------------------------------

    def _delayed(self, queue: list[Any], data: bytes, now: float) -> None:
        if self._random.random() >= self.link.loss:
            at = now + self.link.delay_s + self._random.random() * self.link.jitter_s
            heapq.heappush(queue, (at, next(self._order), data))

    def _send(self, message: Any, now: float) -> None:
        data = message.pack(self.codec)
        self.codec.seq = (self.codec.seq + 1) % 256
        self._delayed(self._outgoing, data, now)

    def _flush(self, now: float) -> None:
        while self._outgoing and self._outgoing[0][0] <= now:
            try:
                self.socket.sendto(heapq.heappop(self._outgoing)[2], self.runtime)
            except OSError:
                return  # the runtime is not there (yet)

    def _receive(self, now: float) -> None:
        for _ in range(200):
            try:
                self._delayed(self._incoming, self.socket.recv(2048), now)
            except OSError:  # nothing there, or the runtime has closed its port
                break
        while self._incoming and self._incoming[0][0] <= now:
            for message in self.codec.parse_buffer(heapq.heappop(self._incoming)[2]) or ():
                self._take(message, now)

    def _take(self, message: Any, now: float) -> None:
        name = message.get_type()
        if name == "SET_POSITION_TARGET_LOCAL_NED":
            assert message.type_mask & 0b111000 == 0, "the fake flight controller follows velocities alone"
            self.setpoint, self.setpoint_time = swap_world((message.vx, message.vy, message.vz)), now
            self.setpoints.append((now, self.setpoint))
        elif name == "TIMESYNC" and message.tc1 == 0:
            self._send(self.mavlink.MAVLink_timesync_message(int(1e9 * self._clock(now)), message.ts1), now)
        elif name == "COMMAND_LONG":
            accepted = message.command in (SET_MODE, SET_MESSAGE_INTERVAL)
            if message.command == SET_MODE:
                custom = int(message.param2)
                if self.autopilot == "px4":
                    custom = custom << 16 | int(message.param3) << 24
                modes = [mode for mode, number in MODES[self.autopilot].items() if number == custom]
                accepted = modes == ["hold"]
                if accepted:
                    self._enter("hold")
            self.asked_to_arm += int(message.command == ARM)
            self._send(self.mavlink.MAVLink_command_ack_message(message.command, 0 if accepted else 2), now)
