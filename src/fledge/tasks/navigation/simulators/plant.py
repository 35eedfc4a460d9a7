"""The contract of a plant, which moves the bodies of N drones, and functions of attitude.

Arrays are float64 with the component first: vectors [3, N], quaternions [4, N] as (x, y, z, w), body to world. World z is up,
body x ahead, y left, z up; rates are in the body frame.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fledge.core.errors import InputError

Array = NDArray[np.float64]
GRAVITY = 9.81
TUNED = (210.0, 130.0, 45.0)  # rad/s² about x, y, z per full torque command: those of the Iris, which PX4's gains fit


class Plant:
    """N quadrotors in their own physics.

    Attributes:
        longest_step_s: Longest time step, s.
        pos, vel, quat, rate: Their present motion; read by the autopilot, written by `place` and `step`.
        hover: Motor command that holds a drone in the air, 0 to 1.
        mixer: What each motor adds for a full torque about each body axis, [3, 4].
    """

    longest_step_s: ClassVar[float] = 0.002
    hover: float
    mixer: Array

    def __init__(self, count: int) -> None:
        self.count = count
        self.pos, self.vel, self.rate = (np.zeros((3, count)) for _ in range(3))
        self.quat = np.zeros((4, count))
        self.quat[3] = 1.0

    def place(self, rows: NDArray[np.int64], pos: Array, quat: Array) -> None:
        """Put these drones at rest to positions [3, R] with attitudes [4, R], with motors at hover."""
        raise NotImplementedError

    def step(self, motors: Array) -> None:
        """Advance by one time step under motor commands [4, N], 0 to 1."""
        raise NotImplementedError

    def state(self) -> dict[str, Array]:
        """Return the arrays that make up the complete state; writing to them changes it, after a call of `restored`."""
        raise InputError("This simulator cannot save its state: choose env.dynamics=lee, first_order, iris or mujoco.")

    def restored(self) -> None:
        """Update `pos`, `vel`, `quat` and `rate` after the arrays of `state` were written."""

    def close(self) -> None:
        """Release the simulator."""


def mixer_of(rotors: Array, spins: Array, moment: float, thrust: float, inertia: Array) -> Array:
    """Return the mixer [3, 4] of four rotors, for which `TUNED` is the angular acceleration of a full torque command.

    A full command moves each motor by 1 / sqrt(2) for roll and pitch and by 1 for yaw in PX4's normalised allocation. These
    shares are scaled by the airframe's authority, so that one set of rate gains fits all airframes, as it does after tuning.

    Args:
        rotors: Positions [4, 2] (x, y), m.
        spins: 1 for a rotor that turns the body about +z, else -1.
        moment: Drag torque per thrust, m.
        thrust: Change of a rotor's thrust per motor command at hover, N.
        inertia: Moments of inertia about x, y, z, kg m².
    """
    shares = np.stack([np.sign(rotors[:, 1]) / np.sqrt(2.0), -np.sign(rotors[:, 0]) / np.sqrt(2.0), spins])
    arms = np.stack([rotors[:, 1], -rotors[:, 0], spins * moment])
    authority = (shares * arms).sum(1) * thrust / inertia
    mixer: Array = shares * (np.array(TUNED) / authority)[:, None]
    return mixer


def yaw_of(quat: Array) -> Array:
    """Return the heading of the body x axis, rad."""
    x, y, z, w = quat
    yaw: Array = np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    return yaw


def to_world(quat: Array, v: Array) -> Array:
    """Return body vectors [3, N] in the world."""
    return _rotated(quat, v, 1.0)


def to_body(quat: Array, v: Array) -> Array:
    """Return world vectors [3, N] in the body."""
    return _rotated(quat, v, -1.0)


def _rotated(quat: Array, v: Array, sign: float) -> Array:
    """Return v + 2 w (q x v) + 2 q x (q x v), with the quaternion's vector part q times `sign`."""
    x, y, z = sign * quat[0], sign * quat[1], sign * quat[2]
    tx, ty, tz = 2.0 * (y * v[2] - z * v[1]), 2.0 * (z * v[0] - x * v[2]), 2.0 * (x * v[1] - y * v[0])
    w = quat[3]
    return np.stack(
        [
            v[0] + w * tx + y * tz - z * ty,
            v[1] + w * ty + z * tx - x * tz,
            v[2] + w * tz + x * ty - y * tx,
        ]
    )
