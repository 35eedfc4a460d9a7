"""`fledge.evaluate`: evaluate a policy in a held-out env of a task, or in an env of the caller's."""

from __future__ import annotations

from typing import Any

from fledge.envs.base import TensorEnv
from fledge.evaluation import episodes, one_env
from fledge.evaluation.episodes import Evaluation


def evaluate(*args: Any, **options: Any) -> Evaluation:
    """Evaluate `(agent, task, cfg, episodes)` (`episodes.evaluate`), or `(env, policy)` (`one_env.evaluate_in`)."""
    in_env = "env" in options or (args and isinstance(args[0], TensorEnv))
    return one_env.evaluate_in(*args, **options) if in_env else episodes.evaluate(*args, **options)
