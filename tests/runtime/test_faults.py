"""Faults of sensors, clocks and outputs: each hands over or hovers, and none passes as free space or ends in silence."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge_runtime import Inputs
from fledge_runtime.fly import fly
from fledge_runtime.limits import Limits
from fledge_runtime.log import FlightLog, read_log
from fledge_runtime.safety import Guard
from tests.runtime.pilots import PATIENT, StraightPilot
from tests.runtime.test_safety import Flight, changed, stale


@pytest.mark.parametrize("ahead", [1.7e9, 60.0, 0.3, math.inf])
def test_a_cloud_from_the_future_is_a_clock_jump_and_not_a_cloud_that_never_ages(ahead: float) -> None:
    flight = Flight()
    flight.points_time = flight.time + ahead
    assert flight.step(0.1)[-1].reason == "clock_jump"
    assert flight.step(5.0)[-1].state == "handed_over"


@pytest.mark.parametrize("measured", [math.nan, "now", []])
def test_a_cloud_whose_time_is_no_number_is_a_clock_jump(measured: Any) -> None:
    flight = Flight()
    flight.step(0.5)
    flight.time += 0.05
    flight.guard.update(Inputs(flight.time, flight.position, np.zeros(3), [1.0, 0.0, 0.0, 0.0]), True, measured)
    assert flight.guard.output().reason == "clock_jump"


def test_a_clock_set_back_while_hovering_does_not_prolong_the_hover() -> None:
    flight = Flight(hover_s=2.0)
    flight.step(1.0)
    stale(flight)
    assert flight.step(1.0)[-1].state == "hovering"
    flight.time -= 90.0
    assert flight.step(2.2)[-1].state == "handed_over"


def test_a_leap_during_a_gap_of_odometry_is_a_position_jump() -> None:
    flight = Flight(speed_m_s=2.0, hover_s=9.0)
    flight.step(0.5)
    usual, flight.alter = flight.alter, lambda inputs: None
    assert flight.step(2.5)[-1].reason == "stale_odometry"
    flight.alter, flight.position = usual, flight.position + np.array([0.0, 12.0, 0.0])
    assert flight.step(0.1)[-1].reason == "position_jump"


BLIND: dict[str, dict[str, Any]] = {
    "a depth image of zeros": {"depth": np.zeros((4, 5), np.float32)},
    "negative depths": {"depth": -np.ones((4, 5), np.float32)},
    "an empty depth image": {"depth": np.zeros((0, 5), np.float32)},
    "a depth image in millimetres": {"depth": np.full((4, 5), 1500, np.uint16)},
    "a cloud in millimetres": {"points_b": np.full((4, 3), 1500, np.int32)},
    "rows of several lengths": {"points_w": [[1.0, 2.0, 3.0], [1.0, 2.0]]},
    "a cloud of objects": {"points_w": [[None, 0.0, 0.0]]},
}


@pytest.mark.parametrize("name", BLIND)
def test_a_sensor_that_sees_nothing_is_no_free_space(name: str) -> None:
    flight = Flight()
    flight.alter = changed(depth=np.full((4, 5), math.inf, np.float32))  # nothing within range
    assert flight.states(0.5) == ["flying"]
    flight.alter = changed(**BLIND[name])
    assert flight.step(0.1)[-1].reason == "invalid_input"


# ---- fly() ---------------------------------------------------------------------------------------------------------------


class Vehicle:
    """Follows every velocity at once, in real time, until hold mode is requested."""

    def __init__(self, engaged: bool = True) -> None:
        self.takes_setpoints, self.points_time_s, self.holds = engaged, None, 0
        self.velocity, self.position, self.at = np.zeros(3), np.array([0.0, 0.0, 1.5]), time.monotonic()
        self.reads, self.error, self.fails_from = 0, None, 10**9  # type: int, BaseException | None, int

    def poll(self, wait_s: float) -> None:
        time.sleep(0.005)
        now = time.monotonic()
        self.position, self.at = self.position + (now - self.at) * self.velocity, now

    def inputs(self) -> Inputs:
        self.reads += 1
        if self.error is not None and self.reads >= self.fails_from:
            raise self.error
        return Inputs(self.at, self.position, self.velocity, [1.0, 0.0, 0.0, 0.0], points_w=np.zeros((0, 3)))

    def tick(self) -> None:
        pass

    def send_velocity(self, velocity_w: Any) -> None:
        self.velocity = np.asarray(velocity_w, float)

    def request_hold(self) -> None:
        self.holds, self.takes_setpoints = self.holds + 1, False


def flown(vehicle: Vehicle, seconds: float = 20.0, **words: Any) -> dict[str, Any]:
    guard = Guard(StraightPilot(), Limits(**{**PATIENT, "speed_m_s": 1.0, "hover_s": 0.3}), send=True)
    guard.reset((2.0, 0.0, 1.5))
    return fly(vehicle, guard, 0.05, seconds, **{"tell": lambda text: None, **words})


def test_an_output_that_fails_does_not_end_a_flight() -> None:
    def tell(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    vehicle = Vehicle()
    assert flown(vehicle, tell=tell)["reason"] == "goal_reached"
    assert vehicle.holds >= 1


def test_a_log_that_fails_does_not_end_a_flight() -> None:
    class Log:
        error = ""

        def add(self, *given: Any, **arrays: Any) -> None:
            raise OSError(28, "No space left on device")

        inputs = add

    vehicle = Vehicle()
    assert flown(vehicle, log=Log())["reason"] == "goal_reached"
    assert vehicle.holds >= 1


def test_inputs_that_raise_hand_over_and_are_no_ctrl_c(tmp_path: Path) -> None:
    vehicle, said = Vehicle(), []  # type: Vehicle, list[str]
    vehicle.error, vehicle.fails_from = RuntimeError("the driver died"), 5
    with FlightLog(tmp_path / "a.flog") as log:
        told = flown(vehicle, log=log, tell=said.append)
    assert (told["reason"], told["error"]) == ("input_failed", "RuntimeError: the driver died")
    assert vehicle.holds >= 1
    assert any("the driver died" in text for text in said)
    events = [record.facts for record in read_log(tmp_path / "a.flog") if record.kind == "event"]
    assert {"error": "RuntimeError: the driver died"} in events
    assert events[-1]["reason"] == "input_failed"


def test_ctrl_c_hands_over_as_stopped() -> None:
    vehicle = Vehicle()
    vehicle.error, vehicle.fails_from = KeyboardInterrupt(), 5
    told = flown(vehicle)
    assert (told["reason"], told["error"]) == ("stopped", "")
    assert vehicle.holds >= 1


def test_the_end_of_the_duration_is_a_reason_of_its_own_and_waiting_is_told() -> None:
    told = flown(Vehicle(), seconds=0.5)
    assert (told["reason"], told["flew"]) == ("duration", True)
    told = flown(Vehicle(engaged=False), seconds=0.3)
    assert (told["reason"], told["flew"], told["decisions"]) == ("duration", False, 0)


def test_the_end_of_a_log_is_told_once_in_flight(tmp_path: Path) -> None:
    said: list[str] = []
    with FlightLog(tmp_path / "a.flog", max_bytes=2000) as log:
        flown(Vehicle(), seconds=2.5, log=log, tell=said.append)
    assert sum("largest size" in text for text in said) == 1
    assert log.dropped > 10
