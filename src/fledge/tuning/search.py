"""The search: a fixed number of trials, whose parameters a sampler draws from the results so far."""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from fledge.core.errors import FledgeError
from fledge.core.json_file import read_json
from fledge.evaluation.episodes import VALIDATION_SEED
from fledge.monitor.metrics_file import is_number
from fledge.tuning.claims import Claim
from fledge.tuning.ranges import Range, to_overrides
from fledge.tuning.storage import open_study
from fledge.tuning.sweep import Sweep, grown

GIVE_UP = 3  # the sweep stops if so many first trials fail
NUMBERS = ("value", "test", "pruned", "low", "high", "minutes", "frames")  # of a result
STARTUP = 8  # trials before TPE uses the results


@dataclass
class Job:
    """One training and its evaluation."""

    key: str
    folder: Path
    """Folder of the run; the result is beside it."""
    overrides: list[str]
    facts: dict[str, Any]
    eval_seeds: dict[str, int] = field(default_factory=lambda: {"value": VALIDATION_SEED})
    parent: Path | None = None
    """Run that this one continues from."""

    @property
    def result(self) -> Path:
        return self.folder.with_suffix(".json")

    @property
    def facts_file(self) -> Path:
        """File with the parameters, written before the run begins."""
        return self.folder.with_suffix(".facts")

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")


def read_result(path: Path) -> dict[str, Any] | None:
    """Return the result of a job; None if there is none yet, or if it cannot be used."""
    found = read_json(path)
    if not isinstance(found, dict):
        return None
    measured = isinstance(found.get("facts"), dict) and any(is_number(found.get(key)) for key in ("value", "pruned"))
    if not measured and not isinstance(found.get("error"), str):
        return None
    return found if all(found.get(key) is None or is_number(found[key]) for key in NUMBERS) else None


def distribution(each: Range) -> BaseDistribution:
    """Return a range as Optuna knows it."""
    if each.choices:
        return CategoricalDistribution(each.choices)
    if each.whole:
        return IntDistribution(int(each.low), int(each.high), each.log, int(each.step) or 1)
    return FloatDistribution(each.low, each.high, each.log, each.step or None)


def seed_of(*parts: object) -> int:
    """Return a seed that depends only on these values."""
    return zlib.crc32("/".join(map(str, parts)).encode())


