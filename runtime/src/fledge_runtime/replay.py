"""Give the inputs of a flight log to a policy again, and compare its commands with those of the flight."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from fledge_runtime.errors import RuntimeFault
from fledge_runtime.log import LogError, read_log, restore
from fledge_runtime.safety import limited

SAME_PERIOD = 0.25  # by which share periods may differ that count as the same


def replay(log: str | os.PathLike[str], pilot: Any) -> dict[str, Any]:
    """Fly a log's inputs with a pilot; return how its commands differ from the logged ones.

    The result has `decisions`, `equal` (bit for bit), `failed` (the pilot raised an error), `largest_m_s` and `mean_m_s` (of
    the difference), `turned_deg` (mean angle between commands of at least 0.05 m/s), `gaps` (records that are missing: a
    policy with a memory cannot give the same commands after one) and `identity` of the folder that flew. Differences and
    angles are those of commands after the flight's speed limit, `limit_m_s` (None: unknown). `decision_s` is the pilot's
    period, `flown_decision_s` that of the flight, and `comparable` whether they agree.
    """
    differences: list[float] = []
    angles: list[float] = []
    told: dict[str, Any] = {"decisions": 0, "equal": 0, "failed": 0, "gaps": 0, "identity": None, "limit_m_s": None}
    damaged: list[int] = []
    times: list[float] = []
    inputs, begun = None, False
    for record in read_log(log, damaged):
        if record.kind == "begin":
            told["identity"] = record.facts.get("identity")
            told["limit_m_s"] = speed_limit(record.facts.get("limits"))
        elif record.kind == "dropped":
            told["gaps"] += 1
        elif record.kind == "reset":
            pilot.reset(record.arrays["position_w"], record.arrays["goal_w"])
            begun = True
        elif record.kind == "inputs":
            inputs = restore(record.arrays, record.facts)
        elif (
            record.kind == "command" and begun and inputs is not None and inputs.time_s == record.facts["inputs_time_s"]
        ):
            told["decisions"] += 1
            times.append(inputs.time_s)
            inputs.flown_w = record.arrays.get("flown_w")
            try:
                ours = np.asarray(pilot.step(inputs).velocity_w, float)
            except RuntimeFault:
                told["failed"] += 1
                continue
            theirs = record.arrays["velocity_w"]
            told["equal"] += int(np.array_equal(ours, theirs))
            if told["limit_m_s"] is not None:
                ours, theirs = (limited(command, told["limit_m_s"]) for command in (ours, theirs))
            differences.append(float(np.linalg.norm(ours - theirs)))
            lengths = float(np.linalg.norm(ours)), float(np.linalg.norm(theirs))
            if min(lengths) >= 0.05:
                angles.append(
                    float(np.degrees(np.arccos(np.clip(ours @ theirs / (lengths[0] * lengths[1]), -1.0, 1.0))))
                )
    if not told["decisions"]:
        raise LogError(f"{log} has no decisions: the policy was never run in this flight.")
    told["gaps"] += len(damaged)
    told["largest_m_s"], told["mean_m_s"] = max(differences, default=0.0), float(np.mean(differences or [0.0]))
    told["turned_deg"] = float(np.mean(angles or [0.0]))
    told["decision_s"] = ours_s = getattr(pilot, "decision_s", None)
    told["flown_decision_s"] = theirs_s = float(np.median(np.diff(times))) if len(times) > 1 else None
    told["comparable"] = not ours_s or not theirs_s or abs(ours_s / theirs_s - 1.0) <= SAME_PERIOD
    return told


def speed_limit(limits: Any) -> float | None:
    """Return the speed limit of a flight, m/s, from the limits in its log: settings by name, or the text of a Limits."""
    if isinstance(limits, dict):
        value = limits.get("speed_m_s")
        return None if value is None else float(value)
    found = re.search(r"\bspeed_m_s=([0-9.eE+-]+)", str(limits))
    return float(found.group(1)) if found else None


def describe(told: dict[str, Any]) -> str:
    """Return a sentence for the result of `replay`."""
    count = told["decisions"]
    if told["equal"] == count:
        text = f"{count} decisions, all equal bit for bit"
    else:
        text = (
            f"{count} decisions, {told['equal']} equal; differences: mean {told['mean_m_s']:.3f} m/s, largest "
            f"{told['largest_m_s']:.3f} m/s, mean angle {told['turned_deg']:.1f}°"
        )
        if told["limit_m_s"] is not None:
            text += f" (after the flight's limit of {told['limit_m_s']:g} m/s)"
        if told["decision_s"] is not None and told["flown_decision_s"] is not None:
            text += (
                f"; a decision every {told['decision_s']:.3f} s, in the flight every {told['flown_decision_s']:.3f} s"
            )
        if not told["comparable"]:
            text += ": the figures of policies with other periods are not comparable"
    if told["failed"]:
        text += f"; {told['failed']} inputs refused"
    return text + (f"; the log has {told['gaps']} gaps" if told["gaps"] else "")
