"""Memory of a training: checked before it starts, watched while it runs, and a clear error if it runs out."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from fledge.core.errors import MemoryBudgetError
from fledge.core.machine import available_bytes, release_freed_memory
from fledge.core.specs import parts_of
from fledge.tasks.base import Task
from fledge.tasks.policy_factory import env_specs
from fledge.training.config import CollectMode, TrainConfig

BLOCKS = 4  # number of blocks of iterations over which the memory must grow to count as a leak
GROWTH_MB, GROWTH_SHARE = 64.0, 0.02  # growth over these blocks that counts as a leak: both must be exceeded
RESULTS = 15  # bytes of a decision: reward, terminated, truncated, outcome, episode_return, episode_length
COMPUTED = 4 * 3  # log_prob, value, next_value
LEARNED = 4 * 5  # what an update adds: advantage, target and their normalised forms, the order of samples


def decision_bytes(task: Task, cfg: TrainConfig) -> int:
    """Return the bytes of one decision in a rollout, as `SyncDataCollector` allocates it."""
    with torch.random.fork_rng(devices=[]):
        policy: Any = task.policy.build(task.policy.describe(task, cfg.learner.policy_form, cfg.env, cfg.policy))
    observed, action = env_specs(task, cfg.env)
    parts = [*observed.values(), *parts_of(action).values()]
    arrays = sum(math.prod(s.shape) * s.dtype.itemsize for s in parts)
    return arrays + 4 * (policy.inputs + policy.head.width + policy.hidden_size) + RESULTS + COMPUTED


def check_memory(task: Task, cfg: TrainConfig, ranks: int, here: int | None = None) -> None:
    """Raise MemoryBudgetError if the rollouts that are in memory at the same time would not fit.

    Args:
        here: Number of ranks on this host; by default all are.
    """
    if cfg.off_policy:
        return
    need, have = rollout_bytes(task, cfg, ranks, here), available_bytes(torch.device(cfg.device))
    if need > 0.8 * have:
        raise MemoryBudgetError(
            f"Rollouts of {cfg.steps} decisions of {cfg.env.num_envs:,} {task.metrics.unit} need {need / 2**30:.1f} GiB, "
            f"but {have / 2**30:.1f} GiB are available: {advice(task, cfg, 0.8 * have / need)}."
        )


def rollout_bytes(task: Task, cfg: TrainConfig, ranks: int, here: int | None = None) -> int:
    """Return the bytes of the rollouts that are in the memory of this host, or of one GPU, at the same time."""
    ahead = 3 if cfg.actors.listen else 2 if cfg.collect.mode is CollectMode.pipelined else 1
    need: int = ahead * cfg.steps * cfg.env.num_envs * (decision_bytes(task, cfg) + LEARNED)
    return need * (1 if torch.device(cfg.device).type == "cuda" else here or ranks) // ranks  # a GPU for each rank


def advice(task: Task, cfg: TrainConfig, share: float) -> str:
    """Return which settings to lower, and how far, so that training needs only `share` (0 to 1) of its present memory."""
    rows = task.match.rows(cfg.env)
    fewer = max(rows, int(cfg.env.num_envs * share) // rows * rows)
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


class MemoryWatch:
    """Detects a memory leak: memory that grows over BLOCKS blocks of iterations, from each block to the next.

    The first time, `add` only collects unreachable objects and returns freed memory to the system; if the memory then
    grows again, it returns a warning.

    Args:
        block: Iterations in a block.
    """

    def __init__(self, block: int = 50) -> None:
        self.block = block
        self.seen: list[float] = []  # MB, of the present block
        self.levels: list[float] = []  # median of each block
        self.cleaned = False

    def add(self, iteration: int, memory_mb: float) -> str:
        """Add the memory in use at an iteration; return a warning if the memory shows a leak, else ""."""
        self.seen.append(memory_mb)
        if len(self.seen) < self.block:
            return ""
        self.levels = [*self.levels, median(self.seen)][-BLOCKS:]
        self.seen.clear()
        growth = self.levels[-1] - self.levels[0]
        grows = all(later > earlier for earlier, later in pairwise(self.levels))
        if len(self.levels) < BLOCKS or not grows or growth < max(GROWTH_MB, GROWTH_SHARE * self.levels[0]):
            return ""
        now, cleaned, self.cleaned, self.levels = self.levels[-1], self.cleaned, True, []
        gc.collect()
        release_freed_memory()
        if not cleaned:  # the next blocks tell whether that was enough
            return ""
        return (
            f"[Warning] The memory of this process grew by {growth:.0f} MB in {BLOCKS * self.block} iterations; at iteration "
            f"{iteration} it is {now:.0f} MB. Look for tensors or lists that an env, reward or task of your own keeps from "
            "each step; max_minutes=N saves and stops before the memory is full."
        )
