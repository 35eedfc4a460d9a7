"""A PPO loop with one of the collectors: the fast preset's policy, learner and envs."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch

from fledge.agents.actor_critic import ActorCritic
from fledge.collect import CompressedDataCollector, HalvesDataCollector, PipelinedDataCollector, SyncDataCollector
from fledge.envs.base import TensorEnv
from fledge.envs.placement import EnvPlacement
from fledge.learn.ppo import PPO
from fledge.tasks.registry import find_task
from fledge.training.config import TrainConfig


class Loop:
    """A PPO loop with one of the collectors.

    Args:
        kind: "synchronous", "pipelined", "halves" or "compressed".
        cfg: The run's config.
        threads: Cores to use; overlapping phases get half of them each.
        level: Compression level, for "compressed".
    """

    def __init__(self, kind: str, cfg: TrainConfig, threads: int, level: int = 4) -> None:
        torch.manual_seed(cfg.seed)
        self.kind, self.cfg = kind, cfg
        half = max(1, threads // 2)
        self.env_threads = half if kind in ("pipelined", "halves") else threads
        self.act_threads = self.learn_threads = half
        self.use_threads(threads)
        self.task = find_task(cfg.task)
        policy = self.task.policy.build(self.task.policy.describe(self.task, "ppo", cfg.env, cfg.policy))
        assert isinstance(policy, ActorCritic)
        self.policy = policy
        self.learner = PPO(self.policy, cfg.ppo, stale_policy=kind == "pipelined")  # as `fledge train` does
        frames = cfg.env.num_envs * cfg.ppo.rollout_steps
        envs = self._make_envs(2 if kind == "halves" else 1)
        make = HalvesDataCollector if kind == "halves" else SyncDataCollector
        self.base: SyncDataCollector = make(envs, self.policy, frames)
        self.collector: Any = self.base
        if kind == "pipelined":
            self.collector = PipelinedDataCollector(self.base)
        elif kind == "compressed":
            self.collector = CompressedDataCollector(self.base, level)

    def _make_envs(self, parts: int) -> list[TensorEnv]:
        total = self.cfg.env.num_envs
        cfg = dataclasses.replace(self.cfg.env, num_envs=total // parts)
        return [
            self.task.make_env(
                cfg,
                EnvPlacement(
                    seed=self.cfg.seed, num_threads=self.env_threads, env_offset=k * total // parts, total_envs=total
                ),
            )
            for k in range(parts)
        ]

    def use_threads(self, count: int) -> None:
        """Give torch this many threads in the phases that do not overlap."""
        if self.kind in ("synchronous", "compressed"):
            self.act_threads = count
        if self.kind != "pipelined":
            self.learn_threads = count

    def iterate(self) -> dict[str, float]:
        """Collect and learn once; return the seconds of each part."""
        torch.set_num_threads(self.act_threads)
        begun = time.perf_counter()
        batch = self.collector.rollout()
        collected = time.perf_counter()
        torch.set_num_threads(self.learn_threads)
        self.learner.update(batch)
        learned = time.perf_counter()
        if self.kind == "pipelined":
            self.collector.wait()
        ended = time.perf_counter()
        return {
            "total": ended - begun,
            "collect": collected - begun + ended - learned,  # what the learner waits for
            "learn": learned - collected,
            "fly": self.base.frames_per_batch / self.base._fps,
        }

    def close(self) -> None:
        self.collector.shutdown()
