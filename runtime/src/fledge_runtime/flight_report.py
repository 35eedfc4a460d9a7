"""What happened in a flight, from its log: events with the inputs before them, gaps, decision times, distance."""

from __future__ import annotations

import os
from typing import Any, Iterable

import numpy as np

from fledge_runtime.log import LogError, read_log

GAPS = 3


def report(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what happened in a flight, JSON-able. Times are seconds from the log's begin.

    `begin` has what the log says about the flight: identity of the folder, goal, limits, geofence, and more. Each entry of
    `events` has `at_s`, `state`, `reason`, `text`, the last `inputs` (position, velocity) and their `ages_s`. `reason` is that
    of the end.
    """
    told: dict[str, Any] = {"log": str(path), "begin": {}, "events": [], "dropped": 0, "complete": False}
    damaged: list[int] = []
    counts: dict[str, int] = {}
    measured: list[float] = []
    places: list[Any] = []
    decided: list[float] = []
    spans: list[float] = []
    start = last = None
    inputs: Any = None
    for record in read_log(path, damaged):
        start, last = record.time_s if start is None else start, record.time_s
        counts[record.kind] = counts.get(record.kind, 0) + 1
        if record.kind == "begin":
            told["begin"] = record.facts
        elif record.kind == "reset":
            told["goal_w"] = [float(value) for value in record.arrays["goal_w"]]
        elif record.kind == "inputs":
            inputs = record
            measured.append(float(record.facts["time_s"]))
            places.append(record.arrays["position_w"])
        elif record.kind == "command":
            decided.append(record.time_s)
            spans.append(float(record.facts["ms"]))
        elif record.kind == "event":
            told["events"].append(event_of(record, inputs, start))
        elif record.kind == "dropped":
            told["dropped"] += int(record.facts["records"])
        elif record.kind == "end":
            told["complete"] = True
    if start is None or last is None:
        raise LogError(f"{path} has no whole record: the flight ended before anything was written.")
    path_w = np.asarray(places, float).reshape(-1, 3)
    path_w = path_w[np.isfinite(path_w).all(axis=1)]
    told.update(
        reason=end_reason(told["events"]),
        seconds=last - start,
        records=counts,
        damaged=len(damaged),
        distance_m=float(np.linalg.norm(np.diff(path_w, axis=0), axis=1).sum()),
        gaps=largest_gaps(measured, start),
        decision_period_s=mean_and_p99(np.diff(decided)),
        decision_ms=mean_and_p99(spans),
    )
    return told


def event_of(record: Any, inputs: Any, start: float) -> dict[str, Any]:
    """Return an event with the inputs before it."""
    facts = record.facts
    at = float(facts.get("at", record.time_s))
    text = ", ".join(f"{name}: {value}" for name, value in facts.items() if name not in ("state", "reason", "at"))
    event = {"at_s": at - start, "state": facts.get("state", ""), "reason": facts.get("reason", ""), "text": text}
    if inputs is not None:
        times = {name: value for name, value in inputs.facts.items() if name.endswith("time_s") and value is not None}
        event["inputs"] = {name: inputs.arrays[name].tolist() for name in ("position_w", "velocity_w")}
        event["ages_s"] = {name[:-6].rstrip("_") or "odometry": at - float(value) for name, value in times.items()}
    return event


def end_reason(events: Iterable[Any]) -> str:
    """Return the reason for which a flight ended; stopping a flight that was ending anyway is none of its own."""
    reason = ""
    for event in events:
        if event.get("state") == "flying":
            reason = ""
        elif event.get("reason") and not (reason and event["reason"] == "stopped"):
            reason = str(event["reason"])
    return reason


def largest_gaps(times: list[float], start: float) -> list[dict[str, float]]:
    """Return the longest times between two measurements, the longest first."""
    gaps = np.diff(times)
    return [{"at_s": times[k] - start, "seconds": float(gaps[k])} for k in np.argsort(gaps)[::-1][:GAPS]]


def mean_and_p99(values: Any) -> dict[str, float] | None:
    """Return mean and 99th percentile; None without values."""
    return {"mean": float(np.mean(values)), "p99": float(np.percentile(values, 99))} if len(values) else None


def describe(told: dict[str, Any]) -> list[str]:
    """Return the lines that `fledge-runtime log` prints."""
    lines = [
        f"{told['log']}: {told['seconds']:.1f} s, {told['distance_m']:.1f} m, ended: {told['reason'] or 'not told'}"
    ]
    lines += [f"{name}: {value}" for name, value in told["begin"].items()]
    if "goal_w" in told:
        lines.append(f"reset with goal {numbers(told['goal_w'])} m")
    for event in told["events"]:
        what = ": ".join(part for part in (event["state"], event["reason"], event["text"]) if part)
        line = f"{event['at_s']:8.2f} s  {what}"
        if "inputs" in event:
            ages = ", ".join(f"{name} {value:.2f} s old" for name, value in event["ages_s"].items())
            line += f"  (at {numbers(event['inputs']['position_w'])} m, {numbers(event['inputs']['velocity_w'])} m/s, {ages})"
        lines.append(line)
    if not told["events"]:
        lines.append("no events")
    for gap in told["gaps"]:
        lines.append(f"no measurement for {gap['seconds']:.3f} s at {gap['at_s']:.2f} s")
    if told["decision_period_s"] is not None:
        period, ms = told["decision_period_s"], told["decision_ms"]
        lines.append(
            f"{told['records']['command']} decisions: period mean {period['mean']:.3f} s, p99 {period['p99']:.3f} s; computed "
            f"in mean {ms['mean']:.2f} ms, p99 {ms['p99']:.2f} ms"
        )
    ending = "" if told["complete"] else "; the log was cut off"
    return [*lines, f"{told['dropped']} records dropped, {told['damaged']} damaged places{ending}"]


def numbers(values: Any) -> str:
    """Return numbers with two decimals."""
    return " ".join(f"{value:.2f}" for value in values)
