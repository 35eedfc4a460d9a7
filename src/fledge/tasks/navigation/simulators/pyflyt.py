"""PyFlyt's quadrotor `primitive_drone` (1 kg, PyBullet) under commands of single motors.

Needs the package PyFlyt. Its metadata ask for NumPy 1, but its quadrotor works with NumPy 2:

    pip install --no-deps PyFlyt==0.29.0 pybullet==3.2.7 numba==0.68.1 llvmlite==0.50.0
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fledge.core.errors import MissingExtraError
from fledge.tasks.navigation.simulators.plant import GRAVITY, Array, Plant, mixer_of, to_body

INSTALL = "pip install --no-deps PyFlyt==0.29.0 pybullet==3.2.7 numba==0.68.1 llvmlite==0.50.0"
MODEL = "primitive_drone"
MASS = 1.0  # kg; these are the values of its model files
INERTIA = np.array([0.01, 0.01, 0.016])  # kg m²
ROTORS = np.array([[0.16, -0.16], [-0.16, 0.16], [0.16, 0.16], [-0.16, -0.16]])  # m, body
SPINS = np.array([-1.0, -1.0, 1.0, 1.0])  # sign of the torque on the body
MOST = 10.0  # N per rotor
MOMENT = 1.0  # m: drag torque per thrust
MOTORS = -1  # PyFlyt's mode for commands of single motors
APART_M = 200.0  # distance between the places of two drones in the PyBullet world, so that they never meet


class Pyflyt(Plant):
    """N quadrotors in one PyBullet world, which do not touch each other."""

    longest_step_s = 0.004
    hover = float(np.sqrt(MASS * GRAVITY / (4.0 * MOST)))
    mixer = mixer_of(ROTORS, SPINS, MOMENT, 2.0 * hover * MOST, INERTIA)

    def __init__(self, count: int, step_s: float) -> None:
        super().__init__(count)
        hz = round(1.0 / step_s)
        places = np.array([[i * APART_M, 0.0, 1.0] for i in range(count)])
        options = {"drone_model": MODEL, "control_hz": hz}
        with without_output():
            try:
                from PyFlyt.core import Aviary
            except ModuleNotFoundError as error:
                raise MissingExtraError(f"{error.name} is not installed. Install it: {INSTALL}") from error
            self.world: Any = Aviary(
                places, np.zeros((count, 3)), drone_type="quadx", drone_options=options, physics_hz=hz, seed=1
            )
        self.world.set_mode(MOTORS)
        self.offset = places[:, 0]
        self._read()

    def place(self, rows: NDArray[np.int64], pos: Array, quat: Array) -> None:
        for i, (x, y, z), turn in zip(rows, pos.T, quat.T, strict=True):
            drone = self.world.drones[i]
            self.world.resetBasePositionAndOrientation(drone.Id, [x + self.offset[i], y, z], turn)
            self.world.resetBaseVelocity(drone.Id, [0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
            drone.motors.throttle = np.full(4, self.hover)
            drone.update_state()
        self._read()

    def step(self, motors: Array) -> None:
        self.world.set_all_setpoints(motors.T)
        self.world.step()
        self._read()

    def _read(self) -> None:
        """Read the motion of all drones."""
        world, motion = self.world, np.empty((6, self.count))
        for i, drone in enumerate(world.drones):
            self.pos[:, i], self.quat[:, i] = world.getBasePositionAndOrientation(drone.Id)
            motion[:3, i], motion[3:, i] = world.getBaseVelocity(drone.Id)
        self.pos[0] -= self.offset
        self.vel[:], self.rate[:] = motion[:3], to_body(self.quat, motion[3:])

    def close(self) -> None:
        self.world.disconnect()


@contextlib.contextmanager
def without_output() -> Iterator[None]:
    """Discard what is written to the standard output, also by C code: PyBullet greets its users there."""
    sys.stdout.flush()
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of 250 instead of 240 steps per second
            yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)
