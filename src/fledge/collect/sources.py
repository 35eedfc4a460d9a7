"""CollectorSource: where a pipelined collector takes batches from, a collector of fledge or any iterable of TensorDicts.

Contract
    `take_weights` and `state_dict` are called while no batch is being collected, `collect` on the background thread, and
    `snapshot` on the learner's thread at any time. A source acts with a frozen copy of its collector's policy, which only
    `take_weights` changes.
"""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from fledge.collect.exploration import RngScope
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError
from fledge.envs.base import Log

Weights = dict[str, Tensor]


class Collected(NamedTuple):
    """A batch, with the decisions per second and the seconds of simulation while it was collected."""

    data: TensorDictBase
    fps: float = 0.0
    simulate_s: float = 0.0
    env_log: Log = {}


class FrozenPolicy:
    """A copy of a module that keeps the parameters and buffers which the module had at the last `take`."""

    def __init__(self, source: nn.Module) -> None:
        self.source = source
        self.module: Any = copy.deepcopy(source).requires_grad_(False)

    @torch.no_grad()
    def take(self, weights: Weights | None = None) -> None:
        for name, own in _tensors(self.module).items():
            own.copy_((weights or _tensors(self.source))[name])

    def snapshot(self) -> Weights:
        return {name: tensor.detach().clone() for name, tensor in _tensors(self.source).items()}


def _tensors(module: nn.Module) -> Weights:
    parameters, buffers = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    return dict(itertools.chain(parameters, buffers))


class CollectorSource(ABC):
    """Base class of the sources of a pipelined collector: it collects batches with a frozen policy."""

    collector: Any
    total_frames: int = -1  # -1: unknown, the source ends by itself
    frames_per_batch: int = 0
    frozen: FrozenPolicy | None = None
    batches: Iterator[TensorDictBase] | None = None

    def take_weights(self, weights: Weights | None = None) -> None:
        """Act from now on with the learner's current weights, or with `weights` if given."""
        if self.frozen is not None:
            self.frozen.take(weights)

    def snapshot(self) -> Weights:
        """Return a copy of the learner's current weights."""
        return {} if self.frozen is None else self.frozen.snapshot()

    @abstractmethod
    def collect(self) -> Collected | None:
        """Collect and return one batch; return None when there are no more."""

    def shutdown(self) -> None:
        """Close the iteration, which TorchRL's collectors leave open, and shut the collector down if it has `shutdown`."""
        for owner, name in ((self.batches, "close"), (self.collector, "shutdown")):
            if hasattr(owner, name):
                getattr(owner, name)()


class SyncSource(CollectorSource):
    """A SyncDataCollector (or HalvesDataCollector) that cycles through several rollout buffers, without a copy."""

    frozen: FrozenPolicy

    def __init__(self, collector: SyncDataCollector, seed: int, rollouts: int) -> None:
        self.collector = collector
        self.total_frames, self.frames_per_batch = collector.total_frames, collector.frames_per_batch
        self.frozen = FrozenPolicy(collector.policy)
        collector.policy = self.frozen.module
        collector.keep(rollouts)
        if collector.generator is None:
            collector.draw_from(torch.Generator(collector.env.device).manual_seed(seed))

    def collect(self) -> Collected:
        data = self.collector.rollout()
        return Collected(data, self.collector._fps, self.collector.simulate_s, self.collector.env_log)

    def weights(self) -> Weights:
        """Return a copy of the weights that the source acts with."""
        return {k: v.clone() for k, v in self.frozen.module.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any], weights: Weights) -> None:
        self.collector.load_state_dict(state)
        module = self.frozen.module
        module.load_state_dict({name: weights[name] for name in module.state_dict()})  # a snapshot may have more


class IterableSource(CollectorSource):
    """Any iterable of TensorDicts. The policy of a TorchRL collector is frozen; other iterables have no known policy."""

    def __init__(self, iterable: Iterable[TensorDictBase], seed: int) -> None:
        same = getattr(iterable, "return_same_td", None)
        if same:
            raise ConfigError(
                f"base_collector is a {type(iterable).__name__} with return_same_td=True, which would overwrite the batch "
                "that the learner reads: use return_same_td=False."
            )
        self.collector, self.copies = iterable, same is None
        policy: Any = getattr(iterable, "_wrapped_policy", None)  # the attribute that a TorchRL collector calls
        if isinstance(policy, nn.Module):
            self.frozen = FrozenPolicy(policy)
            iterable._wrapped_policy = self.frozen.module  # type: ignore[attr-defined]
        device = getattr(iterable, "policy_device", None) or "cpu"
        self.rng_scope = RngScope(torch.Generator(device).manual_seed(seed))

    def collect(self) -> Collected | None:
        with self.rng_scope:
            if self.batches is None:
                self.batches = iter(self.collector)
            data = next(self.batches, None)
            return None if data is None else Collected(data.clone() if self.copies else data)
