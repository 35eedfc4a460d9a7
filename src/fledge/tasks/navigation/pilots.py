"""Scripted policies of navigation, for comparison with learned policies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from fledge.agents.base import BaseAgent, Obs
from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config
from fledge.tasks.navigation.orca.pilot import OrcaPilot
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.pilot import PlannerPilot
from fledge.tasks.navigation.sensing.observations import STATE


class StraightPilot(BaseAgent):
    """Flies straight to the goal at full speed and avoids nothing."""

    observes = ("state",)

    def get_name(self) -> str:
        return "straight"

    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Return the actions, [B, 3]."""
        return towards(obs["state"][:, STATE["to_goal"]], obs["state"])


class GapPilot(BaseAgent):
    """Flies in the most open LiDAR direction near the goal's direction; ignores the velocities of moving obstacles."""

    observes = ("state", "lidar")

    def __init__(self, range_m: float = 4.0) -> None:
        super().__init__()
        self.range_m = range_m

    def get_name(self) -> str:
        return "gap"

    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Return the actions, [B, 3]."""
        state, lidar = obs["state"], obs["lidar"].squeeze(1)
        azimuths = lidar.shape[1]
        angles = torch.arange(azimuths, device=lidar.device) * (2 * math.pi / azimuths)
        free = self.range_m - lidar[..., 1:3].amax(-1) if lidar.shape[2] > 2 else self.range_m - lidar.amax(-1)
        # a direction is as free as the least free of its neighbours
        around = torch.stack([free.roll(k, 1) for k in (-2, -1, 0, 1, 2)]).amin(0)
        goal_x, goal_y, goal_z = state[:, STATE["to_goal"]].unbind(-1)
        goal_angle = torch.atan2(goal_y, goal_x)
        offset = angles[None] - goal_angle[:, None]
        score = around.clamp(max=2.5) / 2.5 * 2.0 + offset.cos()
        best = angles[score.argmax(1)]
        heading = torch.stack([best.cos(), best.sin(), goal_z], dim=-1)
        speed = (around.amax(1) / 2.0).clamp(0.3, 1.0)
        return towards(heading * speed[:, None], state)


def towards(direction: Tensor, state: Tensor) -> Tensor:
    """Return the actions [B, 3] that fly along a direction at full speed, and slow down in the last metre to the goal."""
    distance = state[:, STATE["horizontal_distance"]]
    return (direction * distance.clamp(max=1.0)).clamp(-1, 1) * 0.5 + 0.5


def make_planner(**options: float) -> PlannerPilot:
    """Return the planner with the given settings, as in the policy name `planner(horizon_s=2, fast=1.5)`.

    Raises:
        ConfigError: if a setting is unknown, or a value is not allowed.
    """
    known = [field.name for field in dataclasses.fields(PlannerConfig)]
    for name in options:
        if name not in known:
            raise ConfigError(f"planner({name}=...) has no such setting. Settings of planner(...): {', '.join(known)}.")
    return PlannerPilot(build_config(PlannerConfig, [], [f"{key}={value}" for key, value in options.items()]))


PILOTS: dict[str, Callable[..., BaseAgent]] = {
    "straight": StraightPilot,
    "gap": GapPilot,
    "planner": make_planner,
    "orca": OrcaPilot,
}
