"""The pipelined collector of `pipelined_collector.py`: `from fledge.compat.pipelined_collector import PipelinedDataCollector`.

    base = SyncDataCollector(env, policy, frames_per_batch=32768, return_same_td=False)
    collector = PipelinedDataCollector(base, device="cuda:0", prefetch_count=2)
    for data in collector:
        policy.train(data)          # the next batches are collected meanwhile
    collector.shutdown()

`fledge.PipelinedDataCollector` says what is guaranteed about lag, random numbers and errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDictBase

from fledge.collect import pipelined
from fledge.collect.sync import SyncDataCollector as NativeCollector
from fledge.compat.collector import ExplorationType, SyncDataCollector, set_exploration_type
from fledge.compat.devices import usable_device
from fledge.compat.ppo import PPO

__all__ = ["ExplorationType", "PipelinedDataCollector", "SyncDataCollector", "set_exploration_type"]


class PipelinedDataCollector(pipelined.PipelinedDataCollector):
    """Collect batches ahead of the learner.

    Args:
        base_collector: A `SyncDataCollector`, a TorchRL collector, or any iterable of TensorDicts. A TorchRL collector needs
            return_same_td=False. A `fledge.compat.ppo.PPO` that it flies corrects for the lag when it learns.
        device: Device of the batches; a CUDA device becomes the CPU, with a warning, where there is none.
        prefetch_count: Batches to collect ahead, which is also how many iterations their weights are old.
    """

    def __init__(
        self,
        base_collector: NativeCollector | Iterable[TensorDictBase],
        device: str | torch.device | None = None,
        prefetch_count: int = 2,
    ) -> None:
        policy: Any = getattr(base_collector, "policy", None)
        super().__init__(base_collector, None if device is None else usable_device(device), prefetch_count)
        if isinstance(policy, PPO):
            policy.learner.stale_policy = True
