"""Identify a drone's response to velocity commands from a flight log: the planner's settings gain, damping, lag_s, climb_gain,
climb_lag_s and delay_s.

A response is linear, horizontally and vertically apart: a command takes effect after `delay_s`, then

    v' = a - damping v,  a' = (gain (command - v) - a) / lag

In each window of a flight the velocity is predicted from the commands that were sent; velocity and acceleration at its
begin are fitted as well, since both are measured with noise. The response with the least squared error is taken: from a grid,
then by Gauss-Newton steps.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from fledge_runtime.errors import RuntimeFault
from fledge_runtime.log import read_log
from fledge_runtime.numpy_engine.tables import response

WINDOW_S, STEP_S = 2.0, 0.02
MOST_WINDOWS = 80  # those in which the commands change most
FEWEST_WINDOWS = 4
CHANGE_M_S = 0.15  # standard deviation of the commands in a window that counts as excited
POOR_M_S, POOR_SHARE = 0.05, 0.25  # the error of a fit that is poor, and its share of the deviation of the velocity
GAINS, LAGS = (0.5, 0.8, 1.2, 1.8, 2.7, 4.0, 6.0), (0.01, 0.05, 0.1, 0.2, 0.35, 0.6)
DAMPINGS, DELAYS = (0.0, 0.2, 0.6), (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
LOWEST, HIGHEST = np.array([0.05, 0.002, 0.0, 0.0]), np.array([30.0, 1.0, 5.0, 0.6])  # gain, lag, damping, delay
NAMES = ("gain", "damping", "lag_s", "climb_gain", "climb_lag_s", "delay_s")


class IdentifyError(RuntimeFault):
    """A flight log does not tell the drone's response."""


class Flown:
    """Velocities measured in a flight, [T, 3] at [T], and commands sent, [C, 3], each from its time until the next.

    Commands that are not finite were not flown: the flight controller flew on its own.
    """

    def __init__(self, time_s: Any, velocity_w: Any, sent_s: Any, sent_w: Any) -> None:
        self.time_s, order = np.unique(np.asarray(time_s, float), return_index=True)
        self.velocity = np.asarray(velocity_w, float).reshape(-1, 3)[order]
        order = np.argsort(np.asarray(sent_s, float), kind="stable")
        self.sent_s, self.sent = np.asarray(sent_s, float)[order], np.asarray(sent_w, float).reshape(-1, 3)[order]
        held = np.nan_to_num(self.sent[:-1]) * np.diff(self.sent_s)[:, None]
        self.total = np.concatenate([np.zeros((1, 3)), np.cumsum(held, axis=0)])  # integral of the commands, m

    def mean_command(self, edges: np.ndarray) -> np.ndarray:
        """Return the mean command between times, [..., E - 1, 3] for edges [..., E]."""
        integral = np.stack([np.interp(edges, self.sent_s, self.total[:, k]) for k in range(3)], axis=-1)
        return np.diff(integral, axis=-2) / np.diff(edges, axis=-1)[..., None]


def read_flown(path: str | os.PathLike[str]) -> Flown:
    """Return what was sent and measured in a flight.

    A log of `fly` has what was sent; one of `simulate` has with each decision what was flown since the last.
    """
    measured: list[tuple[float, Any]] = []
    sent: list[tuple[float, Any]] = []
    flown: list[tuple[float, Any]] = []
    last: float | None = None
    for record in read_log(path):
        if record.kind == "inputs":
            measured.append((record.facts["time_s"], record.arrays["velocity_w"]))
        elif record.kind == "output":
            sent.append((record.time_s, record.arrays["velocity_w"] if record.facts["sent"] else np.full(3, np.nan)))
        elif record.kind == "reset":
            last = None
        elif record.kind == "command":
            if last is not None and "flown_w" in record.arrays:
                flown.append((last, record.arrays["flown_w"]))
            last = record.time_s
    commands = sent or flown
    if not commands or not np.isfinite(np.array([row for _, row in commands], float)).any():
        raise IdentifyError(f"{path} has no velocity that was sent to the drone: fly with --send, not a dry run.")
    if not measured:
        raise IdentifyError(f"{path} has no measured velocity: no odometry arrived in this flight.")
    return Flown(*zip(*measured), *zip(*commands))


