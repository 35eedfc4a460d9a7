"""Evaluation: fly a fixed number of episodes on held-out maps and count how they end.

Every drone flies the same number of episodes (±1), so quick crashes are not over-counted. Maps are those of the
evaluation bank, which no training run ever sees. Nothing is stored per step except, on request, some flight paths.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fledge.core.errors import ConfigError
from fledge.tasks.navigation import NavigationConfig, NavigationEnv, Outcome

EVAL_BANK = 0x40000000  # banks from here on are for evaluation only


class Policy(Protocol):
    """Anything that flies: a network, a scripted pilot."""

    def act(self, obs: Mapping[str, Tensor], deterministic: bool = True) -> Tensor: ...


@dataclass
class Flights:
    """Paths of the first episode of some drones, for pictures."""

    paths: list[np.ndarray] = field(default_factory=list)  # [steps, 3] m, world
    outcomes: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    starts: list[np.ndarray] = field(default_factory=list)
    goals: list[np.ndarray] = field(default_factory=list)
    grids: dict[int, np.ndarray] = field(default_factory=dict)  # map cells by slot, see sim.terrain


@dataclass
class Evaluation:
    """How episodes ended, as rates with 95 % intervals, and how they went."""

    episodes: int
    counts: dict[str, int]
    mean_seconds: float  # of successful flights
    mean_speed: float  # m/s, path length over time, all flights
    mean_return: float
    wall_seconds: float
    env_steps: int
    flights: Flights | None = None

    def rate(self, name: str) -> float:
        return self.counts[name] / self.episodes

    def as_dict(self) -> dict[str, Any]:
        """Figures as the command line prints them."""
        names = ("success", "collision_static", "collision_moving", "out_of_bounds", "timeout")
        return {
            **{name: round(self.rate(name), 4) for name in names},
            "success_ci95": [round(x, 4) for x in wilson(self.counts["success"], self.episodes)],
            "episodes": self.episodes,
            "mean_success_seconds": round(self.mean_seconds, 2),
            "mean_speed": round(self.mean_speed, 3),
            "mean_return": round(self.mean_return, 3),
            "env_steps_per_second": round(self.env_steps / max(self.wall_seconds, 1e-9)),
            "wall_seconds": round(self.wall_seconds, 2),
        }


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion (E. B. Wilson, JASA 1927)."""
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def evaluation_config(cfg: NavigationConfig, episodes: int) -> NavigationConfig:
    """The same task for evaluation: no more drones than episodes, episodes end at the goal, maps stay."""
    return dataclasses.replace(
        cfg,
        num_envs=min(cfg.num_envs, episodes),
        success_ends_episode=True,
        map_refresh_steps=0,
    )


def evaluate(
    policy: Policy,
    cfg: NavigationConfig,
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
        policy: Gets observations of all drones at once, returns their actions.
        cfg: The task; `evaluation_config` is applied to it.
        episodes: How many to fly in all.
        seed: Decides maps, starts, goals and crowds; the same seed gives every policy the same episodes.
        record: Keep the paths of the first flights of this many drones.
        on_progress: Called with the number of episodes finished so far.
    """
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}, but an evaluation needs at least 1.")
    cfg = evaluation_config(cfg, episodes)
    env = NavigationEnv(cfg, device=device, seed=seed, num_threads=num_threads, bank=EVAL_BANK)
    try:
        return _fly(policy, env, episodes, deterministic, record, on_progress)
    finally:
        env.close()


def _fly(
    policy: Policy,
    env: NavigationEnv,
    episodes: int,
    deterministic: bool,
    record: int,
    on_progress: Callable[[int], None] | None,
) -> Evaluation:
    n = env.num_envs
    quota = torch.full((n,), episodes // n) + (torch.arange(n) < episodes % n).long()
    counts = dict.fromkeys((o.name.lower() for o in Outcome if o), 0)
    seconds, returns, path_m, flown_s = 0.0, 0.0, 0.0, 0.0
    recorder = _Recorder(env, min(record, n)) if record else None
    out = env.make_buffers()
    begun = time.perf_counter()
    env.reset(out=out)
    done = steps = 0
    while done < episodes:
        if recorder:
            recorder.before_step()
        action = policy.act(out["obs"], deterministic)
        env.step(action, out=out)
        steps += n
        if recorder:
            recorder.after_step(out["outcome"])
        active = quota > 0
        speed = env.state["vel"].norm(dim=-1).cpu()
        path_m += float(speed[active].sum()) * env.decision_s
        flown_s += float(active.sum()) * env.decision_s
        ended = ((out["terminated"] | out["truncated"]).cpu() & active).nonzero().flatten()
        if len(ended):
            outcome = out["outcome"].cpu()[ended]
            length = out["episode_length"].cpu()[ended].float() * env.decision_s
            for value, name in env.outcomes.items():
                if value:
                    counts[name] += int((outcome == value).sum())
            seconds += float(length[outcome == Outcome.SUCCESS].sum())
            returns += float(out["episode_return"].cpu()[ended].sum())
            quota[ended] -= 1
            done += len(ended)
            if on_progress:
                on_progress(done)
    return Evaluation(
        episodes=episodes,
        counts=counts,
        mean_seconds=seconds / max(counts["success"], 1),
        mean_speed=path_m / max(flown_s, 1e-9),
        mean_return=returns / episodes,
        wall_seconds=time.perf_counter() - begun,
        env_steps=steps,
        flights=recorder.flights if recorder else None,
    )


class _Recorder:
    """Collects positions of the first drones' first episodes."""

    def __init__(self, env: NavigationEnv, count: int) -> None:
        self.env, self.count = env, count
        self.flights = Flights()
        self.open = set(range(count))
        self.points: list[list[np.ndarray]] = [[] for _ in range(count)]

    def before_step(self) -> None:
        state = {k: self.env.state[k][: self.count].cpu().numpy() for k in ("pos", "start", "goal", "slot")}
        self.last = {k: v.copy() for k, v in state.items()}
        for i in self.open:
            self.points[i].append(self.last["pos"][i])

    def after_step(self, outcome: Tensor) -> None:
        for i in [i for i in self.open if int(outcome[i])]:
            self.open.discard(i)
            f = self.flights
            f.paths.append(np.stack(self.points[i]))
            f.outcomes.append(int(outcome[i]))
            f.slots.append(int(self.last["slot"][i]))
            f.starts.append(self.last["start"][i])
            f.goals.append(self.last["goal"][i])
            slot = f.slots[-1]
            if slot not in f.grids:
                f.grids[slot] = self.env.bank.grid[slot].cpu().numpy().copy()
