"""The module `base_env` of midrangeRL: the interface of its envs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Observations = dict[str, dict[str, Tensor]]


class BaseEnv(ABC):
    """Interface of duels in which the caller controls both sides."""

    num_envs: int
    device: torch.device

    @abstractmethod
    def reset(self, env_mask: Tensor | None = None) -> Any:
        """Start new fights in all envs, or only where the mask is true; return the observations of "p1" and "p2"."""

    @abstractmethod
    def step(self, actions: Mapping[str, Any]) -> Any:
        """Advance all fights; return observations, rewards, dones, infos."""

    @abstractmethod
    def get_observations(self) -> Observations:
        """Return the observations of "p1" and "p2"."""

    @abstractmethod
    def compute_rewards(self, done_mask: Tensor, winner_mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return the rewards of "p1" and "p2", each a tensor of shape [num_envs].

        Args:
            done_mask: True for each fight that ended, [num_envs].
            winner_mask: 0 for a draw, 1 or 2 for the winner, [num_envs]; None: the winners that the env determined.
        """

    def close(self) -> None:
        """Stop the env's threads."""