class Search:
    """The trials of a sweep, as jobs; trial number K of the study is job "trial/K".

    All trials exist from the beginning, waiting, so that their number never depends on the workers. If workers that start at
    the same time create more, those with higher numbers stay waiting and are ignored.
    """

    def __init__(self, sweep: Sweep, storage: BaseStorage) -> None:
        self.sweep, self.storage = sweep, storage
        pruner: Any = optuna.pruners.NopPruner()
        if sweep.evaluations and sweep.pruner == "median":
            pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1)
        elif sweep.evaluations and sweep.pruner == "hyperband":
            pruner = optuna.pruners.HyperbandPruner(1, sweep.evaluations, 3)
        self.study = open_study(storage, sweep.study, pruner=pruner)
        self.space = {each.name: distribution(each) for each in sweep.ranges}
        self.total = 0
        self.refresh()

    def refresh(self) -> None:
        """Create the waiting trials that are missing."""
        self.total = grown(self.sweep) if self.sweep.sampler != "grid" else self.sweep.trials
        while len(self.study.get_trials(deepcopy=False)) < self.total:
            self.storage.create_new_trial(self.study._study_id, create_trial(state=TrialState.WAITING))

    def trials(self) -> list[FrozenTrial]:
        """Return the trials of the sweep in the order of their numbers."""
        return [each for each in self.study.get_trials(deepcopy=False) if each.number < self.total]

    def open_jobs(self) -> Iterator[str]:
        """Yield the jobs that have no result yet; raise FledgeError if the first trials have all failed."""
        self.refresh()
        trials = self.trials()
        ended = [each for each in trials if each.state.is_finished()]
        failed = [each for each in ended if each.state is TrialState.FAIL]
        if len(failed) == len(ended) >= min(GIVE_UP, self.total):
            told = failed[0].user_attrs.get("error", "no reason was recorded")
            count = f"first {len(failed)} trials" if len(failed) > 1 else "only trial"
            raise FledgeError(
                f"The {count} failed, so the sweep stops: {told} Correct the cause and start again in another folder."
            )
        yield from (f"trial/{each.number:04d}" for each in trials if not each.state.is_finished())

    def draw(self, key: str) -> dict[str, Any]:
        """Return the parameters of a new trial: those of the preset first, then the sampler's.

        A trial that was begun before the storage was lost keeps its parameters.
        """
        number = int(key.rpartition("/")[2])
        kept = read_json(self.sweep.folder / f"trials/{number:04d}.facts")
        if isinstance(kept, dict) and kept.keys() == self.space.keys():
            return kept
        given = self.sweep.start if number == 0 else {}
        if self.sweep.sampler == "grid":
            points = itertools.product(*(each.grid for each in self.sweep.ranges))
            point = next(itertools.islice(points, number, None))
            return dict(zip(self.space, point, strict=True))
        seed = seed_of(self.sweep.seed, number)
        sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed)
        if self.sweep.sampler == "tpe":
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=STARTUP)
        self.study._thread_local.cached_all_trials = None  # else the sampler would see only old results
        frozen = self.storage.get_trial(self._id(number))
        space = sampler.infer_relative_search_space(self.study, frozen)
        drawn = sampler.sample_relative(self.study, frozen, space)
        for name, kind in self.space.items():
            if name not in drawn:
                drawn[name] = sampler.sample_independent(self.study, frozen, name, kind)
        return {name: given.get(name, drawn[name]) for name in self.space}

    def _id(self, number: int) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number)

    def job(self, claim: Claim) -> Job:
        """Return the training of a claimed trial, and note in the study that it runs."""
        number = int(claim.job.rpartition("/")[2])
        trial = self.storage.get_trial(self._id(number))
        with contextlib.suppress(UpdateFinishedTrialError):  # by the worker that this one took the job over from
            for name, kind in self.space.items():
                if name not in trial.params:
                    value = kind.to_internal_repr(claim.facts[name])
                    self.storage.set_trial_param(trial._trial_id, name, value, kind)
            self.storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
        changes = [f"seed={self.sweep.seed}", *to_overrides(self.sweep.ranges, claim.facts)]
        folder = self.sweep.folder / "trials" / f"{number:04d}"
        return Job(claim.job, folder, self.sweep.overrides(changes), claim.facts)

    def should_stop(self, job: Job, values: Mapping[int, float]) -> int:
        """Report the evaluations of a trial (number from 1 -> metric); return the one after which to prune it, or 0."""
        own = self._id(int(job.key.rpartition("/")[2]))
        known = self.storage.get_trial(own).intermediate_values
        with contextlib.suppress(UpdateFinishedTrialError):
            for step in sorted(set(values) - set(known)):
                self.storage.set_trial_intermediate_value(own, step, values[step])
                if self.study.pruner.prune(self.study, self.storage.get_trial(own)):
                    return step
        return 0

    def record(self, job: Job, result: Mapping[str, Any]) -> None:
        """Write the result of a trial into the study; do nothing if another worker has done so."""
        own = self._id(int(job.key.rpartition("/")[2]))
        state, values = TrialState.COMPLETE, [result.get("value")]
        if "error" in result:
            state, values = TrialState.FAIL, []
        elif "pruned" in result:
            state, values = TrialState.PRUNED, [result["pruned"]]
        with contextlib.suppress(UpdateFinishedTrialError):
            for name in ("minutes", "frames", "low", "high", "error"):
                if name in result:
                    self.storage.set_trial_user_attr(own, name, result[name])
            self.storage.set_trial_state_values(own, state, values or None)  # type: ignore[arg-type]
