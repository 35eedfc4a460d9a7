"""`fledge-runtime identify` recovers the response of simulated drones from their flight logs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fledge_runtime import Inputs
from fledge_runtime.cli import main
from fledge_runtime.identify import IdentifyError, identify
from fledge_runtime.log import FlightLog
from fledge_runtime.quadrotor import Quadrotor
from fledge_runtime.simulate import simulate

DT = 0.002


def plain_drone(gain: float, damping: float, lag: float, climb_gain: float, climb_lag: float, delay: float) -> Callable:
    """Return a function that flies the linear response for DT under a command, and returns the velocity."""
    v, a = np.zeros(3), np.zeros(3)
    waiting = [np.zeros(3)] * round(delay / DT)
    gains, lags = np.array([gain, gain, climb_gain]), np.array([lag, lag, climb_lag])

    def step(command: np.ndarray) -> np.ndarray:
        nonlocal v, a
        waiting.append(command)
        a = a + (gains * (waiting.pop(0) - v) - a) * (DT / lags)
        v = v + (a - damping * v) * DT
        return v

    return step


def write_flight(
    path: Path, step: Callable, noise: float = 0.0, seconds: float = 40.0, speed: float = 1.0, sent: bool = True
) -> None:
    """Write the log of a flight with a new random command every second: outputs at 20 Hz, velocity every 48 ms."""
    rng = np.random.default_rng(1)
    clock = [0.0]
    with FlightLog(path, clock=lambda: clock[0]) as log:
        command, wanted = np.zeros(3), np.zeros(3)
        velocity, measure_at, send_at, change_at = np.zeros(3), 0.0, 0.0, 0.0
        while clock[0] < seconds:
            if clock[0] >= change_at:
                wanted, change_at = speed * rng.uniform(-1.0, 1.0, 3) * [1.0, 1.0, 0.6], change_at + 1.0
            if clock[0] >= send_at:
                command, send_at = wanted, send_at + 0.05
                log.add("output", {"state": "flying", "reason": "", "sent": sent}, velocity_w=command)
            if clock[0] >= measure_at:
                measure_at += 0.048
                log.inputs(Inputs(clock[0], [0, 0, 2], velocity + noise * rng.normal(size=3), [1, 0, 0, 0]))
            velocity = step(command)
            clock[0] += DT


DRONES = {
    "the default": (2.2, 0.2, 0.15, 2.2, 0.03, 0.0),
    "slow, late": (1.1, 0.0, 0.3, 1.5, 0.2, 0.15),
    "stiff": (4.0, 0.3, 0.08, 5.0, 0.03, 0.1),
}


@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("name", DRONES)
def test_a_known_response_is_recovered(name: str, noise: float, tmp_path: Path) -> None:
    """Within 3 % and 10 ms without noise; within 15 % and 40 ms with noise of 3 cm/s."""
    write_flight(tmp_path / "a.flog", plain_drone(*DRONES[name]), noise)
    told = identify(tmp_path / "a.flog")
    gain, damping, lag, climb_gain, climb_lag, delay = DRONES[name]
    found, share, seconds = told["response"], 0.15 if noise else 0.03, 0.04 if noise else 0.01
    assert found["gain"] == pytest.approx(gain, rel=share)
    assert found["climb_gain"] == pytest.approx(climb_gain, rel=share)
    assert found["damping"] == pytest.approx(damping, abs=0.06 if noise else 0.02)
    assert found["lag_s"] == pytest.approx(lag, abs=seconds)
    assert found["climb_lag_s"] == pytest.approx(climb_lag, abs=seconds)
    assert found["delay_s"] == pytest.approx(delay, abs=seconds)
    assert told["error_m_s"]["horizontal"] == pytest.approx(noise, abs=0.004)
    assert told["given_error_m_s"]["horizontal"] >= told["error_m_s"]["horizontal"] - 1e-4
    assert not told["warnings"]


def test_the_response_of_the_plain_quadrotor_predicts_it_better_than_the_default(tmp_path: Path) -> None:
    drone = Quadrotor((0.0, 0.0, 50.0))

    def step(command: np.ndarray) -> np.ndarray:
        drone.step(command, DT)
        return drone.velocity.copy()

    write_flight(tmp_path / "a.flog", step, noise=0.01)
    told = identify(tmp_path / "a.flog")
    for axis in ("horizontal", "vertical"):
        assert told["error_m_s"][axis] < 0.06
        assert told["error_m_s"][axis] < 0.6 * told["given_error_m_s"][axis]
    assert 1.0 < told["response"]["gain"] < 3.0  # MPC_XY_VEL_P_ACC is 1.8


class ZigzagDeployment:
    """A folder whose pilot changes its mind every 1.2 s."""

    contract = {"decision_s": 0.05, "limits": {"speed_m_s": 1.5}, "goal_radius_m": 0.5, "sensor": None}

    def pilot(self) -> ZigzagDeployment:
        return self

    def reset(self, position_w: np.ndarray, goal_w: np.ndarray) -> None:
        self.rng, self.until, self.velocity = np.random.default_rng(2), 0.0, np.zeros(3)

    def step(self, inputs: Inputs) -> Any:
        if inputs.time_s >= self.until:
            self.until, self.velocity = inputs.time_s + 1.2, self.rng.uniform(-1.0, 1.0, 3) * [1.0, 1.0, 0.0]
        return SimpleNamespace(velocity_w=self.velocity)


def test_a_log_of_a_simulated_flight_tells_the_response_too(tmp_path: Path) -> None:
    """It has what was flown with the decisions, not what was sent; the flight is level."""
    with FlightLog(tmp_path / "a.flog") as log:
        simulate(ZigzagDeployment(), 0, density=0.0, log=log)
    told = identify(tmp_path / "a.flog")
    assert told["error_m_s"]["horizontal"] < 0.5 * told["given_error_m_s"]["horizontal"]
    assert told["response"]["climb_gain"] == 2.2
    assert any("hardly climbs" in text for text in told["warnings"])


def test_a_hovering_flight_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_flight(tmp_path / "a.flog", plain_drone(*DRONES["the default"]), 0.03, seconds=20.0, speed=0.0)
    assert main(["identify", str(tmp_path / "a.flog")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "fly back and forth" in said


def test_a_dry_run_is_refused(tmp_path: Path) -> None:
    write_flight(tmp_path / "a.flog", plain_drone(*DRONES["the default"]), seconds=2.0, sent=False)
    with pytest.raises(IdentifyError, match="fly with --send"):
        identify(tmp_path / "a.flog")


def test_a_flight_that_responds_otherwise_is_called_a_poor_fit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    velocity = np.zeros(3)

    def step(command: np.ndarray) -> np.ndarray:
        nonlocal velocity
        velocity = velocity + DT * (rng.normal(size=3) * 40.0 - velocity)
        return velocity

    write_flight(tmp_path / "a.flog", step)
    assert any("fit is poor" in text for text in identify(tmp_path / "a.flog")["warnings"])


def test_the_command_prints_a_line_to_deploy_that_fledge_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fledge.tasks.policy_loader import load_policy

    write_flight(tmp_path / "a.flog", plain_drone(*DRONES["slow, late"]))
    assert main(["identify", str(tmp_path / "a.flog")]) == 0
    said = capsys.readouterr().out
    assert "(default response: " in said
    name = said.strip().splitlines()[-1].split("'")[1]
    assert main(["identify", str(tmp_path / "a.flog"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert name == told["policy"]
    assert math.isclose(load_policy(name).agent.cfg.gain, told["response"]["gain"])
