"""Fly a folder on a Crazyflie with a flow deck and a Multi-ranger deck. A dry run unless --send is given.

    pip install fledge-runtime cflib
    python crazyflie.py FOLDER --goal 2,0,0.5                 # prints commands, the motors stay off
    python crazyflie.py FOLDER --goal 2,0,0.5 --send          # takes off after you have typed `fly`

The Multi-ranger has five beams: a policy sees little with them. Begin in an empty room, with a soft floor. The position is
that of the Crazyflie's own estimator, in metres from where it was switched on, x ahead. When setpoints stop, the firmware
levels after half a second and stops its motors after two: it falls. Ctrl-C lands it.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

import fledge_runtime
from fledge_runtime.arguments import numbers
from fledge_runtime.bridges.clock import ClockOffset
from fledge_runtime.fly import fly
from fledge_runtime.log import FlightLog, LoggedPilot
from fledge_runtime.safety import Cylinder, Guard, Limits

STATE = [f"stateEstimate.{name}" for name in ("x", "y", "z", "vx", "vy", "vz")]  # 24 of the 26 bytes of a packet
QUATERNION = [f"stateEstimate.{name}" for name in ("qw", "qx", "qy", "qz")]
AHEAD_DEG = {"range.front": 0.0, "range.left": 90.0, "range.back": 180.0, "range.right": -90.0}
CONE_DEG, RANGE_MM = 12.0, 3500  # half the width of a beam; farther readings are noise
LANDING_S = 3.0


class CrazyflieVehicle:
    """A vehicle for `fledge_runtime.fly.fly`; call `take_state` and `take_ranges` with what the Crazyflie logs."""

    def __init__(self, cf: Any, send: bool, clock: Any = time.monotonic) -> None:
        self.cf, self.allowed, self.clock, self.offset = cf, send, clock, ClockOffset()
        self.engaged, self.state, self.points_time_s = False, None, None  # type: bool, Any, float | None
        self.quaternion, self.points = None, np.zeros((0, 3))  # type: Any, np.ndarray

    def take_state(self, timestamp_ms: int, data: dict[str, float], block: Any = None) -> None:
        """Take position and velocity."""
        values = [float(data[name]) for name in STATE]
        self.state = (self.offset.message(1e-3 * timestamp_ms, self.clock()), values[:3], values[3:])

    def take_ranges(self, timestamp_ms: int, data: dict[str, float], block: Any = None) -> None:
        """Take attitude and ranges."""
        self.quaternion = [float(data[name]) for name in QUATERNION]
        self.points = beams(data)
        self.points_time_s = self.offset.message(1e-3 * timestamp_ms, self.clock())

    def inputs(self) -> fledge_runtime.Inputs | None:
        """Return the newest inputs; None before all have arrived."""
        if self.state is None or self.quaternion is None:
            return None
        return fledge_runtime.Inputs(*self.state, self.quaternion, points_b=self.points)

    @property
    def takes_setpoints(self) -> bool:
        """Whether it has taken off and not been told to land."""
        return self.engaged

    def poll(self, wait_s: float = 0.0) -> None:
        """Wait: cflib calls from a thread of its own."""
        time.sleep(wait_s)

    def tick(self) -> None:
        """Do nothing: the radio link keeps itself alive."""

    def send_velocity(self, velocity_w: Any) -> None:
        """Send a velocity, m/s; the yaw is held."""
        if self.allowed and self.engaged:
            self.cf.commander.send_velocity_world_setpoint(*(float(value) for value in velocity_w), 0.0)

    def request_hold(self) -> None:
        """Land: a Crazyflie has no remote control to hand over to."""
        if self.allowed and self.engaged:
            self.engaged = False
            self.cf.commander.send_notify_setpoint_stop()
            self.cf.high_level_commander.land(0.0, LANDING_S)


def beams(data: dict[str, float]) -> np.ndarray:
    """Return the points of a Multi-ranger's readings (mm), [P, 3] m, body: a patch across each beam."""
    spread = np.radians(np.arange(-CONE_DEG, CONE_DEG + 1.0, 2.0))
    side, up = (grid.ravel() for grid in np.meshgrid(spread, spread))
    found = []
    for name, ahead in AHEAD_DEG.items():
        if 0 < data[name] < RANGE_MM:
            turned = math.radians(ahead) + side
            unit = np.stack([np.cos(up) * np.cos(turned), np.cos(up) * np.sin(turned), np.sin(up)], axis=-1)
            found.append(1e-3 * data[name] * unit)
    if 0 < data["range.up"] < RANGE_MM:
        found.append(1e-3 * data["range.up"] * np.stack([np.sin(side), np.sin(up), np.cos(side) * np.cos(up)], axis=-1))
    return np.concatenate(found) if found else np.zeros((0, 3))


