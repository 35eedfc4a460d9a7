"""The contract of a deployment folder: the exported policy's contract, with what a robot must know besides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fledge.evaluation.results import Evaluation
from fledge.tasks.policy_loader import LoadedPolicy

ABSENT: dict[str, Any] = {
    "timing": {},
    "limits": {},
    "missing": {},
    "sensor": None,
    "planner": None,
    "raw_inputs": None,
}
INNER = ("env", "planner", "computed_by", "pose", "collision_radius_m", "min_height_m", "max_height_m")  # of `plan`


def make_contract(policy: LoadedPolicy, cfg: Any, exported: dict[str, Any], network: bool = True) -> dict[str, Any]:
    """Return the contract of a policy in an env config, without hashes and results.

    Args:
        exported: The contract of its ONNX file.
        network: False if there is no such file: the planner flies alone.
    """
    from fledge_runtime.contract import FORMAT, VERSION

    told = policy.task.policy.robot.describe(cfg, policy.agent.observes, network)
    if not network:
        exported = {**exported, "inputs": []}
    observation = {name: dict(entry) for name, entry in exported["observation"].items()}
    if told is not None:
        for name, text in told["missing"].items():
            observation[name]["missing"] = text
        for name in (told["planner"] or {}).get("computes", ()):
            observation[name] = {key: value for key, value in observation[name].items() if key not in INNER}
            observation[name]["computed"] = "by the runtime's planner"
    resets = [*(told["reset"] if told else []), *(["network's state_in"] if "memory" in exported else [])]
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "policy": policy.name,
        **exported,
        **ABSENT,
        **(told or {}),
        "observation": observation,
        "reset": resets,
        "evaluated": None,
    }


def evaluated_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the results of an evaluation as the entry `evaluated` of a contract."""
    rows = []
    for row, result in zip(evaluation.rows, evaluation.results, strict=True):
        low, high = result.score_ci95
        told = {"env": row["world"], "episodes": result.episodes, "seed": row["seed"], "metric": result.primary_metric}
        rows.append({**told, "value": result.score, "interval": [low, high], "outcomes": result.counts})
    return rows


def hash_files(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of files in a folder, by name."""
    from fledge_runtime.contract import file_hash

    return {name: file_hash(folder / name) for name in sorted(names)}
