"""The confirmation: train the best configurations and the preset again with further seeds, and choose among their means.

The search reports its luckiest seed. Here every configuration has the same new seeds; the one with the best mean on the
validation seed wins, and its figure is the mean on the test seed, which chose nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import yaml

from fledge.core.overrides import nested
from fledge.core.settings import flat_settings
from fledge.evaluation.episodes import TEST_SEED, VALIDATION_SEED
from fledge.storage.disk.durable import write_text
from fledge.training.config import make_config
from fledge.tuning.claims import Claim
from fledge.tuning.ranges import to_overrides
from fledge.tuning.search import Job, read_result
from fledge.tuning.sweep import Sweep

BEST = "best.yaml"
PRESET = "preset"
QUANTILES = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
)  # .975 of Student's t, from 1 degree on


class Confirmation:
    """Further seeds of configurations, as jobs "confirm/NAME-SEED"; NAME is the number of a trial, or "preset".

    Args:
        chosen: Parameters by name, the best first; those of the preset are {}.
    """

    def __init__(self, sweep: Sweep, chosen: Mapping[str, dict[str, Any]]) -> None:
        self.sweep, self.chosen = sweep, chosen

    def result(self, key: str) -> dict[str, Any] | None:
        """Return the result of a job; None if it has none yet, or one of other parameters."""
        found = read_result(self.sweep.folder / f"{key}.json")
        return found if found is not None and found.get("facts") == self.draw(key) else None

    def keys(self, name: str) -> list[str]:
        return [f"confirm/{name}-{k + 1}" for k in range(self.sweep.seeds)]

    def open_jobs(self) -> Iterator[str]:
        yield from (key for name in self.chosen for key in self.keys(name) if self.result(key) is None)

    def draw(self, key: str) -> dict[str, Any]:
        return self.chosen[key.removeprefix("confirm/").rpartition("-")[0]]

    def job(self, claim: Claim) -> Job:
        """Return the training of a claimed job."""
        seed = self.sweep.seed + int(claim.job.rpartition("-")[2])
        changes = [f"seed={seed}", *to_overrides(self.sweep.ranges, claim.facts)]
        seeds = {"value": VALIDATION_SEED, "test": TEST_SEED}
        return Job(claim.job, self.sweep.folder / claim.job, self.sweep.overrides(changes), claim.facts, seeds)

    def should_stop(self, job: Job, values: Mapping[int, float]) -> int:
        return 0

    def record(self, job: Job, result: Mapping[str, Any]) -> None:
        """Do nothing: the results are the files beside the runs."""

    def table(self) -> list[dict[str, Any]]:
        """Return for each configuration its means over the seeds that have results, with 95 % intervals, the best first."""
        rows = []
        for name, params in self.chosen.items():
            results = [found for key in self.keys(name) if (found := self.result(key)) is not None]
            values = [each["value"] for each in results if each.get("value") is not None]
            row: dict[str, Any] = {"name": name, "params": params, "runs": [*self.keys(name)], "values": values}
            row["tests"] = [each["test"] for each in results if each.get("test") is not None]
            row |= {"failed": sum("error" in each for each in results)}
            row |= {"value": mean_interval(values), "test": mean_interval(row["tests"])}
            row["minutes"] = fmean([each.get("minutes") or 0.0 for each in results]) if results else None
            rows.append(row)
        return sorted(rows, key=lambda row: -(row["value"][0] if row["value"] else -math.inf))


def mean_interval(values: Sequence[float]) -> list[float | None] | None:
    """Return the mean and the ends of its 95 % interval (Student's t; None for one value); None without values."""
    if not values:
        return None
    mean, degrees = fmean(values), len(values) - 1
    if not degrees:
        return [mean, None, None]
    quantile = QUANTILES[degrees - 1] if degrees <= len(QUANTILES) else 1.96 + 2.5 / degrees
    half = quantile * stdev(values) / math.sqrt(len(values))
    return [mean, mean - half, mean + half]


def write_best(sweep: Sweep, params: Mapping[str, Any], about: str) -> None:
    """Write `best.yaml`: a preset with the settings in which a configuration differs from the preset that it is based on."""
    task = sweep.task
    best = make_config(task, sweep.preset, [*sweep.fixed, *to_overrides(sweep.ranges, params)])
    base = sweep.preset if sweep.preset is not None else task.presets.default(best.learner.policy_form) or ""
    plain = flat_settings(make_config(task, base, []))
    changed = {key: value for key, value in flat_settings(best).items() if key not in plain or plain[key] != value}
    text = f"# {about}\n# fledge train {task.reference} --preset {sweep.folder / BEST}\n"
    text += yaml.safe_dump({"base": base, **nested(changed)}, sort_keys=False)
    if not (sweep.folder / BEST).is_file() or (sweep.folder / BEST).read_text(encoding="utf-8") != text:
        write_text(sweep.folder / BEST, text)
