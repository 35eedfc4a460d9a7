"""The navigation step as a competent NumPy or torch user would write it: baselines of `benchmarks.sim`.

Both continue from a `Snapshot` of a running env: velocity command, Lee's controller, rigid body, LiDAR over
the env's byte grid, nearest obstacles, NavRL's reward, end of episode. They share the constants below and no code with
the simulator. Left out, in the baselines' favour: the crowd's own motion (positions are given at each step) and the
start of new episodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

# Hummingbird and controller
GRAVITY = 9.81
MASS = 0.716
ARM = 0.17
INERTIA = (0.007, 0.007, 0.012)
MAX_THRUST = 8.54858e-6 * 838.0**2
TORQUE_PER_THRUST = 1.36777e-7 / 8.54858e-6
ROTOR_FILTER = 0.43
VELOCITY_GAIN = 2.2
ATTITUDE_GAIN = (0.7, 0.7, 0.035)
RATE_GAIN = (0.1, 0.1, 0.025)
DAMPING = 0.2

# Maps: bytes, from SOLID up a column (0.05 m a step), below it the cells to the nearest column
CELL, CELLS, HALF = 0.1, 500, 25.0
SOLID, HEIGHT_STEP = 128, 0.05

# Task
DT = 0.016
SPEED_LIMIT = 2.0
RANGE = 4.0
RADIUS = 0.3
AZIMUTHS = 36
ELEVATIONS_DEG = (-10.0, 0.0, 10.0, 20.0)
MIN_HEIGHT, MAX_HEIGHT = 0.2, 4.0
MAX_STEPS = 2200
NEAREST = 5
HEIGHT_WEIGHT = 8.0


def mixer() -> Array:
    """Return the matrix [4, 4] from four rotor thrusts to three torques and the lift.

    The rotors are at 0, 90, 180 and -90 degrees and spin in directions -1, +1, -1, +1.
    """
    a, k = ARM, TORQUE_PER_THRUST
    return np.array([[0, a, 0, -a], [-a, 0, a, 0], [k, -k, k, -k], [1, 1, 1, 1]], dtype=np.float32)


@dataclass
class Snapshot:
    """State of all drones: position, map, goal and motion. N drones, K maps."""

    pos: Array  # [N, 3] m, world
    vel: Array  # [N, 3] m/s, world
    quat: Array  # [N, 4] body to world, (x, y, z, w)
    rate: Array  # [N, 3] rad/s, body
    throttle: Array  # [N, 4] 0..1
    start: Array  # [N, 3] m, world
    goal: Array  # [N, 3] m, world
    slot: npt.NDArray[np.int64]  # [N] map of each drone
    step: npt.NDArray[np.int64]  # [N] physics steps flown
    grid: npt.NDArray[np.uint8]  # [K, CELLS * CELLS]
    movers: int  # M obstacles on each map
