"""The guard of the runtime: each fault ends in the state that the table documents, and no velocity leaves the limits."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge_runtime import Inputs
from fledge_runtime.safety import AT_ONCE, REASONS, Box, Cylinder, Guard, Limits, tilt_deg

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "robot.md"
GOAL = (10.0, 0.0, 1.5)
STEP = 0.05  # s, of the decisions and of the output


class FakePilot:
    """Flies ahead at `speed`."""

    def __init__(self, speed: float = 2.0) -> None:
        self.velocity: Any = np.array([speed, 0.0, 0.0])
        self.resets: list[np.ndarray] = []
        self.steps = 0
        self.told: list[Any] = []  # flown_w of each step

    def reset(self, position_w: np.ndarray, goal_w: np.ndarray) -> None:
        self.resets.append(position_w)

    def step(self, inputs: Inputs) -> Any:
        self.steps += 1
        self.told.append(inputs.flown_w)
        if isinstance(self.velocity, Exception):
            raise self.velocity
        return type("Command", (), {"velocity_w": self.velocity})()


class Flight:
    """A guarded flight on a clock of its own: a drone that follows each command at once."""

    def __init__(self, pilot: FakePilot | None = None, fence: Any = None, send: bool = True, **limits: Any) -> None:
        self.time, self.position, self.velocity = 100.0, np.array([0.0, 0.0, 1.5]), np.zeros(3)
        self.pilot = pilot or FakePilot()
        self.guard = Guard(self.pilot, Limits(**limits), fence, send, clock=lambda: self.time)
        self.guard.reset(GOAL)
        self.deciding, self.points_time, self.engaged = True, math.nan, True
        self.alter: Any = lambda inputs: inputs  # what goes wrong with the inputs; None: none arrive

    def step(self, seconds: float = STEP) -> list[Any]:
        out = []
        for _ in range(round(seconds / STEP)):
            self.time += STEP
            inputs = self.alter(Inputs(self.time - 0.02, self.position.copy(), self.velocity, [1.0, 0.0, 0.0, 0.0]))
            if self.deciding and inputs is not None:
                points_time = None if math.isnan(self.points_time) else self.points_time
                self.guard.update(inputs, self.engaged, points_time)
            command = self.guard.output()
            self.velocity = command.velocity_w
            self.position = self.position + self.velocity * STEP
            out.append(command)
        return out

    def states(self, seconds: float) -> list[str]:
        return list(dict.fromkeys(command.state for command in self.step(seconds)))


def changed(**changes: Any) -> Any:
    return lambda inputs: dataclasses.replace(inputs, **changes)


# ---- limits ------------------------------------------------------------------------------------------------------------


def test_a_guard_is_a_dry_run_at_a_fifth_of_a_metre_per_second_by_default() -> None:
    guard = Guard(FakePilot())
    assert guard.send is False
    assert guard.limits.speed_m_s == 0.2


def test_a_dry_run_computes_commands_and_never_sends_or_asks_for_a_mode() -> None:
    flight = Flight(send=False)
    commands = flight.step(2.0)
    flight.alter = changed(position_w=[math.nan, 0.0, 1.0])
    commands += flight.step(6.0)
    assert max(np.linalg.norm(c.velocity_w) for c in commands) == pytest.approx(0.2)
    assert commands[-1].state == "handed_over"
    assert not any(c.send or c.hold for c in commands)


def test_commands_stay_within_the_speed_and_change_by_the_acceleration_at_most() -> None:
    pilot, rng = FakePilot(), np.random.default_rng(0)
    flight, before = Flight(pilot, speed_m_s=1.5, acceleration_m_s2=2.0), np.zeros(3)
    fastest = 0.0
    for _ in range(200):
        pilot.velocity = rng.normal(size=3) * [3.0, 3.0, 0.3]
        (command,) = flight.step()
        if command.state == "flying":
            assert np.linalg.norm(command.velocity_w - before) <= 2.0 * STEP + 1e-9
        before, fastest = command.velocity_w, max(fastest, float(np.linalg.norm(command.velocity_w)))
    assert 0.5 < fastest <= 1.5 + 1e-9


def test_the_policy_is_told_what_was_sent() -> None:
    flight = Flight(speed_m_s=0.5)
    sent = [command.velocity_w for command in flight.step(2.0)]
    np.testing.assert_array_equal(flight.pilot.told[1:], sent[:-1])
    assert sent[0][0] < sent[-1][0] == 0.5


def test_a_command_within_the_limits_is_the_policys_own() -> None:
    flight = Flight(FakePilot(0.1))
    assert flight.step(1.0)[-1].velocity_w.tolist() == [0.1, 0.0, 0.0]


# ---- states ------------------------------------------------------------------------------------------------------------


def test_the_flight_begins_when_the_flight_controller_takes_commands_and_the_goal_frame_with_it() -> None:
    flight = Flight()
    flight.engaged = False
    commands = flight.step(1.0)
    assert {c.state for c in commands} == {"waiting"}
    assert all(c.send and not c.velocity_w.any() for c in commands)  # PX4 wants setpoints before offboard mode
    assert flight.pilot.steps == 0
    flight.position, flight.engaged = np.array([1.0, 2.0, 1.5]), True
    assert flight.states(1.0) == ["flying"]
    assert [list(p) for p in flight.pilot.resets] == [[1.0, 2.0, 1.5]]


def test_hovering_sends_zero_for_its_time_then_hands_over_and_sends_nothing() -> None:
    flight = Flight(hover_s=2.0)
    flight.step(1.0)
    flight.alter = changed(velocity_w=[5.0, 0.0, 0.0])
    commands = flight.step(4.0)
    hovering = [c for c in commands if c.state == "hovering"]
    assert abs(len(hovering) * STEP - 2.0) < 1.5 * STEP
    assert all(c.send and not c.hold and not c.velocity_w.any() for c in hovering)
    assert not commands[-1].send
    assert commands[-1].hold
    assert [state for _, state, _ in flight.guard.history] == ["flying", "hovering", "handed_over"]
    flight.alter = lambda inputs: inputs
    assert flight.states(3.0) == ["handed_over"]  # only reset() begins a new flight
    flight.guard.reset(GOAL)
    assert flight.states(1.0) == ["flying"]


def stale(flight: Flight) -> None:
    flight.alter = lambda inputs: None


def faults() -> dict[str, Any]:
    """Each reason, and what brings it about."""

    def late(flight: Flight) -> None:
        flight.deciding = False
        flight.guard.limits = dataclasses.replace(flight.guard.limits, input_timeout_s=99.0)

    def frozen(flight: Flight) -> None:
        flight.alter = changed(position_w=flight.position.copy(), velocity_w=[0.2, 0.0, 0.0])

    def policy(value: Any) -> Any:
        return lambda flight: setattr(flight.pilot, "velocity", value)

    def flapping(flight: Flight) -> None:
        flight.guard.resumes = flight.guard.limits.max_resumes
        flight.alter = changed(position_w=[math.inf, 0.0, 0.0])

    return {
        "stale_odometry": stale,
        "stale_points": lambda flight: setattr(flight, "points_time", flight.time),
        "invalid_input": lambda flight: setattr(flight, "alter", changed(velocity_w=[0.0, math.nan, 0.0])),
        "late_decision": late,
        "frozen_odometry": frozen,
        "decision_failed": policy(RuntimeError("no")),
        "clock_jump": lambda flight: setattr(flight, "alter", lambda i: dataclasses.replace(i, time_s=i.time_s - 5.0)),
        "position_jump": lambda flight: setattr(flight, "alter", changed(position_w=[3.0, 0.0, 1.5])),
        "out_of_height": lambda flight: setattr(flight, "position", np.array([0.0, 0.0, -1.2])),
        "too_fast": lambda flight: setattr(flight, "alter", changed(velocity_w=[1.0, 1.0, 1.0])),
        "too_tilted": lambda flight: setattr(flight, "alter", changed(quaternion_wxyz=[0.8, 0.6, 0.0, 0.0])),
        "geofence": lambda flight: setattr(flight.guard, "fence", Box([-9, -9, 1.6], [9, 9, 3])),
        "too_many_faults": flapping,
        "goal_reached": lambda flight: setattr(flight.guard, "goal_w", np.array([0.3, 0.0, 1.5])),
        "taken_over": lambda flight: setattr(flight, "engaged", False),
        "stopped": lambda flight: flight.guard.stop(),
        "input_failed": lambda flight: flight.guard.stop("input_failed"),
        "duration": lambda flight: flight.guard.stop("duration"),
    }


@pytest.mark.parametrize("name", REASONS)
def test_each_reason_of_the_table_ends_in_its_documented_state(name: str) -> None:
    flight = Flight()
    if name == "out_of_height":
        flight.guard.limits = dataclasses.replace(flight.guard.limits, position_jump_m=5.0)
    flight.step(1.0)
    assert flight.guard.state == "flying"
    faults()[name](flight)
    commands = flight.step(1.5)
    assert commands[-1].reason == name
    assert commands[-1].state == ("handed_over" if name in AT_ONCE else "hovering")
    assert not commands[-1].velocity_w.any()
    commands = flight.step(5.0)
    assert commands[-1].state == "handed_over"
    assert commands[-1].reason == name


@pytest.mark.parametrize("name", [name for name, reason in REASONS.items() if reason.resumes])
def test_a_short_fault_hovers_and_flies_on_if_the_table_says_so(name: str) -> None:
    flight = Flight(recover_s=0.5)
    flight.step(1.0)
    faults()[name](flight)
    assert flight.states(1.0)[-1] == "hovering"
    flight.alter, flight.deciding, flight.points_time = lambda inputs: inputs, True, math.nan
    assert flight.states(2.0) == ["hovering", "flying"]
    assert flight.guard.resumes == 1


@pytest.mark.parametrize("name", [n for n, reason in REASONS.items() if not reason.resumes and n not in AT_ONCE])
def test_other_faults_never_fly_on(name: str) -> None:
    flight = Flight(frozen_s=0.5)
    if name == "out_of_height":
        flight.guard.limits = dataclasses.replace(flight.guard.limits, position_jump_m=5.0)
    flight.step(1.0)
    faults()[name](flight)
    flight.step(1.0)
    flight.alter, flight.guard.fence, flight.pilot.velocity = lambda inputs: inputs, None, np.array([0.1, 0.0, 0.0])
    assert "flying" not in flight.states(6.0)


def test_a_fault_that_ends_the_flight_is_the_reason_even_if_a_lighter_one_came_first() -> None:
    flight = Flight()
    flight.step(1.0)
    flight.alter = changed(position_w=[math.nan, 0.0, 0.0])
    flight.step(0.5)
    flight.alter = changed(quaternion_wxyz=[0.0, 1.0, 0.0, 0.0])
    assert flight.step(1.0)[-1].reason == "too_tilted"
    flight.alter = lambda inputs: inputs
    assert flight.states(5.0) == ["hovering", "handed_over"]


# ---- details of the checks ---------------------------------------------------------------------------------------------


def test_output_hovers_while_a_decision_hangs() -> None:
    flight = Flight()
    flight.step(1.0)
    flight.deciding = False  # update does not return
    assert flight.states(1.0) == ["flying", "hovering"]


def test_odometry_that_arrives_late_is_stale() -> None:
    flight = Flight()
    flight.alter = lambda inputs: dataclasses.replace(inputs, time_s=inputs.time_s - 0.4)
    assert flight.step(0.5)[-1].reason == "stale_odometry"


def test_messages_out_of_order_are_left_out_and_jitter_of_50_ms_is_no_fault() -> None:
    flight, rng = Flight(), np.random.default_rng(0)
    flight.alter = lambda i: (
        dataclasses.replace(i, time_s=i.time_s - rng.uniform(0.0, 0.05)) if rng.random() > 0.01 else None
    )
    assert flight.states(20.0) == ["flying"]


def test_inputs_from_the_future_are_a_clock_jump() -> None:
    flight = Flight()
    flight.step(1.0)
    flight.alter = lambda inputs: dataclasses.replace(inputs, time_s=inputs.time_s + 0.2)
    assert flight.step(0.1)[-1].reason == "clock_jump"


def test_a_clock_of_the_computer_that_goes_back_is_a_clock_jump() -> None:
    flight = Flight()
    flight.step(1.0)
    flight.deciding, flight.time = False, flight.time - 50.0
    assert flight.step(0.1)[-1].reason == "clock_jump"


def test_a_drone_that_hovers_by_command_is_not_frozen() -> None:
    flight = Flight(FakePilot(0.0))
    assert flight.states(10.0) == ["flying"]


def test_single_missing_returns_are_allowed_and_a_scan_without_any_is_not() -> None:
    flight, cloud = Flight(), np.ones((5, 3))
    cloud[2] = np.nan
    flight.alter = changed(points_w=cloud)
    assert flight.states(1.0) == ["flying"]
    flight.alter = changed(points_w=np.zeros((0, 3)))
    assert flight.states(1.0) == ["flying"]
    flight.alter = changed(points_w=np.full((5, 3), np.nan))
    assert flight.step(0.1)[-1].reason == "invalid_input"


@pytest.mark.parametrize(
    ("fence", "inside", "outside"),
    [
        (Box([-1, -2, 0], [3, 4, 5]), [2.9, 3.9, 4.9], [2.9, 4.1, 4.9]),
        (Cylinder([1, 1], 2.0, 0.5, 3.0), [1.0, 2.9, 0.6], [2.5, 2.5, 1.0]),
        (Cylinder([1, 1], 2.0, 0.5, 3.0), [1.0, 2.9, 2.9], [1.0, 1.0, 0.4]),
    ],
)
def test_fences_contain_what_is_inside(fence: Any, inside: list[float], outside: list[float]) -> None:
    assert fence.contains(np.array(inside))
    assert not fence.contains(np.array(outside))


def test_the_fence_counts_the_way_that_braking_takes() -> None:
    flight = Flight(fence=Cylinder([0, 0], 11.0, 0.0, 3.0), speed_m_s=2.0, acceleration_m_s2=9.0)
    flight.guard.goal_w = np.array([99.0, 0.0, 1.5])
    while flight.guard.state != "hovering":
        flight.step()
    assert 8.8 < flight.position[0] < 10.0


def test_a_goal_outside_of_the_fence_is_refused_before_the_flight() -> None:
    with pytest.raises(ValueError, match="outside of the geofence"):
        Guard(FakePilot(), fence=Box([-1, -1, 0], [1, 1, 2])).reset((5.0, 0.0, 1.0))


@pytest.mark.parametrize("bad", [{"speed_m_s": 0.0}, {"hover_s": math.nan}, {"height_m": (3.0, 1.0)}])
def test_limits_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Limits(**bad)


def test_tilt_is_the_angle_of_the_up_axis() -> None:
    half = math.radians(30) / 2
    assert tilt_deg([math.cos(half), 0.0, math.sin(half), 0.0]) == pytest.approx(30.0)
    assert tilt_deg([0.0, 0.0, 0.0, 1.0]) == pytest.approx(0.0)  # a yaw of 180°


def test_the_guide_has_the_table_of_reasons() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", GUIDE.read_text(), re.MULTILINE)
    told = {name: (when, after) for name, when, after in rows if name in REASONS}
    for name, reason in REASONS.items():
        after = "flies on" if reason.resumes else "hands over at once" if name in AT_ONCE else "hands over"
        assert told[name] == (reason.when, after)
