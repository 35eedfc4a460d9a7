"""PPOWithCompression: PPO that decodes compressed batches one minibatch at a time."""

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
    """PPO that keeps `CompressedBatch`es compressed: only one minibatch of the network's input is in memory at a time.

    The results equal those of `PPO` bit for bit; plain rollouts work too. It saves memory but takes more time: a minibatch
    has transitions from all over the batch, so nearly the whole batch is decoded for each minibatch. `PPO` decodes the
    batch once per update.
    """

    def update(self, rollout: TensorDictBase | CompressedBatch, progress: float = 0.0) -> dict[str, float]:
        """Update the policy from one rollout; return mean losses and diagnostics."""
        if not isinstance(rollout, CompressedBatch):
            return super().update(rollout, progress)
        lazy: Any = _LazyBatch(rollout)
        try:
            return super().update(lazy, progress)
        except NumericsError as error:
            if error.cause is not None:  # the file that repeats the update holds plain tensors
                entries = error.cause["rollout"].items()
                error.cause["rollout"] = {k: v.packed.unpack() if isinstance(v, LazyRows) else v for k, v in entries}
            raise


class _LazyBatch:
    """A compressed batch that returns its compressed entries as `LazyRows`."""

    def __init__(self, batch: CompressedBatch) -> None:
        self.batch = batch

    def keys(self) -> set[str]:
        return {*self.batch.packed, *self.batch.rest.keys()}

    def __getitem__(self, key: str) -> Any:
        return LazyRows(self.batch.packed[key]) if key in self.batch.packed else self.batch.rest[key]


class LazyRows:
    """Compressed input of PPO, [T, N, ...] or flat [T * N, ...], with the tensor operations that PPO calls."""

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
        """Decode the whole batch and index it; policies that normalise their input need this once per update."""
        whole = self.packed.unpack()
        return (whole.flatten(0, 1) if self.flat else whole)[place]
