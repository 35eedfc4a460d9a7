"""The module `base_reward` of midrangeRL: rewards that work without `done` and `info`, and Fledge's rewards by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fledge.compat.devices import usable_device
from fledge.tasks.aircombat import rewards
from fledge.tasks.aircombat.physics.structs import Outcome
from fledge.tasks.aircombat.rewards import Obs

Info = Mapping[str, Any]


class BaseReward(rewards.BaseReward):
    """Base class of rewards. Subclasses implement `compute`.

    Args:
        device: Device of the rewards; if a CUDA device does not exist, the CPU is used and a warning printed.
    """

    def __init__(self, device: str | torch.device = "auto") -> None:
        super().__init__(usable_device(device))

    def compute(
        self, obs_before: Obs, obs_after: Obs, action: Any, done: Tensor | None = None, info: Info | None = None
    ) -> Tensor:
        """Return the reward of each duel, [num_envs]."""
        raise NotImplementedError


class ZeroReward(BaseReward):
    """Reward that is always 0."""

    looks_back = False

    def compute(
        self, obs_before: Obs, obs_after: Obs, action: Any, done: Tensor | None = None, info: Info | None = None
    ) -> Tensor:
        return torch.zeros(len(next(iter(obs_after.values()))), device=self.device)


class RewardAdapter(BaseReward):
    """Adapt one of Fledge's rewards: without `done` or `info`, assume that no fight ended and no shot was fired.

    Args:
        reward: The reward to adapt.
    """

    def __init__(self, reward: rewards.BaseReward, device: str | torch.device = "cpu") -> None:
        super().__init__(device)
        self.reward = reward.to(self.device)
        self.looks_back = reward.looks_back

    def compute(
        self, obs_before: Obs, obs_after: Obs, action: Any, done: Tensor | None = None, info: Info | None = None
    ) -> Tensor:
        first = next(iter(obs_after.values()))
        none = torch.zeros(len(first), dtype=torch.bool, device=first.device)
        running = torch.full_like(none, int(Outcome.RUNNING), dtype=torch.uint8)
        quiet = {"outcome": running, "terminated": none, "shots": torch.zeros_like(none, dtype=torch.int32)}
        return self.reward.compute(
            obs_before, obs_after, action, none if done is None else done, quiet if info is None else info
        )

    def reset(self, env_mask: Tensor | None = None) -> None:
        self.reward.reset(env_mask)

    def to(self, device: str | torch.device) -> RewardAdapter:
        super().to(device)
        self.reward = self.reward.to(device)
        return self

    def get_name(self) -> str:
        return self.reward.get_name()


def create_reward(reward_type: str = "zero", device: str | torch.device = "cpu", **options: Any) -> BaseReward:
    """Create a reward by name: `zero`, one of Fledge's rewards, or a weighted sum such as `win_loss+0.5*shaped`."""
    device = usable_device(device)
    if reward_type == "zero":
        return ZeroReward(device)
    return RewardAdapter(rewards.create_reward(reward_type, device, **options), device)
