"""The scripted policy `orca`: avoids the velocity obstacles that the drone's sensors show; also a shield (safety filter)."""

from __future__ import annotations

import torch
from torch import Tensor

from fledge.agents.base import Obs
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.orca.kernel import avoid, guard_of, num_planes
from fledge.tasks.navigation.planner.structs import movers_of, seen_of
from fledge.tasks.navigation.sensing.observations import NEAREST, STATE
from fledge.tasks.navigation.steering import Buffers, Steering


class OrcaBuffers(Buffers):
    """Buffers of ORCA for N drones: nearest movers and half-spaces."""

    def __init__(self, env_cfg: NavigationConfig, count: int, device: torch.device) -> None:
        shapes = {"place": (NEAREST, 4), "motion": (NEAREST, 4), "planes": (num_planes(env_cfg), 4)}
        super().__init__(env_cfg, count, device, {name: (torch.float32, shape) for name, shape in shapes.items()})
        t = self.tensors
        self.record(avoid, seen_of(env_cfg, t), movers_of(env_cfg, t), guard_of(env_cfg, t["planes"]))


class OrcaPilot(Steering):
    """Flies to the goal at full speed or, if a velocity obstacle forbids that, with the nearest allowed velocity."""

    def get_name(self) -> str:
        return "orca"

    def make_buffers(self, count: int, device: torch.device) -> OrcaBuffers:
        return OrcaBuffers(self.env_cfg, count, device)

    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Return the actions, [B, 3]."""
        state = obs["state"]
        speed = self.env_cfg.speed_limit * state[:, STATE["horizontal_distance"]].clamp(max=1.0)
        return self.as_action(self.command(obs, state[:, STATE["to_goal"]] * speed))
