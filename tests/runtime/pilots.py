"""Pilots without a network, and a flight through the fake flight controller, for the tests of the runtime."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fledge_runtime import Inputs
from fledge_runtime.bridges.fake_flight_controller import FakeFlightController, Link
from fledge_runtime.bridges.mavlink import MavlinkBridge
from fledge_runtime.bridges.practice import local_port, select_offboard
from fledge_runtime.fly import fly
from fledge_runtime.limits import Limits
from fledge_runtime.log import FlightLog, LoggedPilot
from fledge_runtime.safety import Guard

START, GOAL = (0.0, 0.0, 1.5), (3.0, 1.0, 1.5)


# Two busy cores may stop a thread for a second: a test tightens the one limit that it is about.
PATIENT = {
    "input_timeout_s": 5.0,
    "points_timeout_s": 5.0,
    "decision_timeout_s": 5.0,
    "clock_jump_s": 3.0,
    "frozen_s": 20.0,
}
PATIENT |= {"position_jump_m": 3.0}


class StraightPilot:
    """Flies straight to the goal at 1 m/s."""

    def __init__(self) -> None:
        self.sleep_s, self.error, self.steps = 0.0, None, 0  # type: float, Exception | None, int

    def reset(self, position_w: np.ndarray, goal_w: np.ndarray) -> None:
        self.goal_w = goal_w

    def step(self, inputs: Inputs) -> Any:
        self.steps += 1
        time.sleep(self.sleep_s)
        if self.error is not None:
            raise self.error
        away = self.goal_w - np.asarray(inputs.position_w)
        return type("Command", (), {"velocity_w": away / max(float(np.linalg.norm(away)), 1.0)})()


class Practice:
    """A flight of a StraightPilot through the fake flight controller.

    Args:
        trouble: Called with this object a second after offboard mode began.
    """

    def __init__(
        self,
        link: Link | None = None,
        fence: Any = None,
        send: bool = True,
        trouble: Callable[[Practice], None] | None = None,
        log: FlightLog | None = None,
        autopilot: str = "px4",
        **limits: Any,
    ) -> None:
        self.bridge, self.pilot = MavlinkBridge("udpin:127.0.0.1:0", send=send, blind=True), StraightPilot()
        flown = self.pilot if log is None else LoggedPilot(self.pilot, log)
        self.guard = Guard(flown, Limits(**{**PATIENT, "speed_m_s": 1.0, "hover_s": 1.0, **limits}), fence, send)
        self.guard.reset(GOAL)
        self.fake = FakeFlightController(local_port(self.bridge), START, link=link or Link(), autopilot=autopilot)
        self.fake.offboard_loss_s = 5.0
        self.trouble, self.log, self.ended = trouble, log, threading.Event()

    def fly(self, seconds: float = 15.0) -> dict[str, Any]:
        """Fly, and return the facts of the flight; the fake flight controller flies on for half a second."""
        human = threading.Thread(target=self._human, daemon=True)
        with self.fake:
            human.start()
            try:
                told = fly(self.bridge, self.guard, 0.05, seconds, self.log, tell=lambda text: None)
                time.sleep(0.5)
            finally:
                self.ended.set()
                human.join(2.0)
                self.bridge.close()
        return told

    def _human(self) -> None:
        select_offboard(self.fake, self.ended)
        if self.trouble is not None and not self.ended.wait(1.0):
            self.trouble(self)

    @property
    def states(self) -> list[tuple[str, str]]:
        """States and reasons of the flight, in order."""
        return [(state, reason) for _, state, reason in self.guard.history]

    def at_rest(self) -> bool:
        """Whether the drone holds its place in a mode of the flight controller's own."""
        return self.fake.mode == "hold" and float(np.linalg.norm(self.fake.drone.velocity)) < 0.3
