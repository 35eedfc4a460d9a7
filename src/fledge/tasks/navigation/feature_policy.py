"""Small networks on hand-made features: the actor-critic of the `fast` preset, and the actor of SAC and TD3."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.base import Obs
from fledge.agents.distributions import GaussianHead, Params
from fledge.agents.mlp import mlp, value_layer
from fledge.agents.squashed import SquashedActor
from fledge.core.specs import TensorSpec
from fledge.tasks.navigation.features import navigation_features, num_features

VELOCITY = TensorSpec((3,), torch.float32, 0.0, 1.0, doc="velocity in the goal frame, 0.5 = at rest")
READ = ("state", "lidar", "dynamic_obstacle")
FORWARD = 0.6  # an untrained policy flies towards the goal at this share of full speed
LOG_STD_RANGE = (-5.0, 0.5)


class FeaturePolicy(ActorCritic):
    """A small shared MLP on hand-made features: the `fast` preset's network."""

    observes = READ

    def __init__(
        self,
        lidar_shape: tuple[int, int] = (36, 4),
        hidden: Sequence[int] = (256, 128),
        log_std_max: float = -0.5,
        range_m: float = 4.0,
    ) -> None:
        super().__init__()
        self.range_m, self.lidar_shape = range_m, lidar_shape
        self.inputs = num_features(lidar_shape[0] * lidar_shape[1])
        self.trunk = mlp(self.inputs, hidden)
        self.head = GaussianHead(hidden[-1], VELOCITY, FORWARD, log_std_max)
        self.critic = value_layer(hidden[-1])

    def encode(self, obs: Obs) -> Tensor:
        return navigation_features(obs, self.range_m)

    def forward(self, x: Tensor) -> tuple[Params, Tensor]:
        h = self.trunk(x)
        return self.head(h), self.critic(h).squeeze(-1)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        return example_flight(batch, self.lidar_shape, self.range_m, seed)


class FeatureActor(SquashedActor):
    """The squashed actor of SAC and TD3 on the same features."""

    observes = READ

    def __init__(
        self, lidar_shape: tuple[int, int] = (36, 4), hidden: Sequence[int] = (256, 128), range_m: float = 4.0
    ) -> None:
        inputs = num_features(lidar_shape[0] * lidar_shape[1])
        super().__init__(inputs, VELOCITY, hidden, FORWARD, LOG_STD_RANGE)
        self.range_m, self.lidar_shape = range_m, lidar_shape

    def encode(self, obs: Obs) -> Tensor:
        return navigation_features(obs, self.range_m)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        return example_flight(batch, self.lidar_shape, self.range_m, seed)


def example_flight(batch: int, lidar_shape: tuple[int, int], range_m: float, seed: int) -> dict[str, Tensor]:
    """Random observations in the ranges a drone meets."""
    g = torch.Generator().manual_seed(seed)
    obstacles = torch.randn(batch, 1, 5, 10, generator=g)
    obstacles[..., 3] = obstacles[..., 3].abs() * (torch.rand(batch, 1, 5, generator=g) > 0.3)
    obstacles[..., 8] = torch.randint(0, 4, (batch, 1, 5), generator=g).float()
    obstacles[..., 9] = torch.randint(0, 2, (batch, 1, 5), generator=g).float()
    return {
        "state": torch.randn(batch, 8, generator=g),
        "lidar": (torch.rand(batch, 1, *lidar_shape, generator=g) * 1.5 * range_m - 2).clamp(0, range_m - 0.1),
        "dynamic_obstacle": obstacles,
    }
