"""The Iris quadrotor of PX4's simulation as a rigid body in NumPy, N drones at once.

Masses, rotors and constants are those of the model `iris` in PX4-SITL_gazebo-classic: thrust and drag torque proportional to
the squared rotor speed, rotors that follow their commands with a first-order lag (faster up than down), and rotor drag,
proportional to rotor speed and to the velocity across the rotor's axis.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fledge.tasks.navigation.simulators.plant import GRAVITY, Array, Plant, mixer_of, to_body, to_world

MASS = 1.5 + 0.015 + 4 * 0.005  # kg: body, IMU, rotors
INERTIA = np.array([[0.029125], [0.029125], [0.055225]])  # kg m²
ROTORS = np.array([[0.13, -0.22], [-0.13, 0.20], [0.13, 0.22], [-0.13, -0.20]])  # m, body
SPINS = np.array([-1.0, -1.0, 1.0, 1.0])  # sign of the torque on the body: the first two rotors turn counter-clockwise
THRUST = 5.84e-6  # N s²
MOMENT = 0.06  # m: drag torque per thrust
FASTEST = 1100.0  # rad/s
LAG_UP_S, LAG_DOWN_S = 0.0125, 0.025
ROTOR_DRAG = 0.000175  # N s² per rad m


class Iris(Plant):
    """N Iris quadrotors, stepped by semi-implicit Euler."""

    hover = float(np.sqrt(MASS * GRAVITY / (4.0 * THRUST)) / FASTEST)
    mixer = mixer_of(ROTORS, SPINS, MOMENT, 2.0 * hover * THRUST * FASTEST**2, INERTIA[:, 0])

    def __init__(self, count: int, step_s: float) -> None:
        super().__init__(count)
        self.step_s = step_s
        self.speed = np.full((4, count), self.hover * FASTEST)  # of the rotors, rad/s
        self.shares = 1.0 - np.exp(-step_s / LAG_UP_S), 1.0 - np.exp(-step_s / LAG_DOWN_S)
        # torque about x, y, z per thrust of each rotor
        self.arms = np.stack([ROTORS[:, 1], -ROTORS[:, 0], SPINS * MOMENT])

    def place(self, rows: NDArray[np.int64], pos: Array, quat: Array) -> None:
        self.pos[:, rows], self.quat[:, rows] = pos, quat
        self.vel[:, rows] = self.rate[:, rows] = 0.0
        self.speed[:, rows] = self.hover * FASTEST

    def step(self, motors: Array) -> None:
        dt = self.step_s
        error = motors * FASTEST - self.speed
        self.speed += np.where(error > 0.0, *self.shares) * error
        thrust = THRUST * self.speed**2
        across = to_body(self.quat, self.vel)
        drag = ROTOR_DRAG * self.speed.sum(0)
        force = to_world(self.quat, np.stack([-drag * across[0], -drag * across[1], thrust.sum(0)]))
        force /= MASS
        force[2] -= GRAVITY
        p, q, r = self.rate
        ix, iy, iz = INERTIA[:, 0]
        torque = self.arms @ thrust
        torque -= np.stack([(iz - iy) * q * r, (ix - iz) * r * p, (iy - ix) * p * q])
        self.vel += force * dt
        self.pos += self.vel * dt
        self.rate += torque / INERTIA * dt
        p, q, r = 0.5 * dt * self.rate
        x, y, z, w = self.quat
        self.quat += np.stack(
            [w * p + y * r - z * q, w * q + z * p - x * r, w * r + x * q - y * p, -x * p - y * q - z * r]
        )
        self.quat /= np.sqrt((self.quat**2).sum(0))

    def state(self) -> dict[str, Array]:
        return {"pos": self.pos, "vel": self.vel, "quat": self.quat, "rate": self.rate, "speed": self.speed}
