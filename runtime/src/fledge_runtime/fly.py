"""Fly a vehicle with a guarded pilot: decisions in this thread, setpoints from another, everything in the log."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import Any, Callable

import numpy as np

from fledge_runtime.errors import InputError
from fledge_runtime.log import FlightLog, plain
from fledge_runtime.safety import FLYING, HANDED_OVER, HOVERING, WAITING, Guard

SEND_HZ = 20.0
HOLD_S = 2.0  # hold mode is requested, and zero velocity sent, at most for this time
HOLD_EVERY_S = 0.25


def fly(
    vehicle: Any,
    guard: Guard,
    decision_s: float,
    duration_s: float = math.inf,
    log: FlightLog | None = None,
    tell: Callable[[str], None] = print,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Fly until the guard hands over, `duration_s` ends or `stop` is set; then hand over. Return facts of the flight.

    An error of `vehicle` or of its inputs also hands over; then `reason` is `input_failed`, and `error` its text.

    Args:
        vehicle: A bridge, as MavlinkBridge: `poll`, `inputs`, `points_time_s`, `takes_setpoints`, `send_velocity`,
            `request_hold`, `tick`.
        guard: After `reset(goal_w)`.
    """
    stop, ended = stop or threading.Event(), threading.Event()
    tell = quiet(tell)
    sender = threading.Thread(target=_send, args=(vehicle, guard, log, ended), name="setpoints", daemon=True)
    told, decisions, worst_ms, seen, begun = 0, 0, 0.0, None, guard.clock()
    due = second = begun
    ending, failed, lost = "stopped", "", False
    sender.start()
    try:
        while guard.state != HANDED_OVER and not stop.is_set():
            if guard.clock() - begun >= duration_s:
                ending = (guard.state == HOVERING and guard.reason) or "duration"
                break
            vehicle.poll(min(max(due - guard.clock(), 0.001), 0.02))
            if hasattr(vehicle, "offset"):
                vehicle.offset.locked = guard.state != WAITING
            now = guard.clock()
            if now >= due:
                due = max(due + decision_s, now)  # late decisions are not caught up on
                inputs = vehicle.inputs()
                if inputs is not None:
                    engaged = vehicle.takes_setpoints or not guard.send
                    seen = _logged(inputs, engaged, log)
                    mark = time.perf_counter()
                    if guard.update(seen, engaged, vehicle.points_time_s) is not None:
                        decisions += 1
                        worst_ms = max(worst_ms, 1e3 * (time.perf_counter() - mark))
            told = _tell_changes(guard, told, begun, log, tell)
            if now >= second:
                second = now + 1.0
                tell(_line(guard, seen, now - begun))
                if log is not None and log.error and not lost:
                    lost = True
                    tell(log.error)
    except KeyboardInterrupt:
        pass
    except Exception as error:  # of the vehicle or of a function of the user's: hand over, then say it
        ending, failed = (
            "input_failed",
            str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}",
        )
    finally:
        try:
            guard.stop(ending)
            until = time.monotonic() + HOLD_S
            while guard.send and vehicle.takes_setpoints and time.monotonic() < until:
                quiet(vehicle.poll)(0.02)
                ended.wait(0.001)
        finally:
            ended.set()
        sender.join(2.0)
        if failed:
            tell(f"Reading the inputs failed: {failed}.")
            if log is not None:
                quiet(log.add)("event", {"error": failed})
        _tell_changes(guard, told, begun, log, tell)
    facts = {"reason": guard.reason, "decisions": decisions, "worst_ms": worst_ms, "resumes": guard.resumes}
    facts.update(error=failed, flew=any(state == FLYING for _, state, _ in guard.history))
    return {**facts, "seconds": guard.clock() - begun, "held": guard.send and not vehicle.takes_setpoints}


def quiet(call: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that calls and swallows every error: a closed pipe or a full disk must not end a flight."""

    def attempt(*args: Any, **words: Any) -> None:
        with contextlib.suppress(Exception):
            call(*args, **words)

    return attempt


def _logged(inputs: Any, engaged: bool, log: FlightLog | None) -> Any:
    """Return the inputs as the log has them; as they are if they make no sense, which the guard will see."""
    try:
        seen = plain(inputs)
    except (InputError, TypeError, ValueError):
        return inputs
    if log is not None:
        quiet(log.inputs)(seen, engaged)
    return seen


def _send(vehicle: Any, guard: Guard, log: FlightLog | None, ended: threading.Event) -> None:
    asked, handed = -math.inf, None
    while not ended.wait(1.0 / SEND_HZ):
        command = guard.output()
        quiet(vehicle.tick)()
        if command.send:
            quiet(vehicle.send_velocity)(command.velocity_w)
        elif command.hold:
            now = guard.clock()
            handed = now if handed is None else handed
            if vehicle.takes_setpoints and now - handed < HOLD_S and guard.reason != "taken_over":
                quiet(vehicle.send_velocity)(np.zeros(3))  # until the mode has changed
                if now - asked >= HOLD_EVERY_S:
                    asked = now
                    quiet(vehicle.request_hold)()
        if log is not None:
            facts = {"state": command.state, "reason": command.reason, "sent": command.send}
            quiet(log.add)("output", facts, velocity_w=command.velocity_w)


def _tell_changes(guard: Guard, told: int, begun: float, log: FlightLog | None, tell: Callable[[str], None]) -> int:
    for at, state, reason in guard.history[told:]:
        tell(f"{at - begun:7.2f} s  {state}{': ' + reason if reason else ''}")
        if log is not None:
            quiet(log.add)("event", {"state": state, "reason": reason, "at": at})
    return len(guard.history)


def _line(guard: Guard, seen: Any, seconds: float) -> str:
    if seen is None:
        return f"{seconds:7.2f} s  no odometry yet"
    place, velocity = (" ".join(f"{value:.2f}" for value in vector) for vector in (seen.position_w, guard.last_sent))
    sent = "sent" if guard.send and guard.state != HANDED_OVER else "not sent"
    text = f"{seconds:7.2f} s  {guard.state:8} at {place} m, command {velocity} m/s ({sent})"
    return text if guard.error is None else f"{text}  {type(guard.error).__name__}: {guard.error}"
