"""Actor-critics for PPO: an input encoding without parameters, a network, an action head, a normalised value.

encode(obs)   [B, F] float32: what the network reads; computed once per decision and kept in the rollout
forward(x)    (action parameters, normalised value [B])
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fledge.agents.distributions import GaussianHead, Head, Params
from fledge.agents.value_norm import ValueNorm
from fledge.tasks.navigation.features import navigation_features, num_features

Obs = Mapping[str, Tensor]


class ActorCritic(nn.Module):
    """Base: everything but the network itself."""

    head: Head
    critic: nn.Linear
    inputs: int
    lidar_shape: tuple[int, int]

    def __init__(self) -> None:
        super().__init__()
        self.value_norm = ValueNorm()

    def encode(self, obs: Obs) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> tuple[Params, Tensor]:
        raise NotImplementedError

    def value(self, x: Tensor) -> Tensor:
        """Values in reward units, [B]."""
        return self.value_norm.denormalize(self(x)[1])

    @torch.no_grad()
    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Actions for the env, [B, A]."""
        params, _ = self(self.encode(obs))
        raw = self.head.mean(params) if deterministic else self.head.sample(params)
        return self.head.to_env(raw)


class FeaturePolicy(ActorCritic):
    """A small shared MLP on hand-made features: the `fast` preset's network."""

    def __init__(
        self,
        lidar_shape: tuple[int, int] = (36, 4),
        hidden: tuple[int, ...] = (256, 128),
        actions: int = 3,
        log_std_max: float = -0.5,
        range_m: float = 4.0,
    ) -> None:
        super().__init__()
        self.range_m, self.lidar_shape = range_m, lidar_shape
        self.inputs = num_features(lidar_shape[0] * lidar_shape[1])
        layers: list[nn.Module] = []
        width = self.inputs
        for size in hidden:
            linear = nn.Linear(width, size)
            nn.init.orthogonal_(linear.weight, gain=2**0.5)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU(inplace=True)]
            width = size
        self.trunk = nn.Sequential(*layers)
        self.head = GaussianHead(width, actions, log_std_max=log_std_max)
        self.critic = nn.Linear(width, 1)
        nn.init.orthogonal_(self.critic.weight, gain=1.0)
        nn.init.zeros_(self.critic.bias)

    def encode(self, obs: Obs) -> Tensor:
        return navigation_features(obs, self.range_m)

    def forward(self, x: Tensor) -> tuple[Params, Tensor]:
        h = self.trunk(x)
        return self.head(h), self.critic(h).squeeze(-1)
