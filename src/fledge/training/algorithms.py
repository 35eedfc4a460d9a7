"""Make the learner and the collector that a config's algorithm needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.build import LearnedPolicy
from fledge.collect.base import Collector
from fledge.collect.compressed import CompressedDataCollector
from fledge.collect.experience import ExperienceCollector
from fledge.collect.halves import HalvesDataCollector
from fledge.collect.pipelined import PipelinedDataCollector
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed
from fledge.envs.base import TensorEnv
from fledge.learn.base import Learner
from fledge.learn.off_policy import OffPolicy, Replay
from fledge.learn.registry import POLICY_CLASSES
from fledge.replay import DictReplayBuffer
from fledge.training.config import CollectMode, TrainConfig
from fledge.training.ranks import Ranks


def make_learner(cfg: TrainConfig, policy: LearnedPolicy, ranks: Ranks) -> Learner:
    """Make the learner of a config's algorithm, with an empty buffer if it needs one."""
    kind: Any = cfg.learner
    if not isinstance(policy, POLICY_CLASSES[kind.policy_form]):
        raise ConfigError(f"algo={cfg.algo} cannot train a {type(policy).__name__}.")
    own = cfg.algo_settings
    if cfg.off_policy:
        return kind(policy, own, cfg.replay, make_buffer(cfg, ranks, policy, own.gamma), ranks.size)
    stale = {"stale_policy": True} if cfg.collect.mode is CollectMode.pipelined else {}
    return kind(policy, own, ranks.size, **stale)


def make_buffer(cfg: TrainConfig, ranks: Ranks, policy: LearnedPolicy, gamma: float) -> Replay:
    """Make this rank's share of the replay buffer."""
    observed = policy.observes
    keys = [*observed, *(f"next_{key}" for key in observed), "action", "reward", "terminated", "truncated"]
    return DictReplayBuffer(
        max(cfg.replay.segment, cfg.replay.size // ranks.size),
        keys,
        device=next(policy.parameters()).device,
        pin_memory=cfg.pin_memory,
        layout=cfg.replay.layout,  # type: ignore[arg-type]
        n_step=cfg.replay.n_step,
        gamma=gamma,
        prioritized=cfg.replay.prioritized,
        seed=derive_seed(cfg.seed, Purpose.REPLAY, ranks.rank),
        decode_threads=1 if ranks.size > 1 else None,
        segment_frames=cfg.replay.segment,
    )


def make_collector(cfg: TrainConfig, envs: Sequence[TensorEnv], policy: LearnedPolicy, learner: Learner) -> Collector:
    """Make the collector that gathers experience for a learner."""
    if isinstance(learner, OffPolicy):
        return ExperienceCollector(envs[0], learner.explore, cfg.steps)
    assert isinstance(policy, ActorCritic)
    frames = sum(env.num_envs for env in envs) * cfg.steps
    collector: Collector
    if cfg.collect.mode is CollectMode.halves:
        collector = HalvesDataCollector(envs, policy, frames)
    else:
        collector = plain = SyncDataCollector(envs, policy, frames)
        if cfg.collect.mode is CollectMode.pipelined:
            collector = PipelinedDataCollector(plain)
    level = cfg.collect.compression_level
    return CompressedDataCollector(collector, level) if level else collector
