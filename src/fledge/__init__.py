"""Fledge teaches policies to fly. Names resolve on first use: importing this package loads neither torch nor Warp."""

from __future__ import annotations

import importlib
import os
from typing import Any

# Threads that wait must not spin: beside a busy neighbour that is 15 times slower. Read when torch loads its OpenMP runtime.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_HOMES = {
    "BaseAgent": "fledge.agents.base",
    "AsyncCheckpointSaver": "fledge.storage",
    "CheckpointHistory": "fledge.storage",
    "CompressedDataCollector": "fledge.collect",
    "CompressedLidarTransform": "fledge.collect",
    "DictReplayBuffer": "fledge.replay",
    "FledgeError": "fledge.core.errors",
    "GymnasiumEnv": "fledge.envs.adapters.gymnasium",
    "GymnasiumVectorEnv": "fledge.envs.adapters.gymnasium",
    "HalvesDataCollector": "fledge.collect",
    "NavigationConfig": "fledge.tasks.navigation.config",
    "NavigationEnv": "fledge.tasks.navigation.env",
    "PPO": "fledge.learn.ppo",
    "PPOConfig": "fledge.learn.ppo",
    "PerformanceMonitor": "fledge.monitor",
    "PipelinedDataCollector": "fledge.collect",
    "RolloutStorage": "fledge.storage",
    "StableBaselinesVecEnv": "fledge.envs.adapters.stable_baselines3",
    "SyncDataCollector": "fledge.collect",
    "TorchRLEnv": "fledge.envs.adapters.torchrl",
    "check_tensor_env": "fledge.envs.checker",
    "Task": "fledge.tasks.base",
    "TensorEnv": "fledge.envs.base",
    "TensorSpec": "fledge.core.specs",
    "TorchEnv": "fledge.envs.torch_env",
    "WarpEnv": "fledge.envs.warp_env",
    "find_task": "fledge.tasks.registry",
    "load_checkpoint": "fledge.storage",
    "load_navrl_checkpoint": "fledge.tasks.navigation.navrl",
    "load_policy": "fledge.evaluate.policies",
    "save_checkpoint": "fledge.storage",
}

__all__ = sorted([*_HOMES, "evaluate"])


def __getattr__(name: str) -> Any:
    if name == "evaluate":  # a room that can be called: a name of its own would be hidden by it
        return importlib.import_module("fledge.evaluate")
    if name not in _HOMES:
        raise AttributeError(f"module 'fledge' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
