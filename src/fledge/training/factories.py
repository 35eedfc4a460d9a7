"""Factories of a run's parts: envs, learner and replay buffer, from its config."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from fledge.agents.build import LearnedPolicy
from fledge.core.code import find_object
from fledge.core.errors import ConfigError
from fledge.core.machine import default_threads
from fledge.core.random import Purpose, derive_seed
from fledge.envs.base import TensorEnv
from fledge.envs.placement import EnvPlacement
from fledge.envs.reward_wrapper import RewardWrapper, find_reward
from fledge.learn.base import Learner
from fledge.learn.off_policy import Replay
from fledge.learn.registry import POLICY_CLASSES
from fledge.replay import DictReplayBuffer
from fledge.tasks.base import Task, check_env
from fledge.training.collectors import local_envs
from fledge.training.config import CollectMode, TrainConfig
from fledge.training.learner_checks import check_recurrent
from fledge.training.ranks import Ranks

TAKEN = {"action", "reward", "terminated", "truncated"}  # entries of a rollout: no observation may have these names


def with_sizes(cfg: TrainConfig, sizes: Mapping[str, int]) -> TrainConfig:
    """Return a config with other sizes, by the names in `cfg.auto`; its sections `env` and `ppo` are its own."""
    made = copy.copy(cfg)  # keeps `made_by`
    made.env = dataclasses.replace(cfg.env, num_envs=sizes.get("env.num_envs", cfg.env.num_envs))
    made.ppo = dataclasses.replace(cfg.ppo, minibatch=sizes.get("ppo.minibatch", cfg.ppo.minibatch))
    return made


def env_unit(task: Task, cfg: TrainConfig, ranks: int) -> int:
    """Return what the number of envs must be a multiple of, so that every rank (and half of it) has whole episodes."""
    return ranks * task.match.rows(cfg.env) * (2 if cfg.collect.mode is CollectMode.halves else 1)


def env_with_reward(task: Task, env: Any, reference: str) -> Any:
    """Return the env settings with a user's reward class; None if `reference` names no reward class of this task."""
    found = find_object(reference)
    names = {task.name, *(getattr(kind, "name", None) for kind in type(task).__mro__)}  # also of tasks it derives from
    native = isinstance(found, type) and getattr(found, "task", "") in names - {""}
    return dataclasses.replace(env, reward=reference) if native else None


def make_rank_envs(
    task: Task, cfg: TrainConfig, ranks: Ranks, device: str, threads: int | None = None
) -> list[TensorEnv]:
    """Make this rank's share of the envs: one batch, or two batches of half the size for collect.mode=halves."""
    parts = 2 if cfg.collect.mode is CollectMode.halves else 1
    share = local_envs(task, cfg) // ranks.size // parts
    spare = max(1, default_threads() - 1) if parts > 1 else None  # halves: one core decides meanwhile
    paid = env_with_reward(task, cfg.env, cfg.reward) if cfg.reward else None
    env_cfg = dataclasses.replace(paid or cfg.env, num_envs=share)
    envs = [
        check_env(
            task,
            env_cfg,
            task.make_env(
                env_cfg,
                EnvPlacement(
                    device=device,
                    seed=cfg.seed,
                    num_threads=1 if ranks.size > 1 else threads or spare,
                    env_offset=ranks.rank * share * parts + part * share,
                    total_envs=cfg.env.num_envs,
                    rank=ranks.rank,
                ),
            ),
        )
        for part in range(parts)
    ]
    return [RewardWrapper(env, find_reward(cfg.reward)) for env in envs] if cfg.reward and paid is None else envs


def make_learner(cfg: TrainConfig, policy: LearnedPolicy, ranks: Ranks) -> Learner:
    """Make the learner of the config's algorithm, with an empty replay buffer if it needs one."""
    kind: Any = cfg.learner
    if not isinstance(policy, POLICY_CLASSES[kind.policy_form]):
        needed = POLICY_CLASSES[kind.policy_form].__name__
        raise ConfigError(
            f"algo={cfg.algo} needs a {needed}, but the policy is a {type(policy).__name__}: change algo."
        )
    check_recurrent(policy, kind, cfg.algo, cfg.compile)
    own = cfg.algo_settings
    if cfg.off_policy:
        return kind(policy, own, cfg.replay, make_buffer(cfg, ranks, policy, own.gamma), ranks.size)
    stale = {"stale_policy": True} if cfg.collect.mode is CollectMode.pipelined or cfg.actors.listen else {}
    return kind(policy, own, ranks.size, **stale)


def make_buffer(cfg: TrainConfig, ranks: Ranks, policy: LearnedPolicy, gamma: float) -> Replay:
    """Make this rank's share of the replay buffer."""
    keys = [*policy.observes, *(f"next_{key}" for key in policy.observes), *sorted(TAKEN)]
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
