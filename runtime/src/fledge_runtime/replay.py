"""Give the inputs of a flight log to a policy again, and compare its commands with those of the flight."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fledge_runtime.errors import RuntimeFault
from fledge_runtime.log import LogError, read_log, restore


def replay(log: str | os.PathLike[str], pilot: Any) -> dict[str, Any]:
    """Fly a log's inputs with a pilot; return how its commands differ from the logged ones.

    The result has `decisions`, `equal` (bit for bit), `failed` (the pilot raised an error), `largest_m_s` and `mean_m_s` (of
    the difference), `turned_deg` (mean angle between commands of at least 0.05 m/s), `gaps` (records that are missing: a
    policy with a memory cannot give the same commands after one) and `identity` of the folder that flew.
    """
    differences: list[float] = []
    angles: list[float] = []
    told: dict[str, Any] = {"decisions": 0, "equal": 0, "failed": 0, "gaps": 0, "identity": None}
    damaged: list[int] = []
    inputs, begun = None, False
    for record in read_log(log, damaged):
        if record.kind == "begin":
            told["identity"] = record.facts.get("identity")
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
            inputs.flown_w = record.arrays.get("flown_w")
            try:
                ours = np.asarray(pilot.step(inputs).velocity_w, float)
            except RuntimeFault:
                told["failed"] += 1
                continue
            theirs = record.arrays["velocity_w"]
            told["equal"] += int(np.array_equal(ours, theirs))
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
    return told


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
    if told["failed"]:
        text += f"; {told['failed']} inputs refused"
    return text + (f"; the log has {told['gaps']} gaps" if told["gaps"] else "")
