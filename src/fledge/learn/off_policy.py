"""Base of SAC, TD3 and DQN: a replay buffer, gradient steps on its batches, target networks.

Each iteration the learner takes a rollout [T, N] (see `collect.experience`) into its buffer and makes `updates`
gradient steps. Every rank has its own envs and buffer; gradients are averaged over ranks, so all ranks
hold the same weights at all times. A batch is a dict of tensors [B, ...]:

    <obs>, next_<obs>, action, reward, terminated      and discount, if n_step > 1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError, NumericsError
from fledge.core.settings import check_settings, setting
from fledge.learn.base import Learner, finite_report
from fledge.learn.flat import FlatParameters, copy_optimizer

Batch = dict[str, Tensor]


@dataclass
class ReplayConfig:
    size: int = setting(1_000_000, at_least=1, resume="restart")
    """Number of transitions kept, over all ranks; the oldest episodes are dropped first."""
    batch: int = setting(4096, at_least=1)
    """Transitions per gradient step, over all ranks."""
    steps: int = setting(8, at_least=1)
    """Decisions of each env in one iteration, between updates."""
    updates: int = setting(8, at_least=1)
    """Gradient steps per iteration."""
    warm_up: int = setting(100_000, at_least=0)
    """Number of decisions, over all envs, that are collected before learning starts."""
    n_step: int = setting(3, at_least=1, resume="restart")
    """Number of rewards that a target adds up before the target network's value estimate (n-step returns)."""
    layout: str = setting("chunk", choices=("frame", "chunk", "episode"), resume="restart")
    """Unit of compression: each frame, each chunk of frames, or each episode is compressed separately."""
    segment: int = setting(64, at_least=1, resume="restart")
    """Decisions per piece: running episodes are added to the buffer in pieces of this length."""
    prioritized: bool = setting(False, resume="restart")
    """Sample transitions with a larger error more often: prioritized replay (dqn only)."""

    def validate(self) -> None:
        if self.size < self.segment:
            raise ConfigError(
                f"replay.size is {self.size}, but must be at least replay.segment ({self.segment}): raise replay.size "
                "or lower replay.segment."
            )


@dataclass
class OffPolicyConfig:
    """Settings that SAC, TD3 and DQN share."""

    lr: float = setting(5e-4, above=0, at_most=1)
    """Adam's learning rate at the start of training."""
    lr_final_share: float = setting(0.2, at_least=0)
    """Learning rate at the end of training, as a share of `lr`; it changes linearly."""
    gamma: float = setting(0.99, above=0, at_most=1)
    """Discount factor per decision."""
    tau: float = setting(0.005, above=0, at_most=1)
    """Share of the way that target networks move towards the trained networks at each step (Polyak)."""
    max_grad_norm: float = setting(10.0, above=0)
    """Largest norm of a gradient; larger gradients are scaled down to it."""


class Replay(Protocol):
    """Interface of a learner's replay buffer; `DictReplayBuffer` implements it."""

    def add_rollout(self, rollout: Mapping[str, Any]) -> int: ...
    def sample(self, batch_size: int) -> Batch: ...
    def update_priorities(self, index: Tensor, priority: Tensor) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...


