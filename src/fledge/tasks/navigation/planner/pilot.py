"""The pilot `planner`: what a drone can do that looks ahead on its own sensors, without learning anything."""

from __future__ import annotations

import torch
from torch import Tensor

from fledge.agents.base import Obs
from fledge.core.settings import check_settings
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.planner.buffers import PlannerDesk
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.steering import Steering


class PlannerPilot(Steering):
    """Tries a few hundred commands on what it remembers of its LiDAR and on the nearest movers, and flies the cheapest.

    Args:
        cfg: What it tries and what that costs.
        world: Where it flies.
        shield: Fly what is wanted of it instead, where that is safe.
    """

    def __init__(
        self, cfg: PlannerConfig | None = None, world: NavigationConfig | None = None, shield: bool = False
    ) -> None:
        super().__init__(world)
        self.cfg, self.shield = cfg or PlannerConfig(), shield
        check_settings(self.cfg)

    def get_name(self) -> str:
        return "planner"

    def make_desk(self, count: int, device: torch.device) -> PlannerDesk:
        return PlannerDesk(self.cfg, self.world, count, device, self.shield)

    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Action [B, 3]."""
        return self.as_action(self.command(obs))
