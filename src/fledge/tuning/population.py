"""Population-based training (Jaderberg et al. 2017): members train side by side, in generations, on one schedule.

After each generation, a member in the bottom quarter, or one that failed, copies the newest checkpoint of a member in the top
quarter, and moves every parameter by up to a tenth of its range. Generation G of member M is job "member/G*P+M", a run that
continues the run of its parent; a generation begins when the one before it is complete. So the results depend only on the
seed, not on the workers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from fledge.core.errors import FledgeError
from fledge.evaluation.episodes import TEST_SEED, VALIDATION_SEED
from fledge.training.config import make_config
from fledge.tuning.claims import Claim
from fledge.tuning.ranges import Range, to_overrides
from fledge.tuning.search import Job, read_result, seed_of
from fledge.tuning.sweep import Sweep

MOVE = 0.1  # largest change of a parameter, as a share of its range
KEPT = ("keep_checkpoints=1", "keep_best=0")  # every generation has its own folder


class Population:
    """The generations of a population, as jobs."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.frames = make_config(sweep.task, sweep.preset, sweep.overrides()).total_frames

    def result(self, number: int) -> dict[str, Any] | None:
        """Return the result of a job; None if it has none yet."""
        return read_result(self.sweep.folder / "trials" / f"{number:04d}.json")

    def open_jobs(self) -> Iterator[str]:
        """Yield the jobs without a result of the first generation that is not complete."""
        size = self.sweep.population
        for first in range(0, self.sweep.jobs, size):
            results = [self.result(first + member) for member in range(size)]
            if any(result is None for result in results):
                yield from (f"member/{first + k:04d}" for k, result in enumerate(results) if result is None)
                return
            if all("error" in result for result in results if result is not None):
                told = (results[0] or {})["error"]
                raise FledgeError(f"All members failed in generation {first // size + 1}, so the sweep stops: {told}")

    def draw(self, key: str) -> dict[str, Any]:
        """Return the parameters and the parent (None: a new run) of a job."""
        number, size = int(key.rpartition("/")[2]), self.sweep.population
        generation, member = divmod(number, size)
        rng = random.Random(seed_of(self.sweep.seed, generation, member))
        if generation == 0:
            params = {each.name: each.value(rng.random()) for each in self.sweep.ranges}
            return {"params": params | (self.sweep.start if member == 0 else {}), "parent": None}
        before = [self.result(number - member + k - size) or {} for k in range(size)]
        ranked = sorted(range(size), key=lambda k: (-before[k].get("value", float("-inf")), k))
        quarter, first = max(1, size // 4), number - member - size
        replaced = {*ranked[-quarter:], *(k for k in ranked if "error" in before[k])}
        if member not in replaced:
            return {"params": before[member]["facts"]["params"], "parent": first + member}
        top = [k for k in ranked[:quarter] if "error" not in before[k]]
        source = rng.choice(top)
        params = {
            each.name: moved(each, before[source]["facts"]["params"][each.name], rng) for each in self.sweep.ranges
        }
        return {"params": params, "parent": first + source}

    def job(self, claim: Claim) -> Job:
        """Return the training of a claimed job."""
        number, sweep = int(claim.job.rpartition("/")[2]), self.sweep
        generation, trials = number // sweep.population, sweep.folder / "trials"
        stop = -(-self.frames * (generation + 1) // sweep.generations)
        changes = [f"seed={sweep.seed + number % sweep.population}", f"stop_frames={stop}"]
        changes = [*changes, *to_overrides(sweep.ranges, claim.facts["params"])]
        parent, seeds = claim.facts["parent"], {"value": VALIDATION_SEED}
        if generation == sweep.generations - 1:
            seeds["test"] = TEST_SEED
        source = None if parent is None else trials / f"{parent:04d}"
        if parent is not None:  # a copy continues the random numbers of its source
            changes[0] = f"seed={self.seed(parent)}"
        folder = trials / f"{number:04d}"
        return Job(claim.job, folder, [*KEPT, *sweep.overrides(changes)], claim.facts, seeds, source)

    def seed(self, number: int) -> int:
        """Return the seed of the run that a job's line of descent began with."""
        while (parent := (self.result(number) or {})["facts"]["parent"]) is not None:
            number = parent
        return self.sweep.seed + number % self.sweep.population

    def should_stop(self, job: Job, values: Mapping[int, float]) -> int:
        return 0

    def record(self, job: Job, result: Mapping[str, Any]) -> None:
        """Do nothing: the results are the files beside the runs."""


def moved(each: Range, value: Any, rng: random.Random) -> Any:
    """Return a value near another: at most MOVE of the range away; a choice's or whole number's neighbour, or the same."""
    place = each.place(value)
    count = len(each.choices) or (int(each.high - each.low) // (int(each.step) or 1) + 1 if each.whole else 0)
    if count and count <= 1 / MOVE:
        return each.value(place + rng.choice((-1, 0, 1)) / (count - 1))
    return each.value(place + rng.uniform(-MOVE, MOVE))
