"""The planned policy: a small network that reads what the planner would do, and corrects it.

    mean = the planner's command + correction * tanh(network(features, plan)),  in shares of the speed limit

Before training it flies as the planner does. `plan` is an observation (`env.plan=true`): on a robot, run the planner beside
the policy (`PlanReader`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fledge.agents.base import Obs
from fledge.agents.distributions import Params
from fledge.tasks.navigation.networks.feature_policy import READ, FeaturePolicy
from fledge.tasks.navigation.sensing.observations import PLAN


class PlannedPolicy(FeaturePolicy):
    """A shared MLP on hand-made features and the plan.

    Args:
        correction: How far it may go from the planner's command, per axis.
    """

    observes = (*READ, PLAN.name)

    def __init__(
        self,
        lidar_shape: tuple[int, int] = (36, 4),
        hidden: Sequence[int] = (256, 128),
        log_std_max: float = -1.5,
        range_m: float = 4.0,
        correction: float = 0.5,
    ) -> None:
        super().__init__(lidar_shape, hidden, log_std_max, range_m, more_inputs=PLAN.width, forward=0.0)
        self.correction = correction

    def encode(self, obs: Obs) -> Tensor:
        return torch.cat([super().encode(obs), obs["plan"]], dim=-1)

    def forward(self, x: Tensor) -> tuple[Params, Tensor]:
        h = self.trunk(x)
        wish, spread = self.head(h)
        command = x[..., -PLAN.width :][..., PLAN["command"]]
        return (command + self.correction * torch.tanh(wish), spread), self.critic(h).squeeze(-1)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        plan = torch.rand(batch, PLAN.width, generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
        return {**super().example_inputs(batch, seed), "plan": plan}
