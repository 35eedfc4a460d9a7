"""The scripted policy `orca`: velocity obstacles on the drone's sensors; also a shield."""

from __future__ import annotations

import torch
import warp as wp
from torch import Tensor

from fledge.agents.base import Obs
from fledge.envs.launch import Call
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.orca.kernel import avoid
from fledge.tasks.navigation.orca.structs import guard_of, movers_of, num_planes
from fledge.tasks.navigation.planner.structs import scan_of
from fledge.tasks.navigation.sensing.observations import NEAREST, STATE
from fledge.tasks.navigation.steering import Buffers, Steering


class OrcaBuffers(Buffers):
    """Half-spaces of N drones."""

    def __init__(self, env_cfg: NavigationConfig, count: int, device: torch.device) -> None:
        f32 = torch.float32
        own = {
            "acc": (f32, (3,)),
            "place": (f32, (NEAREST, 4)),
            "motion": (f32, (NEAREST, 4)),
            "planes": (f32, (num_planes(env_cfg), 4)),
        }
        super().__init__(env_cfg, count, device, own)
        t = self.tensors
        rows = [wp.from_torch(t[name]) for name in ("state", "dynamic_obstacle", "pose")]
        structs = [scan_of(env_cfg, t["lidar"]), movers_of(t), guard_of(env_cfg, t["planes"])]
        vectors = [wp.from_torch(t[name], dtype=wp.vec3) for name in ("wanted", "acc", "command")]
        self.program = self.launcher.record([Call(avoid, [*rows, *structs, *vectors])], count)


class OrcaPilot(Steering):
    """Flies straight to the goal at full speed, or the nearest command that no velocity obstacle forbids."""

    def get_name(self) -> str:
        return "orca"

    def make_buffers(self, count: int, device: torch.device) -> OrcaBuffers:
        return OrcaBuffers(self.env_cfg, count, device)

    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Action [B, 3]."""
        state = obs["state"]
        speed = self.env_cfg.speed_limit * state[:, STATE["horizontal_distance"]].clamp(max=1.0)
        return self.as_action(self.command(obs, state[:, STATE["to_goal"]] * speed))
