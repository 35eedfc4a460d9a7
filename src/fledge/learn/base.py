"""Learner: what the training loop knows of a learning algorithm.

losses = learner.update(rollout, progress)          one iteration
state: `shared_state` is the same on all ranks, `rank_state` is this rank's own; the policy's weights are neither's
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase


class Learner(ABC):
    """Base of PPO, SAC, TD3 and DQN."""

    optimizers: dict[str, torch.optim.Optimizer]

    @abstractmethod
    def update(self, rollout: TensorDictBase, progress: float = 0.0) -> dict[str, float]:
        """Learn from one rollout; returns mean losses and diagnostics.

        Args:
            progress: Share of training done, 0 to 1; schedules follow it.

        Raises:
            NumericsError: on NaN, with what `repeat` needs as its `cause`.
        """

    def train(self, data: TensorDictBase, progress: float = 0.0) -> dict[str, float]:
        """Another name of `update`."""
        return self.update(data, progress)

    @abstractmethod
    def schedule(self, progress: float) -> None:
        """Set what follows a schedule for a share of training done, 0 to 1."""

    @abstractmethod
    def begin(self, progress: float = 0.0) -> None:
        """Get ready to fly and learn with the weights that the policy has now, after any that were put into it.

        Args:
            progress: Share of training done, 0 to 1.
        """

    @abstractmethod
    def repeat(self, cause: Mapping[str, Any]) -> dict[str, float]:
        """Repeat an update that failed."""

    @abstractmethod
    def shared_state(self) -> dict[str, Any]:
        """What all ranks share besides the policy, not copied."""

    @abstractmethod
    def load_shared_state(self, state: Mapping[str, Any]) -> None: ...

    def rank_state(self) -> dict[str, Any]:
        """What is this rank's own."""
        return {}

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `rank_state` gave."""

    def close(self) -> None:
        """Let go of threads and memory."""
