"""Evaluation: fly a fixed number of held-out episodes and count how they end.

Every env flies one episode, so quick failures are not over-counted. If there are more episodes than envs, further waves with
other seeds follow. So episode number k is the same for every policy. The envs are made with `held_out=True`: their maps and
seeds do not occur in training.

Choose policies with VALIDATION_SEED (evaluations during training, curves over checkpoints), and report with TEST_SEED.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
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
from fledge.tasks.base import Task, check_env
from fledge.tasks.metrics import EpisodeMetrics, TaskMetrics
from fledge.tasks.policy_loader import check_fit
from fledge.tasks.view.trajectory import Trajectory

VALIDATION_SEED = 1
TEST_SEED = 7


@dataclass
class PolicyResult:
    """Results of one policy: arrays with one entry per episode, rates with 95 % intervals, and the task's metrics."""

    episodes: int
    primary_metric: str  # an outcome, or "return"
    classes: Sequence[str] = ()  # classes of episodes, the hardest first; may be empty
    names: dict[int, str] = field(default_factory=dict)  # value of the env's outcome -> its name
    figures: dict[str, float] = field(default_factory=dict)  # metrics of the task and of the agent
    wall_seconds: float = 0.0
    env_steps: int = 0
    decision_s: float = 1.0
    act_seconds: float = 0.0
    acts: int = 0
    trajectories: list[Trajectory] = field(default_factory=list)
    highlights: list[Trajectory] = field(default_factory=list)  # the most interesting episodes, in that order

    def __post_init__(self) -> None:
        self.outcomes = np.zeros(self.episodes, np.int64)  # values of the env's outcome
        self.kinds = np.zeros(self.episodes, np.int64)  # index into classes
        self.returns = np.zeros(self.episodes)
        self.lengths_s = np.zeros(self.episodes)  # simulated seconds

    @property
    def act_ms(self) -> float:
        """Return the wall time in which the agent decides for all envs at once, ms.

        On a GPU, this is the time until the kernels are queued.
        """
        return 1e3 * self.act_seconds / max(self.acts, 1)

    def ended(self, name: str) -> np.ndarray:
        """Return a bool array [episodes] that is true where an episode ended with this outcome."""
        return np.isin(self.outcomes, [value for value, known in self.names.items() if known == name])

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of episodes by outcome."""
        return {name: int(self.ended(name).sum()) for name in self.names.values()}

    def rate(self, name: str) -> float:
        return self.counts[name] / self.episodes

    @property
    def score(self) -> float:
        """Return the primary metric: a rate, or the mean return."""
        return self._score(np.ones(self.episodes, bool))[0]

    @property
    def score_ci95(self) -> tuple[float, float]:
        """Return the 95 % interval of `score`: a Wilson interval for a rate, a normal one for a mean."""
        return self._score(np.ones(self.episodes, bool))[1]

    def by_class(self) -> dict[str, dict[str, Any]]:
        """Return for each class of episodes that occurred, by name: primary metric, 95 % interval and number of episodes."""
        table, head = {}, self.primary_metric
        for index, name in enumerate(self.classes):
            if (chosen := self.kinds == index).any():
                score, ci = self._score(chosen)
                figures = {head: round(score, 4), f"{head}_ci95": [round(x, 4) for x in ci]}
                table[name] = {**figures, "episodes": int(chosen.sum())}
        return table

    def _score(self, chosen: np.ndarray) -> tuple[float, tuple[float, float]]:
        trials = int(chosen.sum())
        if self.primary_metric == "return":
            returns = self.returns[chosen]
            mean = float(returns.mean())
            half = 1.96 * float(returns.std(ddof=1)) / math.sqrt(trials) if trials > 1 else math.inf
            return mean, (mean - half, mean + half)
        won = int(self.ended(self.primary_metric)[chosen].sum())
        return won / trials, wilson(won, trials)

    def as_dict(self) -> dict[str, Any]:
        """Return the results as a row that `fledge eval --json` prints."""
        head = self.primary_metric
        rates: dict[str, Any] = {name: round(self.rate(name), 4) for name in self.counts}
        if head != "return":
            won = self.ended(head)
            seconds = round(float(self.lengths_s[won].mean()), 2) if won.any() else None
            rates = {head: rates.pop(head), **rates, f"mean_{head}_seconds": seconds}
        return {
            **rates,
            f"{head}_ci95": [round(x, 4) for x in self.score_ci95],
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
    """Return the Wilson score interval of a proportion (E. B. Wilson, JASA 1927)."""
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
) -> PolicyResult:
    """Fly `episodes` held-out episodes with an agent, and return how they ended.

    Args:
        agent: Gets observations of all envs at once, returns their actions.
        cfg: Env config, from `task.evaluation`; no more envs are made than episodes need.
        episodes: Number of episodes in all.
        seed: Seed of maps and starts; with the same seed, every agent gets the same episodes.
        record: Number of envs whose first episode is kept in `trajectories`.
        highlights: Number of the most interesting episodes to keep.
        on_progress: Called with the number of episodes finished so far.
    """
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}, but an evaluation needs at least 1.")
    result = PolicyResult(episodes, task.primary_metric, task.metrics.classes)
    begun, measured = time.perf_counter(), task.metrics.episode_metrics()
    rows = task.match.rows(cfg) if task.match.sides == 1 else 1
    kept = Highlights(highlights, task.primary_metric) if highlights else None
    for wave, first in enumerate(range(0, episodes, cfg.num_envs)):
        whole = -(-(episodes - first) // rows) * rows
        part = dataclasses.replace(cfg, num_envs=min(cfg.num_envs, whole))
        wave_seed = derive_seed(seed, Purpose.WAVE, wave) if wave else seed
        placement = EnvPlacement(device=device, seed=wave_seed, num_threads=num_threads, held_out=True)
        with contextlib.closing(check_env(task, part, task.make_env(part, placement))) as env:
            check_fit(agent, env)
            recorder = Recorder(task.view, env, first, 0 if wave else record, result.trajectories, kept)
            fly_wave(agent, env, result, first, deterministic, task.metrics, measured, recorder, on_progress)
    result.figures = {**measured.figures(), **agent.figures()}
    result.highlights = kept.chosen() if kept else []
    result.wall_seconds = time.perf_counter() - begun
    return result


@contextlib.contextmanager
def on_device(agents: Sequence[BaseAgent], device: str) -> Iterator[None]:
    """Move agents to a device inside the block, and back afterwards."""
    before = [agent.device for agent in agents]
    try:
        for agent in agents:
            agent.to(device)
        yield
    finally:
        for agent, place in zip(agents, before, strict=True):
            agent.to(place)


def check_classes(metrics: TaskMetrics, env: TensorEnv) -> torch.Tensor:
    """Return the class of each env's episode [N]; raise ConfigError unless `classify` returns valid indices."""
    kinds = metrics.classify(env)
    good = isinstance(kinds, torch.Tensor) and kinds.shape == (env.num_envs,) and not kinds.is_floating_point()
    if not good or int(kinds.min()) < 0 or int(kinds.max()) >= max(1, len(metrics.classes)):
        got = f"{kinds.dtype} {list(kinds.shape)}" if isinstance(kinds, torch.Tensor) else type(kinds).__name__
        got = f"values from {int(kinds.min())} to {int(kinds.max())}" if good else got
        raise ConfigError(
            f"TaskMetrics.classify must return a tensor of integers [{env.num_envs}] from 0 to "
            f"{max(0, len(metrics.classes) - 1)}, the indices of `classes`; got {got}."
        )
    return kinds