class Windows:
    """Parts of a flight of the same number of measurements: W windows, n measurements, J steps of the prediction."""

    def __init__(self, flown: Flown, axes: list[int]) -> None:
        self.flown, self.axes = flown, axes
        rate = float(np.median(np.diff(flown.time_s))) if len(flown.time_s) > 1 else math.inf
        count = max(8, round(WINDOW_S / max(rate, 1e-3)) + 1)
        last = len(flown.time_s) - count + 1 if rate <= 0.25 else 0
        starts = range(0, last, max(1, count // 2))
        rows = [
            start + np.arange(count) for start in starts if self.usable(start, start + count - 1, 1.5 * count * rate)
        ]
        changes = [self.change(row) for row in rows]
        best = [k for k in np.argsort(changes, kind="stable")[::-1][:MOST_WINDOWS] if changes[k] > CHANGE_M_S]
        self.rows = np.array([rows[k] for k in best], int).reshape(-1, count)
        time_s = flown.time_s[self.rows]
        self.begin, self.after = time_s[:, :1], time_s - time_s[:, :1]  # [W, 1], [W, n] s
        self.velocity = flown.velocity[self.rows][..., axes]  # [W, n, A]
        self.steps = math.ceil(float(self.after.max()) / STEP_S) + 1 if len(self.rows) else 0

    def usable(self, first: int, last: int, longest: float) -> bool:
        """Return whether commands were sent throughout a window and its longest delay, and no measurement is missing."""
        begin, end = self.flown.time_s[first], self.flown.time_s[last]
        within = slice(*np.searchsorted(self.flown.sent_s, [begin - HIGHEST[3], end]))
        known = self.flown.sent_s[0] <= begin - HIGHEST[3] and end <= self.flown.sent_s[-1] + 0.5
        finite = np.isfinite(self.flown.sent[max(0, within.start - 1) : within.stop]).all()
        return bool(
            known and finite and end - begin <= longest and np.isfinite(self.flown.velocity[first : last + 1]).all()
        )

    def change(self, row: np.ndarray) -> float:
        """Return the standard deviation of the commands in a window, m/s."""
        edges = np.linspace(self.flown.time_s[row[0]], self.flown.time_s[row[-1]], 41)
        return float(np.sqrt(self.flown.mean_command(edges)[:, self.axes].var(axis=0).max()))

    def errors(self, rates: np.ndarray) -> np.ndarray:
        """Return the errors of the predicted velocity, [K, W, n, A] m/s, by rates [K, 4]: gain, lag, damping, delay."""
        grid = np.arange(self.steps + 1) * STEP_S
        tables = np.stack([response(grid, tuple(rate[:3]))[:, 1:] for rate in rates])  # [K, J + 1, 2, 3]
        commands = {
            delay: self.flown.mean_command(self.begin + grid - delay)[..., self.axes] for delay in set(rates[:, 3])
        }
        given = np.stack([commands[delay] for delay in rates[:, 3]])  # [K, W, J, A]
        move = tables[:, 1]
        state = np.zeros((2, *given.shape[:2], given.shape[3]))
        forced = np.zeros((*given.shape[:2], self.steps + 1, given.shape[3]))
        for j in range(self.steps):
            state = np.stack(
                [
                    move[:, row, 0, None, None] * state[0]
                    + move[:, row, 1, None, None] * state[1]
                    + move[:, row, 2, None, None] * given[:, :, j]
                    for row in (0, 1)
                ]
            )
            forced[:, :, j + 1] = state[0]
        at = np.minimum((self.after / STEP_S).astype(int), self.steps - 1)
        share = self.after / STEP_S - at  # between two steps
        which = np.arange(len(self.rows))[:, None]
        missing = self.velocity - (1 - share)[..., None] * forced[:, which, at]
        missing -= share[..., None] * forced[:, which, at + 1]
        free = tables[:, :, 0, :2]  # of the initial velocity and acceleration
        basis = (1 - share)[..., None] * free[:, at] + share[..., None] * free[:, at + 1]  # [K, W, n, 2]
        first = basis[..., 0] / np.linalg.norm(basis[..., 0], axis=-1, keepdims=True)
        second = basis[..., 1] - (first * basis[..., 1]).sum(axis=-1, keepdims=True) * first
        second /= np.maximum(np.linalg.norm(second, axis=-1, keepdims=True), 1e-12)
        for one in (first, second):
            missing = missing - one[..., None] * (one[..., None] * missing).sum(axis=2, keepdims=True)
        return missing

    def error(self, rate: Any) -> float:
        """Return the root mean square of the errors of the predicted velocity, m/s."""
        return float(np.sqrt(np.square(self.errors(np.array([rate], float))).mean()))


def fit(windows: Windows, grid: np.ndarray, free: list[int]) -> np.ndarray:
    """Return the rate with the least squared error: the best of a grid [K, 4], its numbers `free` refined."""
    sums = np.concatenate(
        [np.square(windows.errors(part)).mean(axis=(1, 2, 3)) for part in np.array_split(grid, max(1, len(grid) // 40))]
    )
    best, damping = grid[np.argmin(sums)].copy(), 1e-3
    step = np.array([1e-3, 1e-3, 1e-3, 2e-3])
    for _ in range(40):
        tried = np.stack([best, *(np.where(np.arange(4) == k, best + step, best) for k in free)])
        errors = windows.errors(tried).reshape(len(tried), -1)
        slope = ((errors[1:] - errors[0]) / step[free, None]).T
        square, toward = slope.T @ slope, slope.T @ errors[0]
        moved = best.copy()
        moved[free] -= np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), toward)
        moved = np.clip(moved, LOWEST, HIGHEST)
        if np.square(windows.errors(moved[None])).sum() < np.square(errors[0]).sum():
            done = np.abs(moved - best).max() < 1e-4
            best, damping = moved, 0.3 * damping
            if done:
                break
        else:
            damping *= 10.0
            if damping > 1e4:
                break
    return best


def identify(log: str | os.PathLike[str], given: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the response of the drone in a flight log.

    The result has `response` (the six settings), `policy` (to deploy the planner with it), `error_m_s` and `given_error_m_s`
    (horizontal and vertical, of the fit and of the given response), `windows`, and `warnings`, sentences.

    Args:
        given: Settings of a planner, for comparison; None: its defaults. The vertical response is this one where a flight
            hardly climbs.

    Raises:
        IdentifyError: if the commands of the flight change too little to tell.
    """
    from fledge_runtime.planner_settings import read_settings

    settings = read_settings(given or {})
    gain, damping, lag, climb_gain, climb_lag, delay = (float(settings[f"planner.{name}"]) for name in NAMES)
    flown = read_flown(log)
    flat, upright = Windows(flown, [0, 1]), Windows(flown, [2])
    if len(flat.rows) < FEWEST_WINDOWS:
        raise IdentifyError(
            f"{log} has {len(flat.rows)} windows of {WINDOW_S:g} s in which the horizontal command changes, but "
            f"{FEWEST_WINDOWS} are needed: fly back and forth at changing speeds for 20 s."
        )
    grid = np.array([(g, a, d, s) for g in GAINS for a in LAGS for d in DAMPINGS for s in DELAYS])
    level = fit(flat, grid, [0, 1, 2, 3])
    warnings, climb = [], np.array([climb_gain, climb_lag, level[2], level[3]])
    if len(upright.rows) < FEWEST_WINDOWS:
        warnings.append("The flight hardly climbs: climb_gain and climb_lag_s are those given before, not identified.")
    else:
        climb = fit(upright, np.array([(g, a, level[2], level[3]) for g in GAINS for a in LAGS]), [0, 1])
    if climb[1] > level[1]:
        warnings.append(f"climb_lag_s was {climb[1]:.3f}, but the planner takes at most lag_s.")
        climb[1] = level[1]
    error, before = {"horizontal": flat.error(level)}, {"horizontal": flat.error((gain, lag, damping, delay))}
    if len(upright.rows):
        error["vertical"] = upright.error(climb)
        before["vertical"] = upright.error((climb_gain, min(lag, climb_lag), damping, delay))
    for name, windows in (("horizontal", flat), ("vertical", upright)):
        if name in error and error[name] > max(POOR_M_S, POOR_SHARE * float(windows.velocity.std(axis=1).mean())):
            warnings.append(f"The {name} fit is poor: the drone does not respond as the planner's model does.")
    if ((level <= LOWEST)[[0]] | (level >= HIGHEST)[[0]]).any() or level[3] >= HIGHEST[3]:
        warnings.append("gain or delay_s is at its limit: check that velocity and commands are in the same frame.")
    found = (level[0], level[2], level[1], climb[0], climb[1], level[3])
    answer = {name: round(float(value), 3) for name, value in zip(NAMES, found)}
    values = ",".join(f"{name}={value:g}" for name, value in answer.items())
    return {
        "response": answer,
        "policy": f"planner(guard=true,{values})",
        "error_m_s": error,
        "given_error_m_s": before,
        "windows": {"horizontal": len(flat.rows), "vertical": len(upright.rows)},
        "warnings": warnings,
    }


def describe(told: dict[str, Any], given: str) -> str:
    """Return the lines for the result of `identify`; `given` names the response for comparison."""
    units = {"gain": "1/s", "damping": "1/s", "climb_gain": "1/s"}
    lines = [f"{name:12} {value:7.3f} {units.get(name, 's')}" for name, value in told["response"].items()]
    for name, error in told["error_m_s"].items():
        lines.append(
            f"error of the predicted {name} velocity: {error:.3f} m/s in {told['windows'][name]} windows of {WINDOW_S:g} s "
            f"({given}: {told['given_error_m_s'][name]:.3f} m/s)"
        )
    lines += [f"Warning: {text}" for text in told["warnings"]]
    return "\n".join([*lines, "Deploy the planner with this response, where Fledge is installed:"]) + (
        f"\n  fledge deploy '{told['policy']}' FOLDER"
    )
