"""The state of a sweep as one file, `summary.json`, from which the terminal, the report and the browser show it.

Workers replace the file after every event. Programs that show a sweep read only this file, so they can neither disturb the
study nor meet a half-written one.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fledge.core.json_file import read_json
from fledge.core.terminal import strict_json
from fledge.monitor.metrics_file import is_number
from fledge.storage.disk.durable import write_text

FILE = "summary.json"
FEWEST = 4  # trials for importances


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the content of `summary.json`; {} if there is none, or if it cannot be used."""
    found = read_json(folder / FILE)
    return found if isinstance(found, dict) and isinstance(found.get("trials"), list) else {}


def write_summary(folder: Path, content: Mapping[str, Any]) -> None:
    write_text(folder / FILE, strict_json(content) + "\n")


def search_rows(search: Any, claims: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the trials of a search that have begun, as JSON-able rows."""
    rows = []
    for trial in search.trials():
        if not trial.params:
            continue
        own, state = trial.user_attrs, trial.state.name.lower()
        row = {"number": trial.number, "state": state, "params": trial.params, "run": f"trials/{trial.number:04d}"}
        row |= {name: own.get(name) for name in ("minutes", "frames", "low", "high", "error")}
        row["value"] = trial.value if state in ("complete", "pruned") else None
        row["reports"] = [[step, value] for step, value in sorted(trial.intermediate_values.items())]
        row["workers"] = 1 + claims[f"trial/{trial.number:04d}"].epoch if f"trial/{trial.number:04d}" in claims else 0
        rows.append(row)
    return rows


def member_rows(population: Any, claims: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the jobs of a population that have begun, as JSON-able rows."""
    rows, size = [], population.sweep.population
    for key, claim in sorted(claims.items()):
        if not key.startswith("member/"):
            continue
        number = int(key.rpartition("/")[2])
        result = population.result(number) or {}
        state = "running" if not result else "fail" if "error" in result else "complete"
        row = {"number": number, "state": state, "params": claim.facts["params"], "run": f"trials/{number:04d}"}
        row |= {"parent": claim.facts["parent"], "generation": number // size, "member": number % size}
        row |= {name: result.get(name) for name in ("minutes", "frames", "low", "high", "error", "value", "test")}
        rows.append(row | {"reports": [], "workers": 1 + claim.epoch})
    return rows


def best_row(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the complete row with the highest value, of the last generation if there are several; None without one."""
    done = [row for row in rows if row["state"] == "complete" and is_number(row.get("value"))]
    last = max((row.get("generation", 0) for row in done), default=0)
    return max((row for row in done if row.get("generation", 0) == last), key=lambda row: row["value"], default=None)


def pareto_front(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of the complete trials that no other trial beats in both the metric and the minutes."""
    done = [row for row in rows if row["state"] == "complete" and is_number(row.get("minutes"))]
    front, most = [], -math.inf
    for row in sorted(done, key=lambda row: (row["minutes"], -row["value"])):
        if row["value"] > most:
            front.append(row["number"])
            most = row["value"]
    return front


def importance_of(study: Any) -> dict[str, float]:
    """Return each parameter's share in reaching the best results (PED-ANOVA), the largest first; {} for few trials."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    done = [each for each in study.get_trials(deepcopy=False) if each.state is optuna.trial.TrialState.COMPLETE]
    if len(done) < FEWEST:
        return {}
    try:
        warnings.simplefilter("ignore", UserWarning)  # that low values are best, for which the target has its sign
        found = get_param_importances(
            study,
            evaluator=PedAnovaImportanceEvaluator(target_quantile=0.25),
            target=lambda trial: -float(trial.value or 0.0),
        )
    except (ValueError, RuntimeError):  # all trials are equal
        return {}
    return {name: float(share) for name, share in found.items()}


def summarize(
    sweep: Any, rows: list[dict[str, Any]], importance: Mapping[str, float], table: list[dict[str, Any]], state: str
) -> dict[str, Any]:
    """Return the state of a sweep as JSON-able values.

    Args:
        rows: Trials or members that have begun.
        table: Rows of the confirmation; empty before it.
        state: "search", "confirm", "finished" or "stopped".
    """
    ranges = [
        {"name": each.name, "choices": [*each.choices], "low": each.low, "high": each.high, "log": each.log}
        for each in sweep.ranges
    ]
    best = best_row(rows)
    return {
        "name": sweep.folder.resolve().name,
        "task": sweep.task.reference,
        "metric": sweep.task.primary_metric,
        "preset": sweep.preset,
        "mode": sweep.mode,
        "sampler": sweep.sampler,
        "pruner": sweep.pruner,
        "settings": sweep.fixed,
        "episodes": sweep.episodes,
        "jobs": sweep.jobs,
        "state": state,
        "changed": time.time(),
        "ranges": ranges,
        "trials": rows,
        "best": None if best is None else best["number"],
        "importance": dict(importance),
        "pareto": pareto_front(rows) if sweep.mode == "search" else [],
        "confirmation": table,
    }


def descent(rows: Sequence[Mapping[str, Any]], number: int) -> list[Mapping[str, Any]]:
    """Return the row of a member and those that it descends from, the oldest first."""
    known, line = {row["number"]: row for row in rows}, []
    while number in known:
        line.append(known[number])
        number = known[number].get("parent", -1)
    return line[::-1]
