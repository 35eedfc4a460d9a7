"""The planned policy: a small network that reads what the planner would do, and corrects it.

    mean = the planner's command + correction * tanh(network(features, plan)),  in shares of the speed limit

Before anything is learned it flies as the planner does. `plan` is an observation (`env.plan=true`), so this is an ordinary
policy: whoever flies it elsewhere runs the planner beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.base import Obs
from fledge.agents.distributions import GaussianHead, Params
from fledge.agents.mlp import mlp, value_layer
from fledge.tasks.navigation.networks.feature_policy import (
    READ,
    VELOCITY,
    example_flight,
    navigation_features,
    num_features,
)
from fledge.tasks.navigation.planner.plan_observation import PLAN_WIDTH


class PlannedPolicy(ActorCritic):
    """A shared MLP on hand-made features and the plan.

    Args:
        correction: How far it may go from the planner's command, per axis.
    """

    observes = (*READ, "plan")

    def __init__(
        self,
        lidar_shape: tuple[int, int] = (36, 4),
        hidden: Sequence[int] = (256, 128),
        log_std_max: float = -1.5,
        range_m: float = 4.0,
        correction: float = 0.5,
    ) -> None:
        super().__init__()
        self.range_m, self.lidar_shape, self.correction = range_m, lidar_shape, correction
        self.inputs = num_features(lidar_shape[0] * lidar_shape[1]) + PLAN_WIDTH
        self.trunk = mlp(self.inputs, hidden)
        self.head = GaussianHead(hidden[-1], VELOCITY, 0.0, log_std_max)
        self.critic = value_layer(hidden[-1])

    def encode(self, obs: Obs) -> Tensor:
        return torch.cat([navigation_features(obs, self.range_m), obs["plan"]], dim=-1)

    def forward(self, x: Tensor) -> tuple[Params, Tensor]:
        h = self.trunk(x)
        wish, spread = self.head(h)
        command = x[..., -PLAN_WIDTH : 3 - PLAN_WIDTH]
        return (command + self.correction * torch.tanh(wish), spread), self.critic(h).squeeze(-1)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        plan = torch.rand(batch, PLAN_WIDTH, generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
        return {**example_flight(batch, self.lidar_shape, self.range_m, seed), "plan": plan}
