"""ORCA on the drone's sensors: half-spaces from movers, beams and the heights of the flight. Pilot and shield."""

from __future__ import annotations

import torch
import warp as wp
from torch import Tensor

from fledge.agents.base import Obs
from fledge.envs.launch import Call
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.orca.kernel import avoid
from fledge.tasks.navigation.orca.structs import caution_of, num_planes
from fledge.tasks.navigation.planner.search import MOVERS, Movers
from fledge.tasks.navigation.planner.structs import scan_of
from fledge.tasks.navigation.steering import Desk, Steering


class OrcaDesk(Desk):
    """Half-spaces of N drones."""

    def __init__(self, world: NavigationConfig, count: int, device: torch.device) -> None:
        f32 = torch.float32
        own = {
            "acc": (f32, (3,)),
            "place": (f32, (MOVERS, 4)),
            "motion": (f32, (MOVERS, 4)),
            "planes": (f32, (num_planes(world), 4)),
        }
        super().__init__(world, count, device, own)
        t, movers = self.tensors, Movers()
        movers.place, movers.motion = (wp.from_torch(t[name], dtype=wp.vec4) for name in ("place", "motion"))
        rows = [wp.from_torch(t[name]) for name in ("state", "dynamic_obstacle", "pose")]
        wanted, acc, command = (wp.from_torch(t[name], dtype=wp.vec3) for name in ("wanted", "acc", "command"))
        limits = wp.from_torch(t["planes"], dtype=wp.vec4)
        call = Call(avoid, [*rows, scan_of(world, t["lidar"]), caution_of(world), wanted, acc, movers, limits, command])
        self.program = self.launcher.record([call], count)


class OrcaPilot(Steering):
    """Wants to fly straight to the goal at full speed, and takes the nearest command that no velocity obstacle forbids."""

    def get_name(self) -> str:
        return "orca"

    def make_desk(self, count: int, device: torch.device) -> OrcaDesk:
        return OrcaDesk(self.world, count, device)

    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Action [B, 3]."""
        state = obs["state"]
        wanted = state[:, 0:3] * (self.world.speed_limit * state[:, 3:4].clamp(max=1.0))
        return self.as_action(self.command(obs, wanted))
