"""The module `pipelined_collector` of NavRL's add-on: collect batches while the policy learns.

    base = SyncDataCollector(env, policy, frames_per_batch=32768, return_same_td=False)
    collector = PipelinedDataCollector(base, device="cuda:0", prefetch_count=2)
    for data in collector:
        policy.train(data)          # the next batches are collected meanwhile
    collector.shutdown()

`fledge.collect.pipelined` explains what is guaranteed about lag, random numbers and errors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
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
            return_same_td=False. `fledge.compat.ppo.PPO` corrects for the older weights when it learns.
        device: Device of the batches; if a CUDA device does not exist, the CPU is used and a warning printed.
        prefetch_count: Batches to collect ahead; the weights of a batch are this many iterations old.
    """

    def __init__(
        self,
        base_collector: NativeCollector | Iterable[TensorDictBase],
        device: str | torch.device | None = None,
        prefetch_count: int = 2,
    ) -> None:
        policy: Any = getattr(base_collector, "policy", None)
        super().__init__(base_collector, usable_device(device), prefetch_count)
        if isinstance(policy, PPO):
            policy.learner.stale_policy = True
        self.stop_flag = False
        """Set it to end the iteration after the present batch."""
        self.data_queue = ReadyBatches(self)

    def __iter__(self) -> Iterator[TensorDictBase]:
        for data in super().__iter__():
            yield data
            if self.stop_flag:
                return

    def _collect_worker(self) -> None:
        """Start collecting in the background; iterating starts it too, so a call is optional."""
        while len(self._pending) < self.prefetch_count:
            if 0 <= self.total_frames <= self._frames + len(self._pending) * self.frames_per_batch:
                return
            self._begin(None)

    @property
    def collector_thread(self) -> threading.Thread | None:
        """Thread that collects; None before the first batch begins."""
        return next(iter(self._pool._threads), None)

    def shutdown(self) -> None:
        """Wait for the running batch, stop the thread and shut the base collector down. May be called again."""
        self.stop_flag = True
        super().shutdown()


class ReadyBatches:
    """The add-on's `data_queue`: `qsize`, `empty` and `full` tell how many collected batches are ready."""

    def __init__(self, collector: PipelinedDataCollector) -> None:
        self._collector = collector
        self.maxsize = collector.prefetch_count

    def qsize(self) -> int:
        """Return the number of batches that were collected but not yet returned."""
        return sum(batch.future.done() for batch in list(self._collector._pending))

    def empty(self) -> bool:
        return self.qsize() == 0

    def full(self) -> bool:
        return self.qsize() >= self.maxsize
