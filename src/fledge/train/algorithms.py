"""From a config to the parts of a run that its algorithm decides: network, learner, collector.

A learner has `update(rollout, progress)`, `optimizers`, `state_dict` (shared by all ranks), `rank_state` (its own) and
`close`; a collector has `rollout()`, `state_dict`, `simulate_s` and `shutdown`. The training loop knows no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.squashed import SquashedActor
from fledge.collect.experience import ExperienceCollector
from fledge.collect.halves import HalvesDataCollector
from fledge.collect.pipelined import PipelinedDataCollector
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed
from fledge.learn import dqn, sac
from fledge.learn.dqn import DQN
from fledge.learn.off_policy import OffPolicy, Replay
from fledge.learn.ppo import PPO
from fledge.learn.sac import SAC
from fledge.learn.td3 import TD3
from fledge.replay import DictReplayBuffer
from fledge.tasks.navigation import NavigationEnv
from fledge.tasks.navigation.config import ActionForm
from fledge.tasks.navigation.grid_q import GridQ
from fledge.train.config import Algo, CollectMode, PolicyKind, TrainConfig
from fledge.train.ranks import Ranks

Learner = PPO | OffPolicy
Collector = SyncDataCollector | PipelinedDataCollector | ExperienceCollector


def describe_policy(cfg: TrainConfig) -> dict[str, Any]:
    """The description (see `agents.build`) of the policy that a config trains.

    Raises:
        ConfigError: when algorithm, network and task do not go together.
    """
    if cfg.algo is not Algo.ppo and cfg.collect.mode is not CollectMode.sync:
        raise ConfigError(
            f"collect.mode={cfg.collect.mode.name} is for ppo; algo={cfg.algo.name} flies in turns (sync)."
        )
    if cfg.algo is not Algo.dqn and cfg.replay.prioritized:
        raise ConfigError(f"replay.prioritized=true is for dqn; algo={cfg.algo.name} draws uniformly, if at all.")
    env, headings = cfg.env, cfg.env.action_form is ActionForm.headings
    if cfg.algo is Algo.dqn:
        if not headings or not env.grid_map:
            raise ConfigError("algo=dqn needs env.action_form=headings and env.grid_map=true, as in --preset dqn.")
        return {
            "kind": "grid_q",
            "hidden": list(cfg.policy.hidden),
            "grid_size": env.grid_size,
            "headings": env.num_headings,
        }
    if headings:
        raise ConfigError(f"algo={cfg.algo.name} flies with env.action_form=velocity; headings are for dqn.")
    if cfg.algo is not Algo.ppo and cfg.policy.kind is not PolicyKind.features:
        raise ConfigError(f"algo={cfg.algo.name} learns with policy.kind=features; navrl's network is for ppo.")
    return {
        "kind": cfg.policy.kind.value if cfg.algo is Algo.ppo else "squashed",
        "hidden": list(cfg.policy.hidden),
        "lidar": [env.lidar_azimuths, env.num_elevations],
        "range_m": env.lidar_range_m,
    }


def make_learner(cfg: TrainConfig, policy: nn.Module, ranks: Ranks) -> Learner:
    """The learner of a config's algorithm, with an empty buffer if it needs one."""
    if cfg.algo is Algo.ppo:
        assert isinstance(policy, ActorCritic)
        return PPO(policy, cfg.ppo, ranks.size, lagged=cfg.collect.mode is CollectMode.pipelined)
    if cfg.algo is Algo.dqn:
        assert isinstance(policy, GridQ)
        return DQN(policy, cfg.dqn, cfg.replay, make_buffer(cfg, ranks, dqn.OBSERVED, cfg.dqn.gamma), ranks.size)
    assert isinstance(policy, SquashedActor)
    if cfg.algo is Algo.sac:
        return SAC(policy, cfg.sac, cfg.replay, make_buffer(cfg, ranks, sac.OBSERVED, cfg.sac.gamma), ranks.size)
    return TD3(policy, cfg.td3, cfg.replay, make_buffer(cfg, ranks, sac.OBSERVED, cfg.td3.gamma), ranks.size)


def make_buffer(cfg: TrainConfig, ranks: Ranks, observed: tuple[str, ...], gamma: float) -> Replay:
    """This rank's share of the replay."""
    keys = [*observed, *(f"next_{key}" for key in observed), "action", "reward", "terminated", "truncated"]
    return DictReplayBuffer(
        max(cfg.replay.segment, cfg.replay.size // ranks.size),
        keys,
        device=cfg.device,
        layout=cfg.replay.layout,  # type: ignore[arg-type]
        n_step=cfg.replay.n_step,
        gamma=gamma,
        prioritized=cfg.replay.prioritized,
        seed=derive_seed(cfg.seed, Purpose.REPLAY, ranks.rank),
        decode_threads=1 if ranks.size > 1 else None,
        segment_frames=cfg.replay.segment,
    )


def make_collector(cfg: TrainConfig, envs: Sequence[NavigationEnv], policy: nn.Module, learner: Learner) -> Collector:
    """What flies for a learner."""
    if isinstance(learner, OffPolicy):
        return ExperienceCollector(envs[0], learner.explore, cfg.steps)
    assert isinstance(policy, ActorCritic)
    frames = sum(env.num_envs for env in envs) * cfg.steps
    if cfg.collect.mode is CollectMode.halves:
        return HalvesDataCollector(envs, policy, frames)
    collector = SyncDataCollector(envs, policy, frames)
    return PipelinedDataCollector(collector) if cfg.collect.mode is CollectMode.pipelined else collector
