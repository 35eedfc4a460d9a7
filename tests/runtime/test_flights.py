"""Flights through the fake flight controller over loopback: each fault ends in the documented safe state."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pymavlink")

from fledge_runtime.bridges.fake_flight_controller import FakeFlightController, Link
from fledge_runtime.limits import Box
from fledge_runtime.log import FlightLog, read_log
from fledge_runtime.replay import replay
from tests.runtime.pilots import GOAL, START, Practice, StraightPilot

ROOT = Path(__file__).parents[2]


def test_a_flight_reaches_its_goal_and_ends_in_hold_mode(tmp_path: Path) -> None:
    with FlightLog(tmp_path / "a.flog") as log:
        flight = Practice(log=log)
        told = flight.fly()
    assert told["reason"] == "goal_reached"
    assert told["held"]
    assert flight.states == [("flying", ""), ("hovering", "goal_reached"), ("handed_over", "goal_reached")]
    assert np.linalg.norm(flight.fake.drone.position - GOAL) < 1.2
    assert flight.fake.mode == "hold"
    assert not flight.fake.failsafe  # hold mode was requested, not forced
    assert flight.fake.asked_to_arm == 0
    kinds = {record.kind for record in read_log(tmp_path / "a.flog")}
    assert kinds == {"begin", "reset", "inputs", "command", "output", "event", "end"}
    again = replay(tmp_path / "a.flog", StraightPilot())
    assert again["equal"] == again["decisions"] > 5


def test_a_dry_run_sends_no_setpoint() -> None:
    flight = Practice(send=False)
    told = flight.fly(3.0)
    assert told["decisions"] > 3
    assert told["reason"] == "duration"
    assert len(flight.fake.setpoints) == 0
    assert flight.fake.mode == "position"


@pytest.mark.slow
@pytest.mark.parametrize("autopilot", ["px4", "ardupilot"])
def test_a_flight_bears_1_percent_loss_and_50_ms_of_jitter(autopilot: str) -> None:
    flight = Practice(Link(loss=0.01, delay_s=0.01, jitter_s=0.05), autopilot=autopilot)
    told = flight.fly()
    assert told["reason"] == "goal_reached"
    assert told["held"]
    assert np.linalg.norm(flight.fake.drone.position - GOAL) < 1.2


def jump_clock(flight: Practice) -> None:
    flight.fake.clock_shift_s = 5.0


def clock_back(flight: Practice) -> None:
    flight.fake.clock_shift_s = -5.0


def jump_place(flight: Practice) -> None:
    flight.fake.drone.position = flight.fake.drone.position + np.array([0.0, 4.0, 0.0])


TROUBLES: dict[str, tuple[Any, str, dict[str, float]]] = {
    "stale odometry": (lambda flight: setattr(flight.fake, "muted", True), "stale_odometry", {"input_timeout_s": 0.5}),
    "NaN": (lambda flight: setattr(flight.fake, "broken", True), "invalid_input", {}),
    "clock jump ahead": (jump_clock, "clock_jump", {}),
    "clock jump back": (clock_back, "clock_jump", {}),
    "position jump": (jump_place, "position_jump", {"position_jump_m": 0.5}),
    "slow decisions": (lambda f: setattr(f.pilot, "sleep_s", 1.6), "late_decision", {"decision_timeout_s": 1.0}),
    "failing policy": (lambda flight: setattr(flight.pilot, "error", RuntimeError("no")), "decision_failed", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TROUBLES)
def test_each_trouble_ends_in_hold_mode_after_hovering(name: str) -> None:
    trouble, reason, limits = TROUBLES[name]
    flight = Practice(trouble=trouble, **limits)
    told = flight.fly()
    assert flight.states[-2:] == [("hovering", reason), ("handed_over", reason)]
    assert told["held"]
    assert flight.at_rest()
    hovered = [at for at, state, _ in flight.guard.history if state in ("hovering", "handed_over")][-2:]
    assert hovered[1] - hovered[0] >= 0.9
    stop = [velocity for at, velocity in flight.fake.setpoints if hovered[0] + 0.2 < at < hovered[1]]
    assert len(stop) >= 2  # hovering keeps sending, above 2 Hz
    assert not np.any(stop)


@pytest.mark.slow
def test_a_flight_out_of_the_geofence_stops_before_it_has_left() -> None:
    flight = Practice(fence=Box([-2.0, -2.0, 0.5], [3.5, 2.0, 3.0]))
    flight.guard.fence = Box([-2.0, -2.0, 0.5], [2.0, 2.0, 3.0])  # the goal is beyond
    flight.fly()
    assert flight.states[-1] == ("handed_over", "geofence")
    assert max(position[0] for _, _, position, _ in flight.fake.trace) < 2.0
    assert flight.at_rest()


@pytest.mark.slow
def test_a_human_pilot_who_changes_the_mode_is_left_alone() -> None:
    flight = Practice(trouble=lambda flight: flight.fake.pilot_selects("position"))
    told = flight.fly()
    assert told["reason"] == "taken_over"
    assert flight.fake.mode == "position"  # not changed by us
    after = flight.guard.history[-1][0] + 0.3
    assert not [at for at, _ in flight.fake.setpoints if at > after]


@pytest.mark.slow
def test_a_killed_runtime_leaves_the_drone_in_hold_mode() -> None:
    script = (
        "import sys\n"
        "from fledge_runtime.bridges.mavlink import MavlinkBridge\n"
        "from fledge_runtime.fly import fly\n"
        "from fledge_runtime.limits import Limits\n"
        "from fledge_runtime.safety import Guard\n"
        "from tests.runtime.pilots import StraightPilot\n"
        "bridge = MavlinkBridge(sys.argv[1], send=True, blind=True)\n"
        "print(bridge.link.port.getsockname()[1], flush=True)\n"
        "guard = Guard(StraightPilot(), Limits(speed_m_s=1.0), send=True)\n"
        "guard.reset((30.0, 0.0, 1.5))\n"
        "fly(bridge, guard, 0.05, 60.0, tell=lambda text: None)\n"
    )
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'runtime' / 'src'}", "PATH": ""}
    command = [sys.executable, "-c", script, "udpin:127.0.0.1:0"]
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True) as runtime:
        assert runtime.stdout is not None
        with FakeFlightController(int(runtime.stdout.readline()), START) as fake:
            until = time.monotonic() + 30.0
            while fake.drone.position[0] < 0.5 and time.monotonic() < until:
                if fake.mode == "position":
                    fake.pilot_selects("offboard")
                time.sleep(0.05)
            assert fake.mode == "offboard"
            runtime.send_signal(signal.SIGKILL)
            runtime.wait(10.0)
            time.sleep(3.0)
            assert fake.mode == "hold"
            assert fake.failsafe
            assert float(np.linalg.norm(fake.drone.velocity)) < 0.2
            assert fake.drone.position[2] > 1.0
