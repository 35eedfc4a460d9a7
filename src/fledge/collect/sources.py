"""What a pipelined collector flies: our own collectors in place, or any other iterable of TensorDicts.

Contract
    `take_weights` and `state_dict` are called while nothing is in the air, `fly` on the background thread, `snapshot` at any
    time on the learner's. After a base has been taken over, it flies a frozen copy of its policy, which changes in
    `take_weights` only.
"""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from fledge.collect.rng_scope import RngScope
from fledge.collect.sync import SyncDataCollector
from fledge.core.errors import ConfigError
from fledge.envs.base import Log

Policy = TypeVar("Policy", bound=nn.Module)


class FrozenPolicy(Generic[Policy]):
    """A copy of a module that holds the weights and buffers which its source had at the last `take`."""

    def __init__(self, source: Policy) -> None:
        self.source = source
        self.module: Policy = copy.deepcopy(source).requires_grad_(False)

    @torch.no_grad()
    def take(self, weights: Weights | None = None) -> None:
        for name, own in _tensors(self.module).items():
            own.copy_((weights or _tensors(self.source))[name])

    def snapshot(self) -> Weights:
        return {name: tensor.detach().clone() for name, tensor in _tensors(self.source).items()}


Weights = dict[str, Tensor]


def _tensors(module: nn.Module) -> Weights:
    named = itertools.chain(
        module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    )
    return dict(named)


class Base(ABC):
    """What a pipelined collector asks of the collector inside it."""

    total_frames: int
    frames_per_batch: int
    resumable: bool
    fps: float
    simulate_s: float
    env_log: Log = {}

    frozen: FrozenPolicy[Any] | None

    def take_weights(self, weights: Weights | None = None) -> None:
        """Fly with the learner's present weights from now on, or with those of a snapshot."""
        if self.frozen is not None:
            self.frozen.take(weights)

    def snapshot(self) -> Weights:
        """A copy of the learner's present weights."""
        return {} if self.frozen is None else self.frozen.snapshot()

    @abstractmethod
    def fly(self) -> TensorDictBase | None:
        """One batch; None when there are no more."""

    @abstractmethod
    def finish(self, data: TensorDictBase) -> TensorDictBase:
        """A batch as iteration hands it out."""

    def weights(self) -> Weights:
        """A copy of the weights being flown."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any], weights: Weights) -> None:
        raise NotImplementedError

    @abstractmethod
    def shutdown(self) -> None: ...


class OwnBase(Base):
    """A SyncDataCollector (or HalvesDataCollector), flown into several rollouts in turn, without a copy."""

    resumable = True

    def __init__(self, collector: SyncDataCollector, seed: int, rollouts: int) -> None:
        self.collector = collector
        self.total_frames, self.frames_per_batch = collector.total_frames, collector.frames_per_batch
        self.frozen: FrozenPolicy[Any] = FrozenPolicy(collector.policy)
        collector.policy = self.frozen.module
        collector.keep(rollouts)
        if collector.generator is None:
            collector.draw_from(torch.Generator(collector.env.device).manual_seed(seed))

    def fly(self) -> TensorDict:
        return self.collector.rollout()

    def finish(self, data: Any) -> TensorDict:
        return self.collector.finish(data)

    @property
    def fps(self) -> float:  # type: ignore[override]
        return self.collector._fps

    @property
    def simulate_s(self) -> float:  # type: ignore[override]
        return self.collector.simulate_s

    @property
    def env_log(self) -> Log:  # type: ignore[override]
        return self.collector.env_log

    def weights(self) -> Weights:
        return {k: v.clone() for k, v in self.frozen.module.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        return self.collector.state_dict()

    def load_state_dict(self, state: dict[str, Any], weights: Weights) -> None:
        self.collector.load_state_dict(state)
        module = self.frozen.module
        module.load_state_dict({name: weights[name] for name in module.state_dict()})  # a snapshot may have more

    def shutdown(self) -> None:
        self.collector.shutdown()


class ForeignBase(Base):
    """Any iterable of TensorDicts. A TorchRL collector's policy is frozen; of others we know no policy."""

    resumable = False
    fps = 0.0
    simulate_s = 0.0
    total_frames = -1  # unknown here: the base ends its own iteration
    frames_per_batch = 0

    def __init__(self, base: Iterable[TensorDictBase], seed: int) -> None:
        same = getattr(base, "return_same_td", None)
        if same:
            raise ConfigError(
                f"base_collector is a {type(base).__name__} with return_same_td=True: it would overwrite the batch that "
                "the learner reads. Make it with return_same_td=False."
            )
        self.base, self.copies = base, same is None
        self.frozen: FrozenPolicy[Any] | None = None
        policy: Any = getattr(base, "_wrapped_policy", None)  # what TorchRL's collector calls
        if isinstance(policy, nn.Module):
            self.frozen = FrozenPolicy(policy)
            base._wrapped_policy = self.frozen.module  # type: ignore[attr-defined]
        device = getattr(base, "policy_device", None) or "cpu"
        self.draws = RngScope(torch.Generator(device).manual_seed(seed))
        self.batches: Iterator[TensorDictBase] | None = None

    def fly(self) -> TensorDictBase | None:
        with self.draws:
            if self.batches is None:
                self.batches = iter(self.base)
            data = next(self.batches, None)
            return data.clone() if self.copies and data is not None else data

    def finish(self, data: TensorDictBase) -> TensorDictBase:
        return data

    def shutdown(self) -> None:
        """Close the iteration, which TorchRL's collectors leave open, and the base if it can be."""
        close = getattr(self.batches, "close", None)
        if close is not None:
            close()
        if hasattr(self.base, "shutdown"):
            self.base.shutdown()
