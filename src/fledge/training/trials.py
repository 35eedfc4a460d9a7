"""Trials: short iterations of a run at other sizes, timed in turns, which change nothing in the run."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from fledge.core.machine import available_bytes, default_threads
from fledge.training.config import CollectMode, TrainConfig
from fledge.training.factories import with_sizes
from fledge.training.memory import rollout_bytes
from fledge.training.run import TrainingState

Sizes = dict[str, int]  # by the names in `TrainConfig.auto`
TURNS = 3
LEAST_STEPS = 8  # decisions of each env in a trial's rollout
HOPELESS = 0.8  # share of the best speed in the first turn below which a candidate gets no further turns
MEMORY_SHARE = 0.5  # of the free memory that rollouts and envs may take


@dataclasses.dataclass
class Trial:
    """Decisions per second of the whole iteration (collecting and learning) at some sizes, in each turn."""

    sizes: Sizes
    turns: list[float]

    @property
    def speed(self) -> float:
        return median(self.turns)


def run_trials(run: TrainingState, candidates: Sequence[Sizes], turns: int = TURNS) -> list[Trial]:
    """Time the candidates that fit into memory, in turns, with copies of the run's policy, at its progress.

    Every rank takes part, and gets the same figures. Torch's random state is restored.
    """
    device = torch.device(run.device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([] if device.type == "cpu" else [device]))
        copies = run.ranks.together(lambda: _make_copies(run, candidates, stack))
        for _, copy in copies:  # warm up
            time_iteration(copy, run.progress)
        trials = [Trial(sizes, [time_iteration(copy, run.progress)]) for sizes, copy in copies]
        best = max(trial.speed for trial in trials)
        kept = [k for k, trial in enumerate(trials) if trial.speed >= HOPELESS * best]
        for _ in range(turns - 1):
            for k in kept:
                trials[k].turns.append(time_iteration(copies[k][1], run.progress))
        return [trials[k] for k in kept]


def _make_copies(
    run: TrainingState, candidates: Sequence[Sizes], stack: contextlib.ExitStack
) -> list[tuple[Sizes, TrainingState]]:
    """Return a copy of the run for each candidate, fewest envs first, until the memory would not be enough.

    Rollouts are counted before anything is allocated. The memory of the envs is that of the candidate before, times the ratio
    of their numbers.
    """
    copies: list[tuple[Sizes, TrainingState]] = []
    envs, device = 0.0, torch.device(run.device)  # bytes of one env
    here = 1 if device.type == "cuda" else run.ranks.here  # ranks that share the memory
    for sizes in sorted(candidates, key=lambda sizes: (sizes["env.num_envs"], sizes["ppo.minibatch"])):
        cfg, count = with_sizes(run.cfg, sizes), sizes["env.num_envs"] // run.ranks.size
        free = available_bytes(device)
        need = rollout_bytes(run.task, cfg, run.ranks.size, run.ranks.here) + envs * count * here
        if not run.ranks.share(not copies or need <= MEMORY_SHARE * free):
            break
        copy = TrainingState(_shortened(cfg), run.ranks, run.task, is_trial=True)
        stack.callback(copy.close)
        copy.policy.load_state_dict(run.policy.state_dict())
        copy.curriculum.load_state_dict(run.curriculum.state_dict())
        envs = max(0.0, free - available_bytes(device)) / (count * here)
        copies.append((sizes, copy))
    return copies


def _shortened(cfg: TrainConfig) -> TrainConfig:
    """Return the config with rollouts of a few decisions, at least two minibatches; whole ones for recurrent policies."""
    steps = cfg.steps
    if not getattr(cfg.policy, "gru_size", 0):
        steps = min(steps, max(LEAST_STEPS, -(-2 * cfg.ppo.minibatch // cfg.env.num_envs)))
    short: Any = dataclasses.replace(cfg.algo_settings, rollout_steps=steps)
    setattr(cfg, cfg.section, short)
    return cfg


def time_iteration(copy: TrainingState, progress: float) -> float:
    """Run one iteration on every rank; return its decisions per second.

    Where ranks have one thread each, on a CPU, and collect synchronously, the seconds are the mean CPU time of the ranks: so
    other programs on the machine do not count. Otherwise they are those of the clock.
    """
    single = torch.get_num_threads() == 1 and (copy.ranks.size > 1 or default_threads() == 1)
    counts = single and copy.device == "cpu" and copy.cfg.collect.mode is CollectMode.sync
    clock = time.process_time if counts else time.perf_counter
    begun = clock()
    copy.learn(copy.collect(progress))
    copy.collector.wait()  # or it would go on in another candidate's turn
    seconds = copy.ranks.sum(torch.tensor([clock() - begun], dtype=torch.float64)).item() / copy.ranks.size
    return copy.frames_per_iteration / seconds


def as_record(trials: Sequence[Trial]) -> list[Mapping[str, Any]]:
    """Return trials as JSON-able values."""
    return [{**t.sizes, "speed": round(t.speed), "turns": [round(speed) for speed in t.turns]} for t in trials]