def listen(cf: Any, vehicle: CrazyflieVehicle, make_block: Any) -> None:
    """Log state and ranges at 50 Hz."""
    for name, fields, take in (
        ("state", [(field, "float") for field in STATE], vehicle.take_state),
        (
            "ranges",
            [(field, "float") for field in QUATERNION] + [(field, "uint16_t") for field in (*AHEAD_DEG, "range.up")],
            vehicle.take_ranges,
        ),
    ):
        block = make_block(name=name, period_in_ms=20)
        for field, kind in fields:
            block.add_variable(field, kind)
        cf.log.add_config(block)
        block.data_received_cb.add_callback(take)
        block.start()


def run(cf: Any, make_block: Any, given: argparse.Namespace, ask: Any = input) -> dict[str, Any]:
    """Fly a connected Crazyflie. Return facts of the flight."""
    deployment, vehicle = fledge_runtime.load(given.folder), CrazyflieVehicle(cf, given.send)
    listen(cf, vehicle, make_block)
    limits = Limits(speed_m_s=given.speed, goal_radius_m=float(deployment.contract["goal_radius_m"]))
    with FlightLog(given.log, {"identity": deployment.contract["identity"]}) as log:
        fence = Cylinder((0.0, 0.0), given.radius, -0.1, 1.5)
        guard = Guard(LoggedPilot(deployment.pilot(), log), limits, fence, given.send)
        guard.reset(given.goal)
        if given.send:
            if ask("Type `fly` to take off: ").strip() != "fly":
                return {"reason": "stopped"}
            cf.high_level_commander.takeoff(given.goal[2], 2.0)
            vehicle.poll(given.takeoff_s)
            vehicle.engaged = True
        try:
            return fly(vehicle, guard, float(deployment.contract["decision_s"]), given.duration, log)
        finally:
            vehicle.request_hold()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--goal", type=numbers(3), required=True, metavar="X,Y,Z")
    parser.add_argument("--uri", default="radio://0/80/2M/E7E7E7E7E7")
    parser.add_argument("--send", action="store_true", help="take off and fly")
    parser.add_argument("--speed", type=float, default=0.2, help="m/s")
    parser.add_argument("--radius", type=float, default=3.0, help="of the geofence around the origin, m")
    parser.add_argument("--duration", type=float, default=30.0, help="s")
    parser.add_argument("--takeoff-s", type=float, default=3.0)
    parser.add_argument("--log", type=Path, default=Path(time.strftime("crazyflie-%Y%m%d-%H%M%S.flog")))
    given = parser.parse_args()
    import cflib.crtp
    from cflib.crazyflie import Crazyflie
    from cflib.crazyflie.log import LogConfig
    from cflib.crazyflie.syncCrazyflie import SyncCrazyflie

    cflib.crtp.init_drivers()
    with SyncCrazyflie(given.uri, cf=Crazyflie(rw_cache="./cache")) as connected:
        print(run(connected.cf, LogConfig, given))
        time.sleep(LANDING_S if given.send else 0.0)


if __name__ == "__main__":
    main()
