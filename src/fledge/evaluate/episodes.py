"""Evaluation: fly a fixed number of episodes in the held-out world and count how they end.

Every env flies the same number of episodes (±1), so quick failures are not over-counted. The env is made with
`held_out=True`: nothing in it was met in training. Nothing is stored per step except, on request, some recordings.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv
from fledge.tasks.base import Task, Track


@dataclass
class Evaluation:
    """How episodes ended, as rates with 95 % intervals, and how they went."""

    episodes: int
    counts: dict[str, int]  # by outcome
    headline: str  # an outcome, or "return"
    returns: np.ndarray  # [episodes]
    seconds: float  # simulated, of the episodes that ended with the headline's outcome (or all), mean
    means: dict[str, float]  # of the task's measures, over all time flown
    wall_seconds: float
    env_steps: int
    tracks: list[Track] = field(default_factory=list)

    def rate(self, name: str) -> float:
        return self.counts[name] / self.episodes

    @property
    def score(self) -> float:
        """The headline figure: a rate, or the mean return."""
        return float(self.returns.mean()) if self.headline == "return" else self.rate(self.headline)

    @property
    def score_ci95(self) -> tuple[float, float]:
        """Its 95 % interval: Wilson's for a rate, normal for a mean."""
        if self.headline != "return":
            return wilson(self.counts[self.headline], self.episodes)
        half = 1.96 * float(self.returns.std(ddof=1)) / math.sqrt(self.episodes) if self.episodes > 1 else math.inf
        return self.score - half, self.score + half

    def as_dict(self) -> dict[str, Any]:
        """Figures as the command line prints them."""
        head, low_high = self.headline, [round(x, 4) for x in self.score_ci95]
        figures: dict[str, Any] = {name: round(self.rate(name), 4) for name in self.counts}
        if head != "return":
            figures = {head: figures.pop(head), **figures, f"mean_{head}_seconds": round(self.seconds, 2)}
        return {
            **figures,
            f"{head}_ci95": low_high,
            "episodes": self.episodes,
            **{f"mean_{name}": round(value, 3) for name, value in self.means.items()},
            "mean_return": round(float(self.returns.mean()), 3),
            "std_return": round(float(self.returns.std()), 3),
            "env_steps_per_second": round(self.env_steps / max(self.wall_seconds, 1e-9)),
            "wall_seconds": round(self.wall_seconds, 2),
        }


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
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
    seed: int = 1,
    *,
    device: str = "cpu",
    num_threads: int | None = None,
    deterministic: bool = True,
    record: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Fly `episodes` episodes and return how they ended.

    Args:
        agent: Gets observations of all envs at once, returns their actions.
        cfg: The world, as `task.evaluation` makes it; no more envs are flown than episodes.
        episodes: How many to fly in all.
        seed: Decides the world; the same seed gives every agent the same episodes.
        record: Keep the first episodes of this many envs.
        on_progress: Called with the number of episodes finished so far.
    """
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}, but an evaluation needs at least 1.")
    cfg = dataclasses.replace(cfg, num_envs=min(cfg.num_envs, episodes))
    env = task.make_env(cfg, device=device, seed=seed, num_threads=num_threads, held_out=True)
    try:
        task.check_fit(agent, env)
        return _fly(agent, task, env, episodes, deterministic, record, on_progress)
    finally:
        env.close()


def _fly(
    agent: BaseAgent,
    task: Task,
    env: TensorEnv,
    episodes: int,
    deterministic: bool,
    record: int,
    on_progress: Callable[[int], None] | None,
) -> Evaluation:
    n = env.num_envs
    quota = torch.full((n,), episodes // n) + (torch.arange(n) < episodes % n).long()
    counts = {name: 0 for value, name in env.outcomes.items() if value}
    returns: list[float] = []
    seconds: list[float] = []
    sums: dict[str, float] = {}
    flown = 0
    recorder = Recorder(task, env, min(record, n)) if record else None
    out = env.make_buffers()
    begun = time.perf_counter()
    env.reset(out=out)
    agent.reset()
    done = steps = 0
    while done < episodes:
        if recorder:
            recorder.before_step()
        action = agent.act(out["obs"], deterministic)
        env.step(action, out=out)
        steps += n
        if recorder:
            recorder.after_step(out["outcome"])
        active = quota > 0
        flown += int(active.sum())
        for name, figure in task.measures(env, action).items():
            sums[name] = sums.get(name, 0.0) + float(figure.cpu()[active].sum())
        over = (out["terminated"] | out["truncated"]).cpu()
        if over.any():
            agent.reset(over)
        ended = (over & active).nonzero().flatten()
        if len(ended):
            outcome = out["outcome"].cpu()[ended]
            length = out["episode_length"].cpu()[ended].float() * env.decision_s
            for value, name in env.outcomes.items():
                if value:
                    counts[name] += int((outcome == value).sum())
            counted = [env.outcomes[int(o)] == task.headline or task.headline == "return" for o in outcome]
            seconds += length[torch.tensor(counted)].tolist()
            returns += out["episode_return"].cpu()[ended].tolist()
            quota[ended] -= 1
            done += len(ended)
            if on_progress:
                on_progress(done)
    return Evaluation(
        episodes=episodes,
        counts=counts,
        headline=task.headline,
        returns=np.array(returns),
        seconds=sum(seconds) / max(len(seconds), 1),
        means={name: total / max(flown, 1) for name, total in sums.items()},
        wall_seconds=time.perf_counter() - begun,
        env_steps=steps,
        tracks=recorder.tracks if recorder else [],
    )


class Recorder:
    """Collects what moves in the first envs' first episodes."""

    def __init__(self, task: Task, env: TensorEnv, count: int) -> None:
        self.task, self.env = task, env
        self.open = list(range(count))
        self.frames: list[list[dict[str, np.ndarray]]] = [[] for _ in range(count)]
        self.tracks: list[Track] = []
        self.scenes: list[dict[str, Any]] = []

    def before_step(self) -> None:
        if not self.open:
            return
        if not self.scenes:
            self.scenes = self.task.scene(self.env, self.open)
        now = self.task.snapshot(self.env, self.open)
        for row, env in enumerate(self.open):
            self.frames[env].append({name: value[row].copy() for name, value in now.items()})

    def after_step(self, outcome: Tensor) -> None:
        ended = outcome.cpu()
        for env in [i for i in self.open if int(ended[i])]:
            self.open.remove(env)
            names = self.frames[env][0]
            frames = {name: np.stack([frame[name] for frame in self.frames[env]]) for name in names}
            self.tracks.append(Track(frames, self.scenes[env], self.env.outcomes[int(ended[env])]))
            self.frames[env] = []
