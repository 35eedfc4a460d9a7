"""Measure the phases of an iteration and the ways to collect; `measure_storage` measures storage.

Of a training run with R ranks, one rank is measured, on its share of the cores and envs, and the result is scaled by R.
Averaging gradients and gathering the ranks' states are not included. If R is more than 1, one rank on all cores is
measured too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from fledge.advise.measure_storage import measure_actors, measure_decoding, measure_storage
from fledge.collect.config import ActorsConfig, CollectMode
from fledge.core.errors import ConfigError
from fledge.core.machine import default_threads, keep_freed_memory, machine_info
from fledge.core.settings import check_settings
from fledge.tasks.registry import find_task
from fledge.training.command import check_before_start
from fledge.training.config import TrainConfig
from fledge.training.ranks import Ranks, default_ranks
from fledge.training.run import TrainingState

MODES = tuple(mode.value for mode in CollectMode)
LEAST_TURNS = 3
PRECISION_TURNS = 5


def measure(cfg: TrainConfig, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure and return all values that `decide` needs, as a JSON-able dict."""
    check_settings(cfg)
    if cfg.algo != "ppo":
        raise ConfigError(f"algo is {cfg.algo}, but the advice is about rollouts of PPO: set algo=ppo.")
    ranks = cfg.ranks or default_ranks(cfg.device, cfg.env.num_envs // 2)  # an even number for each
    if cfg.env.num_envs % (2 * ranks):
        raise ConfigError(
            f"env.num_envs is {cfg.env.num_envs}, but must be a multiple of {2 * ranks}, so that each of the {ranks} ranks "
            "can collect in two halves: change env.num_envs, or set ranks."
        )
    check_before_start(find_task(cfg.task), cfg, ranks)
    keep_freed_memory()
    settings = {"ranks": ranks, "num_envs": cfg.env.num_envs, "rollout_steps": cfg.steps}
    settings["rollout_save_interval"] = cfg.rollout_save_interval
    found: dict[str, Any] = {"machine": machine_info(), "settings": settings}
    with _loops(cfg, sorted({ranks, 1}, reverse=True)) as loops:
        say(f"collecting in turns: {'; '.join(loops)}")
        times = time_in_turns(loops, seconds)
        found["modes"] = {name: _speed(times[name], loop) for name, loop in loops.items()}
        plain = loops[_name("sync", ranks)]
        found["phases"] = _phases(plain)
        say("updates in fp32 and bf16, in turns")
        with share_of_cores(ranks):
            found["precision"] = measure_precision(plain)
        with share_of_cores(ranks), tempfile.TemporaryDirectory() as folder:
            found |= measure_storage(plain, Path(folder), say)
        with share_of_cores(1):
            found["decoding"] = measure_decoding(plain.collector.latest)
            say("actors on other machines")
            found["actors"] = measure_actors(loops[_name("sync", 1)])
    return found


def _name(mode: str, ranks: int) -> str:
    return f"{mode}, {ranks} rank{'s' if ranks > 1 else ''}"


@contextlib.contextmanager
def share_of_cores(ranks: int) -> Iterator[None]:
    """Restrict this thread, the threads that it starts, and torch to one rank's share of the cores inside the block."""
    threads, share = torch.get_num_threads(), max(1, default_threads() // ranks)
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if before is not None:
        os.sched_setaffinity(0, sorted(before)[-share:])
    torch.set_num_threads(share)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if before is not None:
            os.sched_setaffinity(0, before)


class Loop:
    """The training loop of one rank out of `ranks`, for measurements; it collects in one way, on its share of cores and envs.

    The curriculum is at its end. `iterate` is one iteration of `fledge train`, without logging and saving.
    """

    def __init__(self, cfg: TrainConfig, mode: str, ranks: int) -> None:
        self.mode, self.ranks = mode, ranks
        share = dataclasses.replace(
            cfg,
            ranks=1,
            env=dataclasses.replace(cfg.env, num_envs=cfg.env.num_envs // ranks),
            ppo=dataclasses.replace(cfg.ppo, minibatch=max(1, cfg.ppo.minibatch // ranks)),
            collect=dataclasses.replace(cfg.collect, mode=CollectMode(mode)),
            actors=ActorsConfig(),
        )
        with share_of_cores(ranks):  # inherited by threads
            self.run = TrainingState(share, Ranks())
        self.collector: Any = self.run.collector
        self.seconds: list[tuple[float, float, float]] = []  # collecting, learning, and simulating while collecting

    def iterate(self) -> TensorDictBase:
        """Collect a rollout and learn from it; return the rollout."""
        begun = time.perf_counter()
        rollout = self.run.collect(progress=1.0)  # the hardest env of the curriculum
        middle = time.perf_counter()
        self.run.learn(rollout)
        self.seconds.append((middle - begun, time.perf_counter() - middle, self.collector.simulate_s))
        return rollout

    def turn(self) -> float:
        """Run two iterations, wait until their background work is done, and return the seconds per iteration."""
        with share_of_cores(self.ranks):
            begun = time.perf_counter()
            for _ in range(2):
                self.iterate()
            self.collector.wait()  # or it would go on in another loop's turn
            return (time.perf_counter() - begun) / 2


@contextlib.contextmanager
def _loops(cfg: TrainConfig, ranks: list[int]) -> Iterator[dict[str, Loop]]:
    """Yield a `Loop` for each number of ranks and each way to collect, by name; close them afterwards."""
    with contextlib.ExitStack() as stack:
        loops = {}
        for count, mode in itertools.product(ranks, MODES):
            loops[_name(mode, count)] = loop = Loop(cfg, mode, count)
            stack.callback(loop.run.close)
        yield loops


def time_in_turns(loops: dict[str, Loop], seconds: float) -> dict[str, list[float]]:
    """Run all loops in turns, so that other load affects them alike; return the seconds per iteration of each turn."""
    for loop in loops.values():  # warm up
        loop.turn()
        loop.seconds.clear()
    times: dict[str, list[float]] = {name: [] for name in loops}
    begun, turns = time.perf_counter(), 0
    while turns < LEAST_TURNS or time.perf_counter() - begun < seconds:
        for name, loop in loops.items():
            times[name].append(loop.turn())
        turns += 1
    return times


def measure_precision(loop: Loop) -> dict[str, Any]:
    """Return the seconds of each turn of the same update in fp32 and in bf16, and the device; the learner stays as it was."""
    learner: Any = loop.run.learner
    before, precision, times = learner.snapshot(), learner.bf16, {"fp32": list[float](), "bf16": list[float]()}
    for turn in range(PRECISION_TURNS + 1):  # the first one warms up
        for name, found in times.items():
            learner.bf16 = name == "bf16"
            begun = time.perf_counter()
            learner.update(loop.collector.latest, 1.0)  # waits for the device, to read its metrics
            found += [time.perf_counter() - begun] if turn else []
            learner.restore(before)
    learner.bf16 = precision
    return {**times, "device": str(loop.run.device)}


def crowd(ranks: int) -> float:
    """Return the factor by which an iteration takes longer because ranks share a core; 1 if every rank has its own core."""
    return max(1.0, ranks / default_threads())


def _speed(times: list[float], loop: Loop) -> dict[str, Any]:
    times = [t * crowd(loop.ranks) for t in times]
    frames = loop.run.frames_per_iteration * loop.ranks
    low, middle, high = (float(np.quantile(times, q)) for q in (0.1, 0.5, 0.9))
    return {
        "iteration_s": middle,
        "frames_per_second": frames / middle,
        "p10": frames / high,
        "p90": frames / low,
        "turns": [float(t) for t in times],
        "mode": loop.mode,
        "ranks": loop.ranks,
    }


def _phases(loop: Loop) -> dict[str, float]:
    collect, learn, simulate = (crowd(loop.ranks) * float(t) for t in np.median(loop.seconds, axis=0))
    return {"simulate_s": simulate, "decide_s": collect - simulate, "learn_s": learn, "iteration_s": collect + learn}
