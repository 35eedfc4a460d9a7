"""A PX4-like cascade from velocity commands to motor commands, for N drones at once.

    velocity PID -> acceleration -> thrust vector -> attitude P -> body-rate PID -> mixer -> motors

Reference: PX4's controller diagrams, https://docs.px4.io/v1.14/en/flight_stack/controller_diagrams.html. Left out: the state
estimator (position, velocity and attitude are true), desaturation of the mixer (motors are clipped), and take-off.

Arrays have the component first, [3, N], so that NumPy works on contiguous rows. Frames: world z up; body x ahead, y left,
z up.
"""

from __future__ import annotations

import math

import numpy as np

from fledge.tasks.navigation.simulators.gains import Parameters
from fledge.tasks.navigation.simulators.plant import GRAVITY, Array, Plant, to_body, yaw_of

VELOCITY_S, ATTITUDE_S = 0.008, 0.004  # time between two updates of the outer loops
FULL_INTEGRAL = math.radians(400.0)  # rad/s: body-rate error from which on its integral rests


def column(pair: tuple[float, float]) -> Array:
    """Return (xy, z) as a column [3, 1]."""
    return np.array([[pair[0]], [pair[0]], [pair[1]]])


def low_pass(hz: float, seconds: float) -> float:
    """Return the share of the error that a first-order filter removes in this time."""
    return 1.0 - math.exp(-2.0 * math.pi * hz * seconds)