def fly_wave(
    agent: BaseAgent,
    env: TensorEnv,
    result: PolicyResult,
    first: int,
    deterministic: bool,
    metrics: TaskMetrics,
    measured: EpisodeMetrics,
    recorder: Recorder | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Fly one episode in every env, and write the results to `result` from index `first` on.

    Episodes beyond the length of `result` are left out.
    """
    active = torch.arange(env.num_envs) < result.episodes - first
    last = first + int(active.sum())
    out = env.make_buffers()
    env.reset(out=out)
    agent.reset()
    measured.begin(env)
    result.names, result.decision_s = {value: name for value, name in env.outcomes.items() if value}, env.decision_s
    result.kinds[first:last] = check_classes(metrics, env)[: last - first].numpy()
    while active.any():
        if recorder:
            recorder.before_step(out["obs"])
        begun = time.perf_counter()
        action = agent.act(out["obs"], deterministic)
        result.act_seconds, result.acts = result.act_seconds + time.perf_counter() - begun, result.acts + 1
        counted = active.to(env.device)
        measured.before_step(out["obs"], action, counted)
        env.step(action, out=out)
        result.env_steps += env.num_envs
        measured.after_step(out["outcome"], counted)
        if recorder:
            recorder.after_step(out["outcome"], out["episode_return"])
        over = (out["terminated"] | out["truncated"]).cpu()
        if not over.any():
            continue
        agent.reset(over)
        ended = (over & active).nonzero().flatten()
        where = first + ended.numpy()
        result.outcomes[where] = out["outcome"].cpu()[ended].numpy()
        result.returns[where] = out["episode_return"].cpu()[ended].numpy()
        result.lengths_s[where] = out["episode_length"].cpu()[ended].numpy() * env.decision_s
        active[ended] = False
        if on_progress and len(ended):
            on_progress(last - int(active.sum()))
