"""Fledge teaches policies to fly.

    run = fledge.train("navigation", total_frames=1_000_000)     train
    fledge.evaluate([run, "straight"]).table()                   compare on held-out episodes
    policy = fledge.load_policy("fledge-nav")                    use a policy: policy.act(obs)
    env = fledge.make_env("navigation", num_envs=64)             step envs yourself

Names resolve on first use: importing this package loads neither torch nor Warp. `__init__.pyi` lists them for editors and
type checkers.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

# Threads that wait must not spin: beside a busy neighbour that is 15 times slower. Read when torch loads its OpenMP runtime.
_TAMED = "OMP_WAIT_POLICY" not in os.environ
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# OpenMP takes "2,1", one number for each level; numexpr, which blosc2 loads, fails on that and on any text but a number.
_WISH = os.environ.get("OMP_NUM_THREADS", "1")
if not _WISH.isdecimal():
    _FIRST = _WISH.split(",")[0].strip()
    os.environ.setdefault("NUMEXPR_NUM_THREADS", _FIRST if _FIRST.isdecimal() else "1")

_HOMES = {
    "ActorCritic": "fledge.agents.actor_critic",
    "AircombatConfig": "fledge.tasks.aircombat.config",
    "AircombatEnv": "fledge.tasks.aircombat.env",
    "AsyncCheckpointSaver": "fledge.storage",
    "BaseAgent": "fledge.agents.base",
    "BaseReward": "fledge.tasks.aircombat.rewards",
    "CheckpointHistory": "fledge.storage",
    "CompressedDataCollector": "fledge.collect",
    "CompressedLidarTransform": "fledge.compat.lidar_transform",
    "DictReplayBuffer": "fledge.replay",
    "Evaluation": "fledge.evaluation.results",
    "ExplorationType": "fledge.collect",
    "FeatureActor": "fledge.tasks.navigation.networks.feature_policy",
    "FeaturePolicy": "fledge.tasks.navigation.networks.feature_policy",
    "FledgeError": "fledge.core.errors",
    "GapPilot": "fledge.tasks.navigation.pilots",
    "GridQ": "fledge.tasks.navigation.networks.grid_q",
    "GymWrapper": "fledge.compat.gym_wrapper",
    "GymnasiumEnv": "fledge.envs.adapters.gymnasium",
    "GymnasiumVectorEnv": "fledge.envs.adapters.gymnasium",
    "HalvesDataCollector": "fledge.collect",
    "KeySpec": "fledge.replay",
    "LoadedPolicy": "fledge.tasks.loaded_policy",
    "MLPActor": "fledge.agents.squashed",
    "MLPActorCritic": "fledge.agents.actor_critic",
    "MLPQNetwork": "fledge.agents.q_network",
    "NavRLActorCritic": "fledge.tasks.navigation.networks.navrl",
    "NavRLPolicy": "fledge.tasks.navigation.networks.navrl",
    "NavigationConfig": "fledge.tasks.navigation.config",
    "NavigationEnv": "fledge.tasks.navigation.env",
    "OpponentWrapper": "fledge.envs.opponent_wrapper",
    "PPO": "fledge.learn.ppo",
    "PPOConfig": "fledge.learn.ppo",
    "PPOWithCompression": "fledge.compat.compressed_learner",
    "PerformanceMonitor": "fledge.monitor",
    "PettingZooEnv": "fledge.envs.adapters.pettingzoo",
    "PipelinedDataCollector": "fledge.collect",
    "PlaceholderAgent": "fledge.compat.base_agent",
    "PrefixSum": "fledge.replay",
    "QNetwork": "fledge.agents.q_network",
    "Recording": "fledge.storage",
    "RecordingWriter": "fledge.storage",
    "RewardWrapper": "fledge.envs.reward_wrapper",
    "RolloutStorage": "fledge.storage",
    "Run": "fledge.training.saved_run",
    "SquashedActor": "fledge.agents.squashed",
    "StableBaselinesVecEnv": "fledge.envs.adapters.stable_baselines3",
    "StraightPilot": "fledge.tasks.navigation.pilots",
    "SyncDataCollector": "fledge.collect",
    "Table": "fledge.core.table",
    "Task": "fledge.tasks.base",
    "TensorEnv": "fledge.envs.base",
    "TensorSpec": "fledge.core.specs",
    "TorchEnv": "fledge.envs.torch_env",
    "TorchRLEnv": "fledge.envs.adapters.torchrl",
    "WarpEnv": "fledge.envs.warp_env",
    "World": "fledge.tasks.navigation.worlds.world",
    "ZeroReward": "fledge.tasks.aircombat.rewards",
    "benchmark": "fledge.evaluation.api",
    "check_tensor_env": "fledge.envs.checker",
    "compress_image": "fledge.replay",
    "compress_image_seq": "fledge.replay",
    "compress_rollout": "fledge.compat.rollouts",
    "create_agent": "fledge.compat.base_agent",
    "create_reward": "fledge.tasks.aircombat.rewards",
    "decompress_image": "fledge.replay",
    "decompress_image_seq": "fledge.replay",
    "decompress_minibatch": "fledge.compat.rollouts",
    "decompress_rollout": "fledge.compat.rollouts",
    "decompress_single_gridmap": "fledge.compat.rollouts",
    "deploy": "fledge.deployment.api",
    "evaluate": "fledge.evaluation.evaluate",
    "export": "fledge.evaluation.api",
    "find_task": "fledge.tasks.registry",
    "format_checkpoint_name": "fledge.monitor",
    "get_model_size": "fledge.monitor",
    "learn_on": "fledge.training.learn_on.api",
    "load_checkpoint": "fledge.compat.async_checkpoint",
    "load_navrl_checkpoint": "fledge.tasks.navigation.networks.navrl",
    "load_policy": "fledge.tasks.policy_loader",
    "load_rollout_compressed": "fledge.compat.rollouts",
    "load_world": "fledge.tasks.navigation.worlds.world",
    "make_env": "fledge.tasks.envs",
    "make_world": "fledge.tasks.navigation.worlds.world",
    "print_model_info": "fledge.monitor",
    "reached": "fledge.envs.reward_wrapper",
    "read_text": "fledge.replay",
    "receive": "fledge.storage",
    "report": "fledge.evaluation.api",
    "save_checkpoint": "fledge.storage",
    "save_rollout_compressed": "fledge.compat.rollouts",
    "save_world": "fledge.tasks.navigation.worlds.world",
    "send": "fledge.storage",
    "set_exploration_type": "fledge.collect",
    "train": "fledge.training.api",
    "tune": "fledge.tuning.api",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fledge")
    if name not in _HOMES:
        raise AttributeError(f"module 'fledge' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
