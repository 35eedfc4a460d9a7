"""Evaluation: fly a fixed number of episodes in the held-out world and count how they end.

Every env flies one episode, so quick failures are not over-counted; where more are asked for than there are envs, another
wave of envs follows, with a seed of its own. So episode number k is the same for every policy: start, goal, map, and
moving obstacles from the first step on. The envs are made with `held_out=True`: nothing in them was met in training.
Nothing is stored per step except, on request, some recordings.

What is chosen is chosen in the validation world (evaluations during training, curves over checkpoints) and reported in the
test world: two seeds, and who compares policies by the second should report with a third.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed
from fledge.envs.base import TensorEnv
from fledge.envs.placement import EnvPlacement
from fledge.evaluation.recorder import Highlights, Recorder
from fledge.tasks.base import Task
from fledge.tasks.metrics import EpisodeMetrics, TaskMetrics
from fledge.tasks.policies import check_fit
from fledge.tasks.view.trajectory import Trajectory

VALIDATION_SEED = 1
TEST_SEED = 7


@dataclass
class Evaluation:
    """How episodes ended, as rates with 95 % intervals, and how they went. Episode by episode, in order of its number."""

    outcomes: np.ndarray  # [episodes] values of the env's outcome
    names: dict[int, str]  # of those values
    primary_metric: str  # an outcome, or "return"
    returns: np.ndarray  # [episodes]
    lengths_s: np.ndarray  # [episodes] simulated seconds
    kinds: np.ndarray  # [episodes] index into classes
    classes: Sequence[str]  # of episodes, the hardest first; may be empty
    figures: dict[str, float]  # of the task's measured
    wall_seconds: float
    env_steps: int
    decision_s: float = 1.0
    act_ms: float = 0.0  # wall time of one decision of all envs at once; of a GPU, until it is queued
    tracks: list[Trajectory] = field(default_factory=list)
    highlights: list[Trajectory] = field(default_factory=list)  # the most interesting episodes, those first

    @property
    def episodes(self) -> int:
        return len(self.outcomes)

    @property
    def counts(self) -> dict[str, int]:
        """Episodes by how they ended."""
        return {name: int((self.outcomes == value).sum()) for value, name in self.names.items()}

    def rate(self, name: str) -> float:
        return self.counts[name] / self.episodes

    @property
    def score(self) -> float:
        """The headline figure: a rate, or the mean return."""
        return self._score(np.ones(self.episodes, bool))[0]

    @property
    def score_ci95(self) -> tuple[float, float]:
        """Its 95 % interval: Wilson's for a rate, normal for a mean."""
        return self._score(np.ones(self.episodes, bool))[1]

    def by_class(self) -> dict[str, dict[str, Any]]:
        """The headline figure of each class of episodes that was met."""
        table = {}
        for index, name in enumerate(self.classes):
            chosen = self.kinds == index
            if chosen.any():
                score, (low, high) = self._score(chosen)
                ci = [round(low, 4), round(high, 4)]
                table[name] = {
                    self.primary_metric: round(score, 4),
                    f"{self.primary_metric}_ci95": ci,
                    "episodes": int(chosen.sum()),
                }
        return table

    def _score(self, chosen: np.ndarray) -> tuple[float, tuple[float, float]]:
        trials = int(chosen.sum())
        if self.primary_metric == "return":
            returns = self.returns[chosen]
            mean = float(returns.mean())
            half = 1.96 * float(returns.std(ddof=1)) / math.sqrt(trials) if trials > 1 else math.inf
            return mean, (mean - half, mean + half)
        won = sum(
            int((self.outcomes[chosen] == value).sum())
            for value, name in self.names.items()
            if name == self.primary_metric
        )
        return won / trials, wilson(won, trials)

    def as_dict(self) -> dict[str, Any]:
        """Figures as the command line prints them."""
        head, low_high = self.primary_metric, [round(x, 4) for x in self.score_ci95]
        rates: dict[str, Any] = {name: round(self.rate(name), 4) for name in self.counts}
        if head != "return":
            won = np.isin(self.outcomes, [value for value, name in self.names.items() if name == head])
            seconds = round(float(self.lengths_s[won].mean()), 2) if won.any() else None
            rates = {head: rates.pop(head), **rates, f"mean_{head}_seconds": seconds}
        return {
            **rates,
            f"{head}_ci95": low_high,
            "episodes": self.episodes,
            **({"by_class": self.by_class()} if self.classes else {}),
            **{name: round(value, 3) for name, value in self.figures.items()},
            "mean_return": round(float(self.returns.mean()), 3),
            "std_return": round(float(self.returns.std()), 3),
            "act_ms": round(self.act_ms, 3),
            "env_steps_per_second": round(self.env_steps / max(self.wall_seconds, 1e-9)),
            "wall_seconds": round(self.wall_seconds, 2),
        }


