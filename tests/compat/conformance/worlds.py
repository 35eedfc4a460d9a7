"""A small navigation env, policy and collector for the documents' snippets."""

from __future__ import annotations

from typing import Any

import torch

import fledge
from fledge.compat.collector import SyncDataCollector
from fledge.compat.ppo import PPO
from fledge.tasks.navigation.config import NavigationConfig

N, T = 8, 32  # training_frame_num of the documents


def make_env(num_envs: int = N, **settings: Any) -> fledge.NavigationEnv:
    cfg = NavigationConfig(num_envs=num_envs, num_maps=1, static_obstacles=50, moving_obstacles=8, **settings)
    return fledge.NavigationEnv(cfg, seed=3)


def make_policy(env: fledge.NavigationEnv, kind: type[PPO] = PPO) -> PPO:
    torch.manual_seed(0)
    return kind({"training_epoch_num": 1, "num_minibatches": 2}, env.observation_spec, env.action_spec, "cpu")


def make_collector(batches: int = -1, **options: Any) -> Any:
    """Return a collector of N envs and T steps; it ends after `batches` rollouts."""
    env = make_env()
    frames = N * T
    total = frames * batches if batches > 0 else -1
    return SyncDataCollector(env, make_policy(env), frames_per_batch=frames, total_frames=total, **options)


def weights(policy: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in policy.parameters()])
