"""Candidate commands of the planner, and how a drone responds to commands; computed once, in NumPy.

A response is linear, for the horizontal axes and for the vertical one separately: a command takes effect after a delay, then

    v' = a - damping v,  a' = (gain (command - v) - a) / lag;  without lag a = gain (command - v)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fledge.tasks.navigation.planner.config import PlannerConfig


class Rate(NamedTuple):
    """How fast velocity follows its command."""

    gain: float  # 1/s
    lag_s: float
    damping: float  # 1/s


# Rates of soft to stiff drones under several velocity controllers: nearly every drone that was tried is predicted by one of
# them as well as by its own best rate. Controllers with an integral part reach their command, as if there were no damping.
FLAT_RATES = (
    Rate(2.2, 0.15, 0.2),
    Rate(1.1, 0.15, 0.2),
    Rate(4.0, 0.08, 0.2),
    Rate(2.0, 0.08, 0.2),
    Rate(0.8, 0.25, 0.0),
    Rate(2.8, 0.08, 0.2),
    Rate(1.5, 0.03, 0.0),
    Rate(1.5, 0.15, 0.0),
    Rate(0.8, 0.5, 0.0),
    Rate(1.1, 0.3, 0.2),
)
CLIMB_RATES = (
    Rate(2.2, 0.03, 0.2),
    Rate(5.5, 0.03, 0.0),
    Rate(1.1, 0.03, 0.2),
    Rate(2.8, 0.25, 0.0),
    Rate(4.0, 0.03, 0.2),
    Rate(1.5, 0.03, 0.2),
    Rate(2.2, 0.15, 0.0),
)
USUAL_S = 1.0 / 2.2 + 0.15  # time in which the drone of this package follows a command
DELAYS_S = (0.0, 0.064, 0.128, 0.192)


def candidates(cfg: PlannerConfig) -> np.ndarray:
    """Return the candidate commands [C, 3], m/s, with x towards the goal: the likely commands first, hovering last."""
    rows = []
    for speed in dict.fromkeys((cfg.fast, cfg.middle, cfg.slow)):
        for climb in (0.0, -cfg.climb, cfg.climb) if cfg.climb else (0.0,):
            for k in sorted(range(cfg.headings), key=lambda k: (min(k, cfg.headings - k), k)):
                angle = 2 * math.pi * k / cfg.headings
                rows.append((speed * math.cos(angle), speed * math.sin(angle), climb))
    return np.array([*rows, (0.0, 0.0, 0.0)], np.float32)


def given_rates(cfg: PlannerConfig) -> tuple[Rate, Rate]:
    """Return the horizontal and the vertical rate that the settings give. Thrust never lags more than tilt."""
    flat = Rate(cfg.gain, cfg.lag_s, cfg.damping)
    return flat, Rate(cfg.climb_gain, min(cfg.lag_s, cfg.climb_lag_s), cfg.damping)


def possible_rates(cfg: PlannerConfig) -> tuple[list[Rate], list[Rate]]:
    """Return the horizontal and the vertical rates among which the planner identifies a drone's; the given ones first."""
    flat, up = given_rates(cfg)
    if not cfg.identify:
        return [flat], [up]
    return list(dict.fromkeys((flat, *FLAT_RATES))), list(dict.fromkeys((up, *CLIMB_RATES)))


def possible_delays(cfg: PlannerConfig, decision_s: float) -> list[int]:
    """Return the possible delays of a command in whole decisions; the given one first."""
    delays = (cfg.delay_s, *(DELAYS_S if cfg.identify else ()))
    return list(dict.fromkeys(round(delay / decision_s) for delay in delays))


def hastened(rate: Rate) -> tuple[Rate, tuple[float, float]]:
    """Return the rate of a slow drone under exaggerated commands, and the exaggeration (k, l).

    Instead of a command c it is given v + k (c - v) + l a.
    """
    lag = min(rate.lag_s, max(0.15, 0.5 * rate.lag_s))
    gain = max(rate.gain, min(2.2, 0.5 / max(lag, 1e-3)))
    share = rate.lag_s / lag if lag > 0 else 1.0
    return Rate(gain, lag, rate.damping), (gain * share / rate.gain, (1.0 - share) / rate.gain)


def step_responses(cfg: PlannerConfig, rates: list[Rate]) -> np.ndarray:
    """Return the coefficients of velocity, acceleration and command in the position at each prediction step, [2 * R, T, 3].

    The first axis has for each rate held commands, then brief ones.
    """
    times = (np.arange(round(cfg.horizon_s / cfg.step_s)) + 1.0) * cfg.step_s
    rows = []
    for rate in rates:
        held = response(times, rate)[:, 0]
        brief = held.copy()
        after = round(cfg.brief_s / cfg.step_s)
        if 0 < after < len(times):  # to end a command is to add its opposite
            brief[after:, 2] -= held[: len(times) - after, 2]
        rows += [held, brief]
    return np.stack(rows)


def response(seconds: np.ndarray, rate: Rate) -> np.ndarray:
    """Return the linear response of a drone after each of these times, [T, 3, 3].

    Rows are the change of position, the velocity and the acceleration; columns are the coefficients of the initial velocity,
    the initial acceleration and the command.
    """
    lag = max(rate.lag_s, 1e-3)
    # rows: d/dt of position, velocity, acceleration, command
    change = np.zeros((4, 4))
    change[0, 1] = 1.0
    change[1, 1:3] = -rate.damping, 1.0
    change[2, 1:] = -rate.gain / lag, -1.0 / lag, rate.gain / lag
    power = np.eye(4) + change * (np.asarray(seconds)[:, None, None] / 2**16)
    for _ in range(16):  # sums in this order, as fledge_runtime's: those of a matrix product depend on the machine
        parts = [power[:, :, k, None] * power[:, k, None, :] for k in range(4)]
        power = parts[0] + parts[1] + parts[2] + parts[3]
    return power[:, :3, 1:]
