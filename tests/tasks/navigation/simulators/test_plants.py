"""Plants against one rigid body in plain NumPy, flown without a controller."""

from __future__ import annotations

import numpy as np
import pytest

from fledge.tasks.navigation.simulators import iris, mujoco, pyflyt
from fledge.tasks.navigation.simulators.iris import Iris
from fledge.tasks.navigation.simulators.plant import TUNED, Plant, to_body, to_world, yaw_of
from tests.reference.plain_quadrotor import Airframe, fly, hovering

STILL = np.array([[0.0], [0.0], [0.0], [1.0]])
PUSH = np.array([0.012, -0.007, 0.003, -0.004])  # added to each motor's command


def begun(kind: type[Plant], count: int = 3, package: str = "") -> Plant:
    if package:
        pytest.importorskip(package)
    plant = kind(count, kind.longest_step_s)
    rows = np.arange(count)
    plant.place(rows, np.tile(np.array([[0.0], [0.0], [1.0]]), count), np.tile(STILL, count))
    return plant


def fly_plant(plant: Plant, motors: np.ndarray, seconds: float) -> None:
    for _ in range(round(seconds / plant.longest_step_s)):
        plant.step(np.tile(motors[:, None], plant.count))


def compare(plant: Plant, state: np.ndarray, tolerances: tuple[float, float, float]) -> None:
    """Positions, velocities and body rates are those of the reference, and so is the direction of each body axis."""
    for mine, theirs, tolerance in zip((plant.pos, plant.vel, plant.rate), (0, 3, 15), tolerances, strict=True):
        assert np.abs(mine.T - state[theirs : theirs + 3]).max() < tolerance
    axes = np.stack([to_world(plant.quat, np.tile(axis[:, None], plant.count))[:, 0] for axis in np.eye(3)], 1)
    assert np.abs(axes - state[6:15].reshape(3, 3)).max() < 0.01


def test_the_iris_flies_like_a_plain_rigid_body() -> None:
    """Each rotor's speed follows its command by its own lag: up 12.5 ms, down 25 ms."""
    plant = begun(Iris)
    motors = Iris.hover + PUSH
    lags = np.where(PUSH > 0, iris.LAG_UP_S, iris.LAG_DOWN_S)

    def speeds(t: float) -> np.ndarray:
        return iris.FASTEST * (motors - PUSH * np.exp(-t / lags))

    def drag(t: float, v: np.ndarray) -> np.ndarray:
        return -iris.ROTOR_DRAG * speeds(t).sum() * np.array([v[0], v[1], 0.0])

    frame = Airframe(iris.MASS, iris.INERTIA[:, 0], iris.ROTORS, iris.SPINS, iris.MOMENT)
    fly_plant(plant, motors, 0.6)
    state = fly(frame, hovering(), lambda t: iris.THRUST * speeds(t) ** 2, drag, 0.6, 0.001)
    assert np.abs(state[15:]).max() > 0.5  # it turns
    compare(plant, state, (2e-3, 1e-2, 1e-2))


def test_mujocos_drone_flies_like_a_plain_rigid_body_in_thin_air() -> None:
    """But for MuJoCo's drag, which the reference lacks: below 1 m/s it is less than 1 % of the weight."""
    plant = begun(mujoco.Mujoco, package="mujoco")
    motors = plant.hover + PUSH

    def thrust(t: float) -> np.ndarray:
        return mujoco.MOST * (motors - PUSH * np.exp(-t / mujoco.LAG_S))

    frame = Airframe(mujoco.MASS, np.array(mujoco.INERTIA), mujoco.ROTORS, mujoco.SPINS, mujoco.MOMENT)
    fly_plant(plant, motors, 0.4)
    state = fly(frame, hovering(), thrust, lambda _, v: 0.0 * v, 0.4, 0.001)
    assert np.abs(state[15:]).max() > 0.5
    compare(plant, state, (5e-3, 2e-2, 3e-2))


def test_pyflyts_drone_turns_like_a_plain_rigid_body() -> None:
    """Its motors have a noise whose mean is not 0: thrust is 6 % high, so that only rates can be compared."""
    plant = begun(pyflyt.Pyflyt, package="PyFlyt")
    push = np.array([-0.01, 0.01, 0.01, -0.01])  # roll
    motors = plant.hover + push
    fly_plant(plant, motors, 0.2)
    throttle = 1.03 * motors
    frame = Airframe(pyflyt.MASS, pyflyt.INERTIA, pyflyt.ROTORS, pyflyt.SPINS, pyflyt.MOMENT)
    state = fly(
        frame,
        hovering(),
        lambda t: pyflyt.MOST * (throttle - push * np.exp(-t / 0.01)) ** 2,
        lambda _, v: 0.0 * v,
        0.2,
        0.001,
    )
    assert state[15] > 1.0
    assert np.abs(plant.rate[0] / state[15] - 1.0).max() < 0.1
    assert plant.vel[2].min() > 0.0
    plant.close()


@pytest.mark.parametrize(("kind", "package"), [(Iris, ""), (mujoco.Mujoco, "mujoco")])
def test_a_drone_hovers_at_its_hover_command_and_falls_without_thrust(kind: type[Plant], package: str) -> None:
    plant = begun(kind, 2, package)
    fly_plant(plant, np.full(4, plant.hover), 1.0)
    assert np.abs(plant.pos - [[0.0], [0.0], [1.0]]).max() < 1e-9
    fly_plant(plant, np.zeros(4), 0.3)
    falling = plant.vel[2].copy()
    fly_plant(plant, np.zeros(4), 0.1)
    assert falling - plant.vel[2] == pytest.approx([0.981, 0.981], rel=0.1)


@pytest.mark.parametrize(("kind", "package"), [(Iris, ""), (mujoco.Mujoco, "mujoco"), (pyflyt.Pyflyt, "PyFlyt")])
@pytest.mark.parametrize("axis", range(3))
def test_a_torque_command_turns_every_airframe_alike(kind: type[Plant], package: str, axis: int) -> None:
    plant = begun(kind, 1, package)
    fly_plant(plant, plant.hover + 0.01 * plant.mixer[axis], 0.2)
    before = plant.rate[:, 0].copy()
    fly_plant(plant, plant.hover + 0.01 * plant.mixer[axis], 0.1)
    turned = (plant.rate[:, 0] - before) / 0.1
    assert turned[axis] == pytest.approx(0.01 * TUNED[axis], rel=0.15)
    assert np.abs(np.delete(turned, axis)).max() < 0.4 * turned[axis]  # the Iris has unequal arms: yaw rolls it
    plant.close()


def test_vectors_turn_into_the_body_and_back() -> None:
    generator = np.random.default_rng(1)
    quat, v = generator.normal(size=(4, 20)), generator.normal(size=(3, 20))
    quat /= np.linalg.norm(quat, axis=0)
    assert np.allclose(to_world(quat, to_body(quat, v)), v)
    turned = np.array([[0.0], [0.0], [np.sin(0.35)], [np.cos(0.35)]])
    assert np.allclose(to_world(turned, np.array([[1.0], [0.0], [0.0]]))[:, 0], [np.cos(0.7), np.sin(0.7), 0.0])
    assert yaw_of(turned)[0] == pytest.approx(0.7)
