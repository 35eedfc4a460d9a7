"""Sizes that a run chooses itself: env.num_envs and ppo.minibatch, if their value is auto.

    auto.jsonl    in the run's folder: one decision in each line, written durably before the sizes change

    iteration, frames, why          when and why it was measured: start, load (the speed has changed) or noise (see below)
    old, new                        sizes by setting
    trials                          decisions per second of each candidate, turn by turn (`training.trials`)
    noise_scale, rollout_bytes, free_bytes, seconds

Sizes change only between iterations, and rank 0 decides. A checkpoint holds the sizes after its iteration. A resumed run
carries out the decisions from there on at their iterations instead of measuring again, and so repeats the run exactly.

The number of envs is the one with the most decisions per second (collecting and learning), where each doubling or halving
of the configured number must bring WORTH. The minibatch doubles when the gradient noise scale (`learn.noise_scale`) is twice
its size, unless this is slower; it never takes more than 1 / PARTS of a rollout.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fledge.core.errors import InputError, StorageError
from fledge.core.machine import available_bytes
from fledge.learn.ppo import PPO
from fledge.storage.disk.durable import write_text
from fledge.training.factories import env_unit
from fledge.training.memory import rollout_bytes
from fledge.training.run import TrainingState
from fledge.training.trials import Sizes, Trial, as_record, run_trials

FILE = "auto.jsonl"
ENVS, MINIBATCH = "env.num_envs", "ppo.minibatch"
DOUBLINGS = range(-4, 3)  # of the configured number of envs
WORTH = 1.02  # speed-up that a doubling or halving of the configured number of envs must bring
SWITCH = 1.03  # ... and a change of the present number while training
PARTS = 4  # least number of minibatches in a rollout
ITERATIONS = 100  # least number of iterations in a run: bounds the rollouts
NOISE = 2.0  # times the minibatch: noise scale at which it doubles, as the median over WINDOW iterations
WINDOW = 10  # iterations whose median speeds and noise scales are compared
CHANGE = 1.2  # factor between two windows at which the load counts as changed
TIME_SHARE = 0.02  # largest share of the training time that measuring may take, except at the start


class AutoSizes:
    """Chooses the sizes of a run at the borders of its iterations; every rank has one.

    Args:
        folder: Folder of the run.
        say: Prints a line, on rank 0.
    """

    def __init__(self, run: TrainingState, folder: Path, say: Callable[[str], None]) -> None:
        self.run, self.path, self.say = run, folder / FILE, say
        self.records: list[dict[str, Any]] = run.ranks.share(
            run.ranks.together(lambda: read_records(self.path) if run.ranks.is_first else [])
        )
        self._pending = [record for record in self.records if record["iteration"] >= run.iteration]
        self._first, self._last = list[float](), deque[float](maxlen=WINDOW)  # speeds after the decision, and lately
        self._noise = deque[float](maxlen=WINDOW)
        self._before: tuple[float, int] | None = None  # seconds and frames at the border before

    def border(self) -> None:
        """Carry out the next recorded decision if its iteration has come, or make one if there is a reason."""
        run = self.run
        self._note()
        if self._pending:
            if self._pending[0]["iteration"] != run.iteration:
                return
            record = self._pending.pop(0)
        else:
            why = run.ranks.share(self._reason())
            if not why:
                return
            record = self._decide(why)
        run.resize(
            {name: size for name, size in record["new"].items() if name in run.cfg.auto and self._fits(name, size)}
        )
        if record["new"] != record["old"] or record["why"] == "start":
            self.say(describe(record, run.task.metrics.unit))
        self._first.clear()
        self._last.clear()
        self._noise.clear()
        self._before = None  # the next iteration's time includes the measurement

    def _fits(self, name: str, size: int) -> bool:
        """Return whether the ranks can share this number of envs; it may have been chosen for other ranks."""
        return name != ENVS or size % env_unit(self.run.task, self.run.cfg, self.run.ranks.size) == 0

    def _note(self) -> None:
        """Note the speed of the last iteration and the noise scale after it."""
        learner = self.run.learner
        if isinstance(learner, PPO) and MINIBATCH in self.run.cfg.auto:
            self._noise.append(float(learner.noise_scale.value()))
        before, self._before = self._before, (self.run.seconds, self.run.frames)
        if before is not None:
            speed = (self.run.frames - before[1]) / (self.run.seconds - before[0])
            if len(self._first) < WINDOW:
                self._first.append(speed)
            self._last.append(speed)

    def _reason(self) -> str:
        """Return why to measure now; "" if there is no reason."""
        run, spent = self.run, sum(record["seconds"] for record in self.records)
        if ENVS in run.cfg.auto and not self.records:
            return "start"
        if spent > TIME_SHARE * run.seconds:
            return ""
        if MINIBATCH in run.cfg.auto and self._may_double():
            return "noise"
        if ENVS in run.cfg.auto and len(self._first) == len(self._last) == WINDOW:
            ratio = median(self._last) / median(self._first)
            return "load" if max(ratio, 1 / ratio) > CHANGE else ""
        return ""

    def _may_double(self) -> bool:
        run, minibatch = self.run, self.run.cfg.ppo.minibatch
        refused = [r["noise_scale"] for r in self.records[-1:] if r["why"] == "noise" and r["new"] == r["old"]]
        least = NOISE * max([minibatch, *refused])
        ready = len(self._noise) == WINDOW and median(self._noise) >= least
        return ready and 2 * minibatch * PARTS <= run.frames_per_iteration

    def _decide(self, why: str) -> dict[str, Any]:
        """Measure, choose, and record the decision durably; return it."""
        run, begun = self.run, time.perf_counter()
        old = {ENVS: run.cfg.env.num_envs, MINIBATCH: run.cfg.ppo.minibatch}
        found = candidates(run, why)
        trials = run_trials(run, found) if len(found) > 1 else []
        new = choose(trials, old, run.configured.env.num_envs, why) if trials else old
        device = torch.device(run.device)
        record: dict[str, Any] = {"iteration": run.iteration, "frames": run.frames, "why": why, "old": old, "new": new}
        record |= {"noise_scale": round(median(self._noise)) if self._noise else None, "trials": as_record(trials)}
        record |= {
            "rollout_bytes": rollout_bytes(run.task, run.cfg, run.ranks.size, run.ranks.here),
            "free_bytes": available_bytes(device),
        }
        record = run.ranks.share(record | {"seconds": round(time.perf_counter() - begun, 3)})
        self.records.append(record)
        run.ranks.together(lambda: write_records(self.path, self.records) if run.ranks.is_first else None)
        return record


def candidates(run: TrainingState, why: str) -> list[Sizes]:
    """Return the sizes to compare."""
    cfg, now = run.cfg, {ENVS: run.cfg.env.num_envs, MINIBATCH: run.cfg.ppo.minibatch}
    if why == "noise":
        return [now, {**now, MINIBATCH: 2 * now[MINIBATCH]}]
    configured, unit = run.configured.env.num_envs, env_unit(run.task, cfg, run.ranks.size)
    counts = [int(configured * 2.0**k) for k in DOUBLINGS if configured * 2.0**k % unit == 0]
    least = PARTS * now[MINIBATCH] if cfg.algo == "ppo" else 1
    most = max(cfg.total_frames // ITERATIONS, configured * cfg.steps)
    found = {count for count in counts if least <= count * cfg.steps <= most}
    return [{**now, ENVS: count} for count in sorted({*found, now[ENVS]})]


def choose(trials: list[Trial], old: Mapping[str, int], configured: int, why: str) -> Sizes:
    """Return the sizes to use after these trials (see the top of this file).

    Args:
        configured: Number of envs in the run's config.
        old: The present sizes.
    """
    speeds = {(trial.sizes[ENVS], trial.sizes[MINIBATCH]): trial.speed for trial in trials}
    envs, minibatch = old[ENVS], old[MINIBATCH]
    if why == "noise":
        doubled = speeds.get((envs, 2 * minibatch), 0.0)
        return {
            ENVS: envs,
            MINIBATCH: 2 * minibatch if doubled * WORTH >= speeds.get((envs, minibatch), 0.0) else minibatch,
        }

    def merit(count: int) -> float:
        return speeds[count, minibatch] / WORTH ** abs(math.log2(count / configured))

    counts = [count for count, size in speeds if size == minibatch]
    best = max(counts, key=merit)
    keeps = why != "start" and envs in counts and merit(best) < SWITCH * merit(envs)
    return {ENVS: envs if keeps else best, MINIBATCH: minibatch}


def describe(record: Mapping[str, Any], unit: str) -> str:
    """Return a sentence about a decision: the sizes that changed, or why none did."""
    old, new = record["old"], record["new"]
    if new == old:
        tried = sorted({trial[ENVS] for trial in record["trials"]} - {old[ENVS]}) if record["trials"] else []
        why = (
            f"the fastest of it and {', '.join(map(str, tried))}"
            if tried
            else f"as no other number leaves {ITERATIONS} iterations in the run and {PARTS} minibatches in a rollout"
        )
        return f"auto: {ENVS} stays {old[ENVS]:,}, {why}."
    parts = []
    if old[ENVS] != new[ENVS]:
        parts.append(f"env.num_envs {old[ENVS]:,} → {new[ENVS]:,} (all {unit} begin new episodes)")
    if old[MINIBATCH] != new[MINIBATCH]:
        parts.append(
            f"ppo.minibatch {old[MINIBATCH]:,} → {new[MINIBATCH]:,} (noise scale {record['noise_scale']:,.0f})"
        )
    return f"auto: {', '.join(parts)}; measured in {record['seconds']:.1f} s."


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the decisions in a run's auto.jsonl; raise InputError if a line is not a decision."""
    records: list[dict[str, Any]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read ({error}): restore it, or remove it to measure again.") from error
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            good = is_decision(record)
        except (ValueError, KeyError, TypeError, RecursionError):
            good = False
        if not good:
            raise InputError(
                f"Line {number} of {path} is not a decision on sizes: restore the file, or remove it to measure again."
            )
        records.append(record)
    return records


def is_decision(record: Any) -> bool:
    """Return whether a record has all that a resumed run reads, with the right types; raise KeyError or TypeError if not."""
    sizes = [record[entry][name] for entry in ("old", "new") for name in (ENVS, MINIBATCH)]
    sizes += [trial[ENVS] for trial in record["trials"]]
    uses_noise = record["why"] == "noise" or record["old"][MINIBATCH] != record["new"][MINIBATCH]
    numbers = [record["seconds"], *([record["noise_scale"]] if uses_noise else [])]
    return (
        all(type(size) is int and size > 0 for size in [*sizes, record["iteration"] + 1])
        and type(record["iteration"]) is int
        and all(type(number) in (int, float) and abs(number) < math.inf for number in numbers)
        and record["seconds"] >= 0
        and record["why"] in ("start", "load", "noise")
    )


def write_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Replace the file with all decisions so far, durably."""
    write_text(path, "".join(f"{json.dumps(record)}\n" for record in records))