class OffPolicy(Learner):
    """Base class of off-policy learners. Subclasses pass networks to `train_module`, and define `step` and `explore`.

    Args:
        policy: The network that acts.
        buffer: Replay buffer of this rank; closed by `close()`.
    """

    names: Sequence[str]  # names of the metrics that `step` returns
    prioritizes: ClassVar[bool] = False
    """Whether `step` sets priorities in the buffer (replay.prioritized)."""

    def __init__(self, policy: BaseAgent, cfg: ReplayConfig, buffer: Replay, gamma: float, ranks: int = 1) -> None:
        check_settings(cfg, "replay.")
        self.policy, self.replay, self.buffer, self.gamma, self.ranks = policy, cfg, buffer, gamma, ranks
        self.flats: dict[str, FlatParameters] = {}
        self.targets: dict[str, FlatParameters] = {}
        self._copies: list[tuple[nn.Module, nn.Module]] = []  # modules and their targets
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.rates: dict[str, tuple[float, float]] = {}  # learning rate at the start and at the end
        self.device = next(policy.parameters()).device
        self.frames = self.steps_done = 0  # frames of this rank alone

    def train_module(
        self, name: str, module: nn.Module, lr: float, final_share: float = 1.0, target: nn.Module | None = None
    ) -> None:
        """Register a module to train with Adam, and its target network `target`, if any.

        The learning rate falls from `lr` to `final_share * lr` during training.
        """
        self.rates[name] = (lr, lr * final_share)
        self.flats[name] = FlatParameters(module)
        self.optimizers[name] = torch.optim.Adam([self.flats[name].values], lr=lr, fused=True)
        if target is not None:
            self.targets[name] = FlatParameters(target)
            target.requires_grad_(False)
            self._copies.append((module, target))

    def begin(self, progress: float = 0.0) -> None:
        """Copy the weights of all networks to their target networks, and set the learning rates."""
        for module, target in self._copies:
            target.load_state_dict(module.state_dict())
        self.schedule(progress)

    def update(self, rollout: TensorDictBase, progress: float = 0.0) -> dict[str, float]:
        """Add a rollout to the buffer and learn from batches of the buffer; return mean losses and diagnostics."""
        self.buffer.add_rollout(rollout)
        self.frames += rollout["reward"].numel()
        self.schedule(progress)
        # count collected frames, whose number is equal on all ranks; the number of frames in the buffers is not
        flown = self.frames // rollout["reward"].shape[1]
        if self.frames * self.ranks < self.replay.warm_up or flown <= self.replay.segment:
            return dict.fromkeys(self.names, 0.0)
        part = max(1, self.replay.batch // self.ranks)
        before, drawn = self.snapshot(), list[Batch]()

        def draw() -> Iterator[Batch]:
            for _ in range(self.replay.updates):
                drawn.append(self.buffer.sample(part))
                yield drawn[-1]

        try:
            return self.learn(draw())
        except NumericsError as error:  # attach what `repeat` needs
            error.cause = {"learner": before, "batches": drawn, "progress": progress}
            raise

    def repeat(self, cause: Mapping[str, Any]) -> dict[str, float]:
        self.restore(cause["learner"])
        self.schedule(float(cause["progress"]))
        return self.learn({k: v.to(self.device) for k, v in batch.items()} for batch in cause["batches"])

    def learn(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Make a gradient step on each batch, and return the mean metrics; raise NumericsError if one is not finite."""
        sums, before = torch.zeros(len(self.names), device=self.device), self.steps_done
        for batch in batches:
            sums += self.step(batch)
            self.steps_done += 1
        return finite_report(self.names, sums / max(self.steps_done - before, 1))

    def schedule(self, progress: float) -> None:
        """Set the learning rates for `progress`, the share of training done, 0 to 1."""
        for name, (first, last) in self.rates.items():
            self.optimizers[name].param_groups[0]["lr"] = first + (last - first) * progress

    def step(self, batch: Batch) -> Tensor:
        """Make one gradient step on a batch, and return the metrics in the order of `names`."""
        raise NotImplementedError

    def explore(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return actions with exploration noise."""
        raise NotImplementedError

    def discount(self, batch: Batch) -> Tensor:
        """Return the factor of the next observation's value in the target, [B]: 0 after termination."""
        alive = (~batch["terminated"]).float()
        return alive * batch["discount"] if "discount" in batch else alive * self.gamma

    def descend(self, name: str, loss: Tensor, max_norm: float) -> None:
        """Make an optimizer step on one module, with gradients averaged over ranks and clipped to `max_norm`."""
        flat = self.flats[name]
        flat.zero_grad()
        loss.backward()
        flat.average_grads(self.ranks)
        flat.clip_grad_norm(max_norm)
        self.optimizers[name].step()

    def follow(self, name: str, tau: float) -> None:
        """Move a target network a share `tau` of the way towards the trained network."""
        self.targets[name].values.data.lerp_(self.flats[name].values.data, tau)

    # ---- state -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state that all ranks share: weights, target networks, optimizers, number of steps."""
        return {
            "weights": {k: v.values.detach().clone() for k, v in self.flats.items()},
            "targets": {k: v.values.detach().clone() for k, v in self.targets.items()},
            "optimizers": {name: copy_optimizer(optimizer) for name, optimizer in self.optimizers.items()},
            "steps_done": self.steps_done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for kind, flats in (("weights", self.flats), ("targets", self.targets)):
            for name, flat in flats.items():
                flat.values.data.copy_(state[kind][name])
        super().load_state_dict(state)
        self.steps_done = int(state["steps_done"])

    def rank_state(self) -> dict[str, Any]:
        return {"buffer": self.buffer.state_dict(), "frames": self.frames}

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        self.buffer.load_state_dict(state["buffer"])
        self.frames = int(state["frames"])

    def close(self) -> None:
        self.buffer.close()


def next_observations(batch: Batch, keys: Sequence[str]) -> dict[str, Tensor]:
    """Return the next observations of a batch, by name without the prefix `next_`."""
    return {key: batch[f"next_{key}"] for key in keys}
