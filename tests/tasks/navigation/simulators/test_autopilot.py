"""The PX4-like cascade: against its own equations on a point mass, and on each plant."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fledge.tasks.navigation.simulators.autopilot import Autopilot
from fledge.tasks.navigation.simulators.gains import PARAMETERS, PX4, Gains
from fledge.tasks.navigation.simulators.iris import Iris
from fledge.tasks.navigation.simulators.mujoco import Mujoco
from fledge.tasks.navigation.simulators.plant import GRAVITY, Plant, to_world, yaw_of
from fledge.tasks.navigation.simulators.pyflyt import Pyflyt

PLANTS = [(Iris, ""), (Mujoco, "mujoco"), (Pyflyt, "PyFlyt")]


class PointMass(Plant):
    """Takes thrust and its direction from the autopilot at once, so that only the velocity loop remains."""

    hover, mixer = 0.5, np.zeros((3, 4))
    pilot: Autopilot

    def place(self, rows: np.ndarray, pos: np.ndarray, quat: np.ndarray) -> None:
        self.pos[:, rows], self.quat[:, rows] = pos, quat

    def step(self, motors: np.ndarray) -> None:
        dt, state = self.longest_step_s, self.pilot.state
        acc = state["thrust"] * state["up"] * GRAVITY / self.hover
        acc[2] -= GRAVITY
        self.vel += acc * dt
        self.pos += self.vel * dt


def begin(plant: Plant, gains: Gains = Gains.px4, yaw: float = 0.0) -> Autopilot:
    pilot = Autopilot(PARAMETERS[gains], plant, plant.longest_step_s)
    rows = np.arange(plant.count)
    quat = np.tile([[0.0], [0.0], [math.sin(yaw / 2)], [math.cos(yaw / 2)]], plant.count)
    plant.place(rows, np.tile([[0.0], [0.0], [1.0]], plant.count), quat)
    pilot.begin(rows)
    return pilot


def fly(plant: Plant, pilot: Autopilot, command: np.ndarray, seconds: float) -> np.ndarray:
    """Velocities after each step, [T, 3, N]."""
    vels = []
    for k in range(round(seconds / plant.longest_step_s)):
        plant.step(pilot.motors(k, command))
        vels.append(plant.vel.copy())
    return np.stack(vels)


def test_the_velocity_loop_is_a_pid_with_a_filtered_derivative() -> None:
    """v' = P e + I (integral of e) - D a, a' = (v' - a) 2 pi f, here in steps of 0.1 ms; along x and along z."""
    plant = PointMass(2)
    plant.pilot = pilot = begin(plant)
    command = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.5]])
    flown = fly(plant, pilot, command, 3.0)
    for drone, axis, goal in ((0, 0, 1.0), (1, 2, 0.5)):
        k = axis // 2
        p, i, d = PX4.velocity_p[k], PX4.velocity_i[k], PX4.velocity_d[k]
        vel = integral = acc = 0.0
        exact, h = [], 1e-4
        for _ in range(30_000):
            made = p * (goal - vel) + integral - d * acc
            acc += 2 * math.pi * PX4.velocity_filter_hz * (made - acc) * h
            integral += i * (goal - vel) * h
            vel += made * h
            exact.append(vel)
        assert np.abs(flown[:, axis, drone] - np.array(exact)[19::20]).max() < 0.03


@pytest.mark.parametrize(("kind", "package"), PLANTS)
@pytest.mark.parametrize("gains", Gains)
def test_a_drone_reaches_the_commanded_velocity_and_holds_its_heading(
    kind: type[Plant], package: str, gains: Gains
) -> None:
    if package:
        pytest.importorskip(package)
    command = np.array([[2.0, -1.0, 0.0, 0.0], [0.0, 1.5, 0.0, 0.0], [0.0, 0.3, 1.0, 0.0]])
    plant = kind(4, kind.longest_step_s)
    flown = fly(plant, begin(plant, gains, yaw=2.0), command, 4.0)
    assert np.abs(flown[-1] - command).max() < 0.25
    assert np.abs(yaw_of(plant.quat) - 2.0).max() < 0.02
    assert np.abs(plant.rate).max() < 0.1  # no oscillation
    plant.close()


def test_stiff_gains_are_faster_than_px4s_and_soft_ones_slower() -> None:
    risen = {}
    for gains in Gains:
        plant = Iris(1, Iris.longest_step_s)
        flown = fly(plant, begin(plant, gains), np.array([[2.0], [0.0], [0.0]]), 2.0)[:, 0, 0]
        risen[gains] = float(np.argmax(flown > 1.0)) * Iris.longest_step_s
    assert risen[Gains.stiff] < risen[Gains.px4] < risen[Gains.soft] < risen[Gains.smooth]
    assert 0.4 < risen[Gains.px4] < 0.7


def test_tilt_thrust_and_vertical_speed_stay_within_their_limits() -> None:
    plant = Iris(2, Iris.longest_step_s)
    pilot = begin(plant)
    command = np.array([[12.0, 0.0], [0.0, 0.0], [0.0, -9.0]])
    up = []
    for k in range(1500):
        motors = pilot.motors(k, command)
        assert ((motors >= 0) & (motors <= 1)).all()
        plant.step(motors)
        up.append(to_world(plant.quat, np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))[2, 0])
    assert 35.0 < math.degrees(math.acos(min(up))) < 52.0
    assert plant.vel[2, 1] == pytest.approx(-PX4.sink, abs=0.1)
