"""Fly a pilot through the fake flight controller, in real time: `fledge-runtime simulate --mavlink`."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from fledge_runtime.bridges.fake_flight_controller import FakeFlightController, Link
from fledge_runtime.bridges.mavlink import MavlinkBridge
from fledge_runtime.columns import Columns
from fledge_runtime.fly import fly
from fledge_runtime.log import FlightLog, LoggedPilot
from fledge_runtime.safety import Guard
from fledge_runtime.simulate import HEIGHT_M, Flight, limits_for

SCAN_S = 0.05


def practise(
    deployment: Any,
    seed: int,
    link: tuple[float, float, float] = (0.0, 0.0, 0.0),
    distance: float = 20.0,
    density: float = 6.0,
    speed: float | None = None,
    log: FlightLog | None = None,
) -> tuple[dict[str, Any], Flight]:
    """Fly once. Return the facts of the flight, and its way; as `simulate` does.

    Args:
        link: Share of datagrams that are lost, delay and jitter, s.
    """
    start, goal = np.array([0.0, 0.0, HEIGHT_M]), np.array([distance, 0.0, HEIGHT_M])
    world, limits = Columns(seed, start, goal, density), limits_for(deployment.contract, speed)
    pilot = deployment.pilot() if log is None else LoggedPilot(deployment.pilot(), log)
    bridge = MavlinkBridge("udpin:127.0.0.1:0", send=True)
    fake = FakeFlightController(local_port(bridge), start, link=Link(*link), world=world, seed=seed)
    bridge.points = Scanner(fake)
    guard, ended = Guard(pilot, limits, send=True), threading.Event()
    guard.reset(goal)
    watch = threading.Thread(target=select_offboard, args=(fake, ended), daemon=True)
    begun = time.monotonic()
    try:
        with fake:
            watch.start()
            most = 3.0 * distance / limits.speed_m_s + 15.0
            told = fly(bridge, guard, float(deployment.contract["decision_s"]), most, log, tell=lambda text: None)
    finally:
        ended.set()
        watch.join(2.0)
        bridge.close()
    flight, flown = Flight(world, start, goal), [one for one in fake.trace if one[1] == "offboard"]
    for _, _, position, _ in flown:
        flight.note(position)
    seconds = flown[-1][0] - flown[0][0] if flown else time.monotonic() - begun
    more = {"decisions": told["decisions"], "worst_ms": told["worst_ms"], "resumes": told["resumes"], "mode": fake.mode}
    return {"seed": seed, **flight.result(told["reason"], seconds), **more}, flight


def local_port(bridge: MavlinkBridge) -> int:
    """Return the UDP port that a bridge listens on."""
    return int(bridge.link.port.getsockname()[1])


def select_offboard(fake: FakeFlightController, ended: threading.Event) -> None:
    """Be the human pilot: select offboard mode as soon as it is accepted, once."""
    while not ended.wait(0.1):
        if fake.pilot_selects("offboard"):
            return


class Scanner:
    """A LiDAR at 20 Hz on the fake flight controller's drone."""

    def __init__(self, fake: FakeFlightController) -> None:
        self.fake, self.last = fake, fake.scan()

    def __call__(self) -> tuple[dict[str, Any], float]:
        if time.monotonic() - self.last[1] >= SCAN_S:
            self.last = self.fake.scan()
        return self.last
