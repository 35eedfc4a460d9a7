"""`fledge.evaluate`: evaluate a policy in a held-out env of a task, or in an env of the caller's."""

from __future__ import annotations

import time
from typing import Any

import torch

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv
from fledge.evaluation import episodes as held_out
from fledge.evaluation.episodes import Evaluation, fly_wave
from fledge.tasks.metrics import EpisodeMetrics, TaskMetrics


def evaluate(*args: Any, **options: Any) -> Evaluation:
    """Evaluate `(agent, task, cfg, episodes)` (`episodes.evaluate`), or `(env, policy)` (`evaluate_in`)."""
    in_env = "env" in options or (args and isinstance(args[0], TensorEnv))
    return evaluate_in(*args, **options) if in_env else held_out.evaluate(*args, **options)


def evaluate_in(
    env: TensorEnv, policy: BaseAgent, episodes: int | None = None, *, deterministic: bool = True
) -> Evaluation:
    """Fly episodes in an env, which is not held out, and return how they ended; then restore the env's state.

    Args:
        policy: Anything with `act(obs, deterministic)`.
        episodes: How many in all, each from a reset; by default one for each env.
        deterministic: Take the policy's mean instead of sampling.
    """
    count = env.num_envs if episodes is None else episodes
    if count < 1:
        raise ConfigError(f"episodes is {episodes}, but an evaluation needs at least 1.")
    result = Evaluation(count, "success" if "success" in env.outcomes.values() else "return")
    before, begun = env.state_dict(), time.perf_counter()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for first in range(0, count, env.num_envs):
                fly_wave(policy, env, result, first, deterministic, TaskMetrics(), EpisodeMetrics())
    finally:
        env.load_state_dict(before)
    result.wall_seconds = time.perf_counter() - begun
    return result