class Autopilot:
    """Controllers of N drones: their gains and their state.

    Args:
        parameters: Gains and limits.
        plant: The drones: their motor commands in hover, and how motors turn them.
        step_s: Time step of the rate loop, s.
    """

    def __init__(self, parameters: Parameters, plant: Plant, step_s: float) -> None:
        p, n = parameters, plant.count
        self.p, self.plant, self.step_s = p, plant, step_s
        self.velocity_every, self.attitude_every = (max(1, round(s / step_s)) for s in (VELOCITY_S, ATTITUDE_S))
        self.velocity_p, self.velocity_i, self.velocity_d = map(column, (p.velocity_p, p.velocity_i, p.velocity_d))
        self.attitude_p = column((p.attitude_p[0], p.attitude_p[1] / p.yaw_weight))
        self.rate_limit = np.radians(column(p.rate_limit_deg_s))
        self.rate_p, self.rate_i, self.rate_d = map(column, (p.rate_p, p.rate_i, p.rate_d))
        self.state = {
            "yaw": np.zeros(n),  # rad: heading that is held
            "setpoint": np.zeros((3, n)),  # m/s, after the slew limit
            "vel": np.zeros((3, n)),  # at the last update of the velocity loop
            "acc": np.zeros((3, n)),  # its filtered derivative
            "vel_integral": np.zeros((3, n)),  # m/s²
            "up": np.zeros((3, n)),  # desired body z axis, world
            "thrust": np.zeros(n),  # collective, as a share of the largest
            "rate_setpoint": np.zeros((3, n)),  # rad/s, body
            "gyro": np.zeros((3, n)),  # filtered body rates
            "gyro_rate": np.zeros((3, n)),  # their filtered derivative
            "rate_integral": np.zeros((3, n)),
        }

    def begin(self, rows: np.ndarray) -> None:
        """Begin new flights of these drones, which hover at rest."""
        for array in self.state.values():
            array[..., rows] = 0.0
        self.state["up"][2, rows] = 1.0
        self.state["thrust"][rows] = self.plant.hover
        self.state["yaw"][rows] = yaw_of(self.plant.quat)[rows]

    def motors(self, step: int, command: Array) -> Array:
        """Return the motor commands [4, N], 0 to 1, of one step of the rate loop.

        Args:
            step: Number of this step since the velocity command could last change.
            command: Velocity commands, m/s, world, [3, N].
        """
        if step % self.velocity_every == 0:
            self._control_velocity(command)
        if step % self.attitude_every == 0:
            self._control_attitude()
        torque = self._control_rates()
        return np.clip(self.state["thrust"] + self.plant.mixer.T @ torque, 0.0, 1.0)

    def _control_velocity(self, command: Array) -> None:
        """Update the desired thrust and its direction."""
        s, p, dt, vel = self.state, self.p, self.step_s * self.velocity_every, self.plant.vel
        goal = command.copy()
        goal[:2] *= np.minimum(1.0, p.speed / np.maximum(np.hypot(goal[0], goal[1]), 1e-9))
        np.clip(goal[2], -p.sink, p.climb, out=goal[2])
        if p.slew is not None:
            change = goal - s["setpoint"]
            ahead = np.maximum(np.hypot(change[0], change[1]), 1e-9)
            change[:2] *= np.minimum(1.0, p.slew[0] * dt / ahead)
            np.clip(change[2], -p.slew[1] * dt, p.slew[1] * dt, out=change[2])
            goal = s["setpoint"] + change
        s["setpoint"][:] = goal
        s["acc"] += low_pass(p.velocity_filter_hz, dt) * ((vel - s["vel"]) / dt - s["acc"])
        s["vel"][:] = vel
        error = goal - vel
        acc = self.velocity_p * error + s["vel_integral"] - self.velocity_d * s["acc"]
        # direction of the thrust, as if the vertical acceleration were zero; within the largest tilt
        ahead, most = np.hypot(acc[0], acc[1]), math.tan(math.radians(p.tilt_deg)) * GRAVITY
        share = np.minimum(1.0, most / np.maximum(ahead, 1e-9))
        up = np.stack([acc[0] * share, acc[1] * share, np.full_like(ahead, GRAVITY)])
        up /= np.sqrt((up**2).sum(0))
        per_g = self.plant.hover / GRAVITY
        thrust = np.maximum((acc[2] + GRAVITY) * per_g / up[2], p.thrust[0]) * up
        stuck = ((thrust[2] >= p.thrust[1]) & (error[2] > 0)) | ((thrust[2] <= p.thrust[0]) & (error[2] < 0))
        error[2] = np.where(stuck, 0.0, error[2])
        # the vertical axis comes first, but for a margin
        level = np.hypot(thrust[0], thrust[1])
        thrust[2] = np.minimum(thrust[2], np.sqrt(p.thrust[1] ** 2 - np.minimum(level, p.thrust_margin) ** 2))
        room = np.sqrt(np.maximum(p.thrust[1] ** 2 - thrust[2] ** 2, 0.0))
        thrust[:2] *= np.minimum(1.0, room / np.maximum(level, 1e-9))
        made = thrust[:2] / per_g
        limited = (acc[:2] ** 2).sum(0) > (made**2).sum(0)
        error[:2] -= 2.0 / p.velocity_p[0] * np.where(limited, acc[:2] - made, 0.0)
        s["vel_integral"] += self.velocity_i * error * dt
        np.clip(s["vel_integral"][2], -GRAVITY, GRAVITY, out=s["vel_integral"][2])
        s["thrust"][:] = size = np.sqrt((thrust**2).sum(0))
        s["up"][:] = thrust / size

    def _control_attitude(self) -> None:
        """Update the desired body rates: turn the body's z axis first, and the heading by a share."""
        s, p, quat = self.state, self.p, self.plant.quat
        up = to_body(quat, s["up"])
        # the shortest turn from (0, 0, 1) to `up`, as a quaternion (w, x, y, 0)
        w = np.sqrt(np.maximum(0.5 * (1.0 + up[2]), 1e-6))
        x, y = -0.5 * up[1] / w, 0.5 * up[0] / w
        off = s["yaw"] - yaw_of(quat)
        half = 0.5 * p.yaw_weight * (np.mod(off + math.pi, 2.0 * math.pi) - math.pi)
        c, sine = np.cos(half), np.sin(half)
        error = 2.0 * np.stack([x * c + y * sine, y * c - x * sine, w * sine])
        s["rate_setpoint"][:] = np.clip(self.attitude_p * error, -self.rate_limit, self.rate_limit)

    def _control_rates(self) -> Array:
        """Return the desired torque [3, N], as a share of the largest."""
        s, p, dt = self.state, self.p, self.step_s
        before = s["gyro"].copy()
        s["gyro"] += low_pass(p.gyro_hz, dt) * (self.plant.rate - s["gyro"])
        s["gyro_rate"] += low_pass(p.gyro_rate_hz, dt) * ((s["gyro"] - before) / dt - s["gyro_rate"])
        error = s["rate_setpoint"] - s["gyro"]
        torque = self.rate_p * error + s["rate_integral"] - self.rate_d * s["gyro_rate"]
        fading = np.maximum(0.0, 1.0 - (error / FULL_INTEGRAL) ** 2)
        s["rate_integral"] += fading * self.rate_i * error * dt
        np.clip(s["rate_integral"], -p.rate_integral, p.rate_integral, out=s["rate_integral"])
        return torque
