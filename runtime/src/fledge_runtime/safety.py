"""Guard between a policy and a flight controller: limits, a watchdog, a geofence and four states.

    waiting --(flight controller armed and in offboard mode)--> flying
    flying --(a reason of the table)--> hovering --(hover_s later)--> handed_over
    hovering --(reason resumes, all checks passed for recover_s)--> flying

`Guard.update` takes inputs and runs the policy; `Guard.output` returns the velocity to send now. They may run in two threads:
`output` never waits for the policy, so that setpoints go on while a decision hangs (PX4 leaves offboard mode below 2 Hz).
Hovering sends zero velocity. Handed over means: request the flight controller's own hold mode and stop sending. The guard
neither arms nor enters offboard mode; the human pilot does.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fledge_runtime.errors import InputError
from fledge_runtime.limits import AT_ONCE as AT_ONCE
from fledge_runtime.limits import REASONS, Fence, Limits, invalid, tilt_deg
from fledge_runtime.limits import Box as Box
from fledge_runtime.limits import Cylinder as Cylinder

WAITING, FLYING, HOVERING, HANDED_OVER = STATES = ("waiting", "flying", "hovering", "handed_over")
Vector = np.ndarray


@dataclasses.dataclass(frozen=True)
class SafeCommand:
    """A velocity after the guard, [3] m/s, world, with the state and the reason for it."""

    velocity_w: Vector
    state: str
    reason: str  # empty while flying
    send: bool  # False in a dry run and after handing over
    hold: bool  # request the flight controller's own hold mode


class Guard:
    """Run a policy within limits.

    Args:
        pilot: Has `reset(position_w, goal_w)` and `step(inputs)`, which returns an object with `velocity_w`.
        fence: None makes no geofence; `fledge-runtime fly` always has one.
        send: False is a dry run: everything is computed, nothing is to be sent.
        clock: Seconds on the clock of `inputs.time_s`.
    """

    def __init__(
        self,
        pilot: Any,
        limits: Limits | None = None,
        fence: Fence | None = None,
        send: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pilot, self.limits, self.fence, self.send, self.clock = pilot, limits or Limits(), fence, send, clock
        self.history: list[tuple[float, str, str]] = []  # time, state and reason of every change
        self.error: Exception | None = None  # the last one that the policy raised
        self._lock = threading.Lock()
        self._begin(np.zeros(3))

    def _begin(self, goal_w: Vector) -> None:
        self.state, self.reason, self.since, self.resumes = WAITING, "", self.clock(), 0
        self.goal_w = goal_w
        self._last: Any = None  # the newest valid inputs
        self._points_time: float | None = None
        self._decided = self._moved = -math.inf  # when the last decision ended, and the position last changed
        self._good_since = self._deciding = math.inf  # since when: all checks pass, a decision runs
        self._policy_velocity, self.last_sent, self._sent_time = np.zeros(3), np.zeros(3), self.since
        del self.history[:]

    def reset(self, goal_w: Any) -> None:
        """Begin a flight: wait until `update` is told that the flight controller takes commands."""
        goal = np.asarray(goal_w, float)
        if goal.shape != (3,) or not np.isfinite(goal).all():
            raise ValueError(f"goal_w={goal_w!r} must be three finite numbers: x, y, z in metres.")
        if self.fence is not None and not self.fence.contains(goal):
            raise ValueError(f"The goal {goal.tolist()} is outside of the geofence {self.fence}.")
        with self._lock:
            self._begin(goal)

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def update(self, inputs: Any, engaged: bool = True, points_time_s: float | None = None) -> Vector | None:
        """Check inputs, run the policy, and return its own velocity, [3] m/s, world; None if it was not run.

        Args:
            engaged: The flight controller is armed and in offboard mode. In a dry run pass True.
            points_time_s: When the point cloud was measured; None if there is no cloud or its age is not known.
        """
        with self._lock:
            now = self.clock()
            if not self._engage(inputs, engaged, now) or self.state == HANDED_OVER:
                return None
            fault = self._check(inputs, now)
            if fault == "reordered":
                return None
            fault = fault or self._check_points(points_time_s, now) or self._too_old(now, deciding=True)
            self._note(fault, now)
            if fault == "invalid_input":
                return None
            self._deciding = now
        try:
            given = dataclasses.replace(inputs, flown_w=self.last_sent)  # limits may have changed the policy's command
            velocity = np.array(self.pilot.step(given).velocity_w, float)
            failed = velocity.shape != (3,) or not np.isfinite(velocity).all()
            failure = "decision_failed" if failed else ""
        except Exception as error:  # any error of a policy must end in hovering
            self.error, failure = error, "invalid_input" if isinstance(error, InputError) else "decision_failed"
        with self._lock:
            now, self._deciding = self.clock(), math.inf
            if failure:
                self._note(failure, now)
                return None
            self._decided, self._policy_velocity = now, velocity
        return velocity

    def _engage(self, inputs: Any, engaged: bool, now: float) -> bool:
        """Return whether the flight has begun; begin it when the flight controller takes commands."""
        if self.state == WAITING and engaged and invalid(inputs) is False:
            self.pilot.reset(np.asarray(inputs.position_w, float), self.goal_w)
            self._change(FLYING, "", now)
            self._decided = self._moved = now
        elif self.state in (FLYING, HOVERING) and not engaged:
            self._change(HANDED_OVER, "taken_over", now)
        return self.state != WAITING

    def _check(self, inputs: Any, now: float) -> str:
        """Return the name of the reason to stop that the newest inputs give, "" if there is none."""
        if invalid(inputs):
            return "invalid_input"
        position, velocity = np.asarray(inputs.position_w, float), np.asarray(inputs.velocity_w, float)
        last, limits = self._last, self.limits
        step = 0.0 if last is None else inputs.time_s - last.time_s
        if inputs.time_s > now + limits.clock_jump_s or step < -limits.clock_jump_s:
            return "clock_jump"
        if last is not None and step <= 0:
            return "reordered"  # no newer reading: not used
        self._last = inputs
        before = position if last is None else np.asarray(last.position_w, float)
        if last is None or (position != before).any() or not self._moving(velocity):
            self._moved = now
        if now - self._moved > limits.frozen_s:
            return "frozen_odometry"
        reach = limits.position_jump_m + limits.fastest_m_s * min(step, limits.input_timeout_s)
        if float(np.linalg.norm(position - before)) > reach:
            return "position_jump"
        if not limits.height_m[0] <= position[2] <= limits.height_m[1]:
            return "out_of_height"
        if float(np.linalg.norm(velocity)) > limits.fastest_m_s:
            return "too_fast"
        if tilt_deg(inputs.quaternion_wxyz) > limits.tilt_deg:
            return "too_tilted"
        ahead = position + limits.fence_lookahead_s * velocity
        if self.fence is not None and not (self.fence.contains(position) and self.fence.contains(ahead)):
            return "geofence"
        return "goal_reached" if float(np.linalg.norm(position - self.goal_w)) < limits.goal_radius_m else ""

    def _check_points(self, measured: Any, now: float) -> str:
        """Keep the time of the point cloud; return "clock_jump" if it is in the future or no number."""
        try:
            at = None if measured is None else float(measured)
        except (TypeError, ValueError):
            at = math.nan
        self._points_time = at
        return "" if at is None or at <= now + self.limits.clock_jump_s else "clock_jump"

    def _moving(self, velocity: Vector) -> bool:
        return max(float(np.linalg.norm(velocity)), float(np.linalg.norm(self.last_sent)) if self.send else 0.0) > 0.05

    # ---- states ------------------------------------------------------------------------------------------------------

    def _too_old(self, now: float, deciding: bool) -> str:
        """Return the reason that time alone gives."""
        measured = -math.inf if self._last is None else self._last.time_s
        if now - measured > self.limits.input_timeout_s:
            if now >= self._deciding:
                return "late_decision"  # inputs are not read before it ends
            return "stale_odometry" if self._last is not None or now - self.since > self.limits.input_timeout_s else ""
        if self._points_time is not None and now - self._points_time > self.limits.points_timeout_s:
            return "stale_points"
        return "late_decision" if not deciding and now - self._decided > self.limits.decision_timeout_s else ""

    def _note(self, fault: str, now: float) -> None:
        """Move between flying, hovering and handed over."""
        if self.state == FLYING and fault:
            if self.resumes >= self.limits.max_resumes and REASONS[fault].resumes:
                fault = "too_many_faults"
            self._change(HOVERING, fault, now)
        elif self.state == HOVERING:
            self.since = min(self.since, now)  # a clock that was set back must not prolong the hover
            if fault and not REASONS[fault].resumes and REASONS[self.reason].resumes:
                self.reason = fault  # the flight now ends for this one
                self.history.append((now, HOVERING, fault))
            self._good_since = math.inf if fault else min(self._good_since, now)
            if now - self.since >= self.limits.hover_s:
                self._change(HANDED_OVER, self.reason, now)
            elif REASONS[self.reason].resumes and now - self._good_since >= self.limits.recover_s:
                self.resumes += 1
                self._change(FLYING, "", now)

    def _change(self, state: str, reason: str, now: float) -> None:
        self.state, self.reason, self.since, self._good_since = state, reason, now, math.inf
        self.history.append((now, state, reason))

    def stop(self, reason: str = "stopped") -> None:
        """Hand over at once."""
        with self._lock:
            if self.state != HANDED_OVER:
                self._change(HANDED_OVER, reason, self.clock())

    # ---- output ------------------------------------------------------------------------------------------------------

    def output(self) -> SafeCommand:
        """Return the velocity to send now: call it at 10 Hz or more, also while `update` runs in another thread."""
        with self._lock:
            now = self.clock()
            if now < self._sent_time:
                self._note("clock_jump", now)
            elif self.state in (FLYING, HOVERING):
                fault = self._too_old(now, deciding=False)
                if fault or (self.state == HOVERING and now - self.since >= self.limits.hover_s):
                    self._note(fault, now)
            wanted = limited(self._policy_velocity, self.limits.speed_m_s) if self.state == FLYING else np.zeros(3)
            if self.state == FLYING:
                most = self.limits.slew_m_s2 * min(max(now - self._sent_time, 0.0), 0.1)
                wanted = self.last_sent + limited(wanted - self.last_sent, most)
            self.last_sent, self._sent_time = wanted, now
            over = self.state == HANDED_OVER
            return SafeCommand(wanted, self.state, self.reason, self.send and not over, self.send and over)


def limited(vector: Vector, length: float) -> Vector:
    """Return a vector that is shortened to at most `length`."""
    norm = float(np.linalg.norm(vector))
    return vector * (length / norm) if norm > length else vector
