"""From a config to the parts of a run that its algorithm decides: learner and collector."""

from __future__ import annotations

from collections.abc import Sequence

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.build import LearnedPolicy
from fledge.agents.q_network import QNetwork
from fledge.agents.squashed import SquashedActor
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
from fledge.learn.dqn import DQN
from fledge.learn.off_policy import OffPolicy, Replay
from fledge.learn.ppo import PPO
from fledge.learn.sac import SAC
from fledge.learn.td3 import TD3
from fledge.replay import DictReplayBuffer
from fledge.train.config import Algo, CollectMode, TrainConfig
from fledge.train.ranks import Ranks


def make_learner(cfg: TrainConfig, policy: LearnedPolicy, ranks: Ranks) -> Learner:
    """The learner of a config's algorithm, with an empty buffer if it needs one."""
    match cfg.algo, policy:
        case Algo.ppo, ActorCritic():
            return PPO(policy, cfg.ppo, ranks.size, stale_policy=cfg.collect.mode is CollectMode.pipelined)
        case Algo.dqn, QNetwork():
            return DQN(policy, cfg.dqn, cfg.replay, make_buffer(cfg, ranks, policy, cfg.dqn.gamma), ranks.size)
        case Algo.sac, SquashedActor():
            return SAC(policy, cfg.sac, cfg.replay, make_buffer(cfg, ranks, policy, cfg.sac.gamma), ranks.size)
        case Algo.td3, SquashedActor():
            return TD3(policy, cfg.td3, cfg.replay, make_buffer(cfg, ranks, policy, cfg.td3.gamma), ranks.size)
    raise ConfigError(f"algo={cfg.algo.name} cannot train a {type(policy).__name__}.")


def make_buffer(cfg: TrainConfig, ranks: Ranks, policy: LearnedPolicy, gamma: float) -> Replay:
    """This rank's share of the replay."""
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
    """What flies for a learner."""
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