def wilson(successes: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion (E. B. Wilson, JASA 1927)."""
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def evaluate(
    agent: BaseAgent,
    task: Task,
    cfg: Any,
    episodes: int,
    seed: int = TEST_SEED,
    *,
    device: str = "cpu",
    num_threads: int | None = None,
    deterministic: bool = True,
    record: int = 0,
    highlights: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Fly `episodes` episodes and return how they ended.

    Args:
        agent: Gets observations of all envs at once, returns their actions.
        cfg: The world, as `task.evaluation` makes it; no more envs are flown than episodes.
        episodes: How many to fly in all.
        seed: Decides the world; the same seed gives every agent the same episodes.
        record: Keep the first episodes of this many envs.
        highlights: Keep so many of the most interesting episodes.
        on_progress: Called with the number of episodes finished so far.
    """
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}, but an evaluation needs at least 1.")
    results, measured = Results(episodes), task.metrics.episode_metrics()
    begun, steps, tracks = time.perf_counter(), 0, list[Trajectory]()
    kept = Highlights(highlights, task.primary_metric) if highlights else None
    for wave, first in enumerate(range(0, episodes, cfg.num_envs)):
        part = dataclasses.replace(cfg, num_envs=min(cfg.num_envs, episodes - first))
        wave_seed = derive_seed(seed, Purpose.WAVE, wave) if wave else seed
        env = task.make_env(part, EnvPlacement(device=device, seed=wave_seed, num_threads=num_threads, held_out=True))
        try:
            check_fit(agent, env)
            recorder = Recorder(task.view, env, first, 0 if wave else record, tracks, kept)
            steps += fly_wave(agent, task.metrics, env, deterministic, measured, results, first, recorder, on_progress)
            names = {value: name for value, name in env.outcomes.items() if value}
            decision_s = env.decision_s
        finally:
            env.close()
    return Evaluation(
        outcomes=results.outcomes,
        names=names,
        primary_metric=task.primary_metric,
        returns=results.returns,
        lengths_s=results.lengths_s,
        kinds=results.kinds,
        classes=task.metrics.classes,
        figures={**measured.figures(), **agent.figures()},
        wall_seconds=time.perf_counter() - begun,
        env_steps=steps,
        decision_s=decision_s,
        act_ms=1e3 * results.act_seconds / max(results.acts, 1),
        tracks=tracks,
        highlights=kept.chosen() if kept else [],
    )


class Results:
    """Where the result of every episode is noted, by its number."""

    def __init__(self, episodes: int) -> None:
        self.outcomes = np.zeros(episodes, np.int64)
        self.kinds = np.zeros(episodes, np.int64)
        self.returns = np.zeros(episodes)
        self.lengths_s = np.zeros(episodes)
        self.act_seconds, self.acts = 0.0, 0


def fly_wave(
    agent: BaseAgent,
    metrics: TaskMetrics,
    env: TensorEnv,
    deterministic: bool,
    measured: EpisodeMetrics,
    results: Results,
    first: int,
    recorder: Recorder | None,
    on_progress: Callable[[int], None] | None,
) -> int:
    """Fly one episode in every env, note them from number `first` on, and return how many env steps it took."""
    n, steps = env.num_envs, 0
    active = torch.ones(n, dtype=torch.bool)
    out = env.make_buffers()
    env.reset(out=out)
    agent.reset()
    measured.begin(env)
    results.kinds[first : first + n] = metrics.classify(env).numpy()
    while active.any():
        if recorder:
            recorder.before_step(out["obs"])
        begun = time.perf_counter()
        action = agent.act(out["obs"], deterministic)
        results.act_seconds, results.acts = results.act_seconds + time.perf_counter() - begun, results.acts + 1
        counted = active.to(env.device)
        measured.before_step(out["obs"], action, counted)
        env.step(action, out=out)
        steps += n
        measured.after_step(out["outcome"], counted)
        if recorder:
            recorder.after_step(out["outcome"], out["episode_return"])
        over = (out["terminated"] | out["truncated"]).cpu()
        if not over.any():
            continue
        agent.reset(over)
        ended = (over & active).nonzero().flatten()
        where = first + ended.numpy()
        results.outcomes[where] = out["outcome"].cpu()[ended].numpy()
        results.returns[where] = out["episode_return"].cpu()[ended].numpy()
        results.lengths_s[where] = out["episode_length"].cpu()[ended].numpy() * env.decision_s
        active[ended] = False
        if on_progress and len(ended):
            on_progress(first + n - int(active.sum()))
    return steps
