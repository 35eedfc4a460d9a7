"""Evaluation in an env that the caller has: `fledge.evaluate(env, policy)`, in any loop, with no task or config at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv
from fledge.evaluate.episodes import Evaluation, _fly


class _AnyTask:
    """What flying episodes asks of a task, for an env alone: no measures, and success as headline where it is known."""

    def __init__(self, env: TensorEnv) -> None:
        self.headline = "success" if "success" in env.outcomes.values() else "return"

    def measures(self, env: TensorEnv, action: Any) -> Mapping[str, Tensor]:
        return {}


def evaluate_in(
    env: TensorEnv, policy: BaseAgent, episodes: int | None = None, *, deterministic: bool = True
) -> Evaluation:
    """Fly episodes in an env and return how they ended; the env is then put back to where it was.

    Every env flies the same number of episodes (±1), from a reset. It is the env that was given, with what was met in
    training: `evaluate(agent, task, cfg, episodes)` makes one that is held out.

    Args:
        policy: Anything with `act(obs, deterministic)`.
        episodes: How many in all; by default one for each env.
        deterministic: Take the policy's mean instead of drawing.
    """
    count = env.num_envs if episodes is None else episodes
    if count < 1:
        raise ConfigError(f"episodes is {episodes}, but an evaluation needs at least 1.")
    before = env.state_dict()
    task: Any = _AnyTask(env)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return _fly(policy, task, env, count, deterministic, 0, None)
    finally:
        env.load_state_dict(before)
