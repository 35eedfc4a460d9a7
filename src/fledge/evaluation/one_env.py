"""Evaluation in an env that the caller has: `fledge.evaluate(env, policy)`, in any loop, with no task or config at hand."""

from __future__ import annotations

import time

import torch

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError
from fledge.envs.base import TensorEnv
from fledge.evaluation.episodes import Evaluation, Results, fly_wave
from fledge.tasks.metrics import EpisodeMetrics, TaskMetrics


def evaluate_in(
    env: TensorEnv, policy: BaseAgent, episodes: int | None = None, *, deterministic: bool = True
) -> Evaluation:
    """Fly episodes in an env and return how they ended; the env is then put back to where it was.

    Every env flies one episode from a reset, in as many waves as it takes. It is the env that was given, with what was met in
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
    waves = -(-count // env.num_envs)
    results, begun, steps = Results(waves * env.num_envs), time.perf_counter(), 0
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for wave in range(waves):
                steps += fly_wave(
                    policy,
                    TaskMetrics(),
                    env,
                    deterministic,
                    EpisodeMetrics(),
                    results,
                    wave * env.num_envs,
                    None,
                    None,
                )
    finally:
        env.load_state_dict(before)
    return Evaluation(
        outcomes=results.outcomes[:count],
        names={value: name for value, name in env.outcomes.items() if value},
        primary_metric="success" if "success" in env.outcomes.values() else "return",
        returns=results.returns[:count],
        lengths_s=results.lengths_s[:count],
        kinds=results.kinds[:count],
        classes=(),
        figures={},
        wall_seconds=time.perf_counter() - begun,
        env_steps=steps,
    )
