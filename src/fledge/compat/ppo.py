"""PPOWithCompression: PPO that learns from compressed batches without unfolding them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from fledge.collect.compressed import CompressedBatch
from fledge.collect.packed import PackedTensor
from fledge.core.errors import NumericsError
from fledge.learn.ppo import PPO


class PPOWithCompression(PPO):
    """PPO over `CompressedBatch`es: of what the network read, one minibatch at a time is in memory.

    It learns the same as `PPO`, bit for bit; plain rollouts are taken too. What is saved in memory is paid in time: every
    minibatch, drawn from all over the batch, decodes nearly all of it again, where `PPO` decodes it once per update.
    """

    def update(self, rollout: TensorDictBase | CompressedBatch, progress: float = 0.0) -> dict[str, float]:
        """Learn from one rollout; returns mean losses and diagnostics."""
        if not isinstance(rollout, CompressedBatch):
            return super().update(rollout, progress)
        lazy: Any = _Lazily(rollout)
        try:
            return super().update(lazy, progress)
        except NumericsError as error:
            if error.cause is not None:  # what is written to repeat the update is written whole
                error.cause["rollout"] = {name: rollout[name] for name in error.cause["rollout"]}
            raise


class _Lazily:
    """A compressed batch whose compressed entries stay so until rows of them are asked for."""

    def __init__(self, batch: CompressedBatch) -> None:
        self.batch = batch

    def __getitem__(self, key: str) -> Any:
        return LazyRows(self.batch.packed[key]) if key in self.batch.packed else self.batch.rest[key]


class LazyRows:
    """As much of a tensor [T, N, ...], or flat [T * N, ...], as PPO asks of its inputs: rows by number, and steps in turn."""

    def __init__(self, packed: PackedTensor, flat: bool = False) -> None:
        self.packed, self.flat = packed, flat

    def flatten(self, first: int, last: int) -> LazyRows:
        assert (first, last) == (0, 1)
        return LazyRows(self.packed, flat=True)

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        assert dim == 0
        assert self.flat
        return self.packed.rows(index)

    def __iter__(self) -> Iterator[Tensor]:
        envs = torch.arange(self.packed.num_envs)
        for t in range(self.packed.shape[self.packed.time_dim]):
            yield self.packed.rows(t * self.packed.num_envs + envs)

    def __len__(self) -> int:
        return self.packed.shape[0] * self.packed.shape[1] if self.flat else self.packed.shape[0]

    def __getitem__(self, place: Any) -> Tensor:
        """All of it, decoded: for policies that take note of what they read, once per update."""
        whole = self.packed.unpack()
        return (whole.flatten(0, 1) if self.flat else whole)[place]
