"""One quadrotor as a rigid body: rotation matrix, Runge-Kutta of fourth order, one drone, no shared code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

GRAVITY = 9.81


@dataclass
class Airframe:
    """Constants of an airframe; the rotors are at `rotors` [4, 2] and turn the body by `spins` [4] times their drag torque."""

    mass: float
    inertia: np.ndarray
    rotors: np.ndarray
    spins: np.ndarray
    moment: float  # m: drag torque per thrust


def derivative(
    frame: Airframe, state: np.ndarray, thrust: np.ndarray, drag: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """d/dt of (pos 3, vel 3, rotation 9, rate 3); `drag` returns the force for a velocity, both in the body frame."""
    vel, rot, rate = state[3:6], state[6:15].reshape(3, 3), state[15:]
    force = np.array([0.0, 0.0, thrust.sum()]) + drag(rot.T @ vel)
    acc = rot @ force / frame.mass - np.array([0.0, 0.0, GRAVITY])
    arms = np.c_[frame.rotors, np.zeros(4)]
    torque = sum(np.cross(arm, [0.0, 0.0, f]) for arm, f in zip(arms, thrust, strict=True))
    torque = torque + np.array([0.0, 0.0, (frame.spins * thrust).sum() * frame.moment])
    spin = np.linalg.solve(np.diag(frame.inertia), torque - np.cross(rate, frame.inertia * rate))
    p, q, r = rate
    turn = rot @ np.array([[0, -r, q], [r, 0, -p], [-q, p, 0]])
    return np.concatenate([vel, acc, turn.ravel(), spin])


def fly(
    frame: Airframe,
    state: np.ndarray,
    thrust: Callable[[float], np.ndarray],
    drag: Callable[[float, np.ndarray], np.ndarray],
    seconds: float,
    step_s: float,
) -> np.ndarray:
    """The state after this time, under thrusts and drag as functions of time."""
    for k in range(round(seconds / step_s)):
        t, h = k * step_s, step_s

        def slope(at: float, s: np.ndarray) -> np.ndarray:
            return derivative(frame, s, thrust(at), lambda v: drag(at, v))

        a = slope(t, state)
        b = slope(t + h / 2, state + h / 2 * a)
        c = slope(t + h / 2, state + h / 2 * b)
        d = slope(t + h, state + h * c)
        state = state + h / 6 * (a + 2 * b + 2 * c + d)
    return state


def hovering(pos: tuple[float, float, float] = (0.0, 0.0, 1.0)) -> np.ndarray:
    return np.concatenate([pos, np.zeros(3), np.eye(3).ravel(), np.zeros(3)])
