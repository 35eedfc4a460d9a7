"""Memory of a training: checked before it starts, and a clear error if it runs out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fledge.core.errors import MemoryBudgetError
from fledge.core.machine import available_bytes
from fledge.tasks.base import Task
from fledge.tasks.policy_factory import env_specs
from fledge.training.config import CollectMode, TrainConfig

RESULTS = 64  # bytes of a decision besides what was observed: action, values, reward, flags


def check_memory(task: Task, cfg: TrainConfig, ranks: int) -> None:
    """Raise MemoryBudgetError if the rollouts that are held at once would not fit."""
    if cfg.off_policy:
        return
    device = torch.device(cfg.device)
    observed = sum(math.prod(s.shape) * s.dtype.itemsize for s in env_specs(task, cfg.env)[0].values())
    ahead = 2 if cfg.collect.mode is CollectMode.pipelined else 1
    need, have = ahead * cfg.steps * cfg.env.num_envs * (observed + RESULTS), available_bytes(device)
    if device.type == "cuda":  # a GPU for each rank
        need = need // ranks
    if need > 0.8 * have:
        raise MemoryBudgetError(
            f"Rollouts of {cfg.steps} decisions of {cfg.env.num_envs:,} {task.metrics.unit} need {need / 2**30:.1f} GiB, "
            f"but {have / 2**30:.1f} GiB are available: {advice(task, cfg, 0.8 * have / need)}."
        )


def advice(task: Task, cfg: TrainConfig, share: float) -> str:
    """Return which settings to lower, and how far, to need only this share of the memory."""
    fewer = max(task.match.sides, int(cfg.env.num_envs * share) // task.match.sides * task.match.sides)
    length = "replay.steps" if cfg.off_policy else f"{cfg.section}.rollout_steps"
    small = ", or take hardware=small" if "small" in task.presets.names("hardware") else ""
    return f"lower env.num_envs to at most {fewer:,}, or {length}{small}"


@contextmanager
def memory_sentence(task: Task, cfg: TrainConfig) -> Iterator[None]:
    """Turn torch's out-of-memory errors into a MemoryBudgetError that names the setting to lower."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        why = str(error).splitlines()[0].rstrip(".")
        own = "lower replay.batch, replay.size, or " if cfg.off_policy else ""
        own = "lower ppo.minibatch, or " if cfg.algo == "ppo" else own
        text = f"Memory ran out on {cfg.device} ({why}): {own}{advice(task, cfg, 0.5)}."
        raise MemoryBudgetError(text) from error
