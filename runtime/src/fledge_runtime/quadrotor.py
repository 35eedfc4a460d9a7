"""A plain quadrotor with a velocity response like PX4's: for `simulate` and the fake flight controller, not for training.

Velocity errors become a desired acceleration (gains of PX4's multicopter position control), limited in tilt; the thrust axis
follows with PX4's attitude gain and a lag of the rate loop; thrust follows with a lag of the motors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

GRAVITY = 9.81
P, INTEGRAL, D = (
    np.array([1.8, 1.8, 4.0]),
    np.array([0.4, 0.4, 2.0]),
    np.array([0.2, 0.2, 0.0]),
)  # MPC_XY_VEL_*, MPC_Z_VEL_*
HOLD_P = 0.95  # MPC_XY_P
ATTITUDE_P, RATE_LAG_S, RATE_LIMIT = 6.5, 0.05, math.radians(220.0)  # MC_ROLL_P, MC_ROLLRATE_MAX
TILT, MOTOR_LAG_S, DRAG = math.radians(45.0), 0.04, 0.2  # MPC_TILTMAX_AIR; 1/s
MOST_THRUST = 2.0 * GRAVITY
STEP_S = 0.005
UP = np.array([0.0, 0.0, GRAVITY])


class Quadrotor:
    """State of one drone: `position`, `velocity` ([3], world, z up) and `quaternion` (w, x, y, z, body to world)."""

    def __init__(self, position: Any = (0.0, 0.0, 0.0), yaw: float = 0.0) -> None:
        self.position, self.velocity = np.array(position, float), np.zeros(3)
        self.yaw, self.axis, self.spin = yaw, np.array([0.0, 0.0, 1.0]), np.zeros(3)
        self.thrust, self.integral, self.acceleration = GRAVITY, np.zeros(3), np.zeros(3)

    @property
    def quaternion(self) -> np.ndarray:
        """Return the attitude: the yaw, then the tilt that takes "up" to the thrust axis."""
        x, y, z = self.axis
        tilt = np.array([1.0 + z, -y, x, 0.0])
        w, i, j, _ = tilt / np.linalg.norm(tilt)
        c, s = math.cos(0.5 * self.yaw), math.sin(0.5 * self.yaw)
        return np.array([w * c, i * c + j * s, j * c - i * s, w * s])

    def step(self, velocity_setpoint: Any, dt: float = STEP_S) -> None:
        """Fly for `dt` seconds (about 5 ms) towards a velocity, [3] m/s, world."""
        error = np.asarray(velocity_setpoint, float) - self.velocity
        wanted = P * error + self.integral - D * self.acceleration
        wanted[2] = min(max(wanted[2], -0.8 * GRAVITY), MOST_THRUST - GRAVITY)
        most = math.tan(TILT) * (GRAVITY + wanted[2])
        level = math.hypot(wanted[0], wanted[1])
        if level > most:
            wanted[:2] *= most / level
        else:
            self.integral = np.clip(self.integral + INTEGRAL * error * dt, -4.0, 4.0)
        force = wanted + UP
        length = float(np.linalg.norm(force))
        turn = np.cross(self.axis, force / length)
        rate = ATTITUDE_P * turn
        size = float(np.linalg.norm(rate))
        if size > RATE_LIMIT:
            rate *= RATE_LIMIT / size
        self.spin = self.spin + (rate - self.spin) * (dt / (RATE_LAG_S + dt))
        axis = self.axis + np.cross(self.spin, self.axis) * dt
        self.axis = axis / np.linalg.norm(axis)
        self.thrust += (min(length, MOST_THRUST) - self.thrust) * (dt / (MOTOR_LAG_S + dt))
        self.acceleration = self.thrust * self.axis - UP - DRAG * self.velocity
        self.velocity = self.velocity + self.acceleration * dt
        self.position = self.position + self.velocity * dt
        if self.position[2] < 0.0:
            self.position[2], self.velocity = 0.0, self.velocity * [0.5, 0.5, 0.0]

    def hold(self, place: Any, dt: float = STEP_S) -> None:
        """Fly for `dt` seconds towards a place, [3] m."""
        wanted = HOLD_P * (np.asarray(place, float) - self.position)
        size = float(np.linalg.norm(wanted))
        self.step(wanted * min(1.0, 2.0 / max(size, 1e-9)), dt)
