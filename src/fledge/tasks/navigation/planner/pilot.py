"""The scripted policy `planner`: looks ahead on the drone's own sensors, without learning; also a shield."""

from __future__ import annotations

import torch
import warp as wp
from torch import Tensor

from fledge.agents.base import Obs
from fledge.core.errors import MemoryBudgetError
from fledge.core.machine import available_bytes
from fledge.core.settings import check_settings
from fledge.envs.launch import Call
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.kernel import plan
from fledge.tasks.navigation.planner.structs import PlannerStructs, buffer_bytes, buffer_shapes, scan_of
from fledge.tasks.navigation.steering import Buffers, Steering


class PlannerBuffers(Buffers):
    """Local maps, cost-to-go and searches of N drones."""

    remembered = ("cells", "centre", "fresh", "acc", "length", "corner", "age")

    def __init__(
        self, cfg: PlannerConfig, env_cfg: NavigationConfig, count: int, device: torch.device, shield: bool = False
    ) -> None:
        check_memory(cfg, env_cfg, count, device)
        super().__init__(env_cfg, count, device, buffer_shapes(cfg, env_cfg))
        t = self.tensors
        self.structs = PlannerStructs(cfg, env_cfg, t)
        rows = [wp.from_torch(t[name]) for name in ("state", "dynamic_obstacle", "pose")]
        scan = scan_of(env_cfg, t["lidar"], cfg)
        vectors = [wp.from_torch(t[name], dtype=wp.vec3) for name in ("wanted", "command")]
        call = Call(plan, [*rows, scan, self.structs.planner, int(shield), *vectors])
        self.program = self.launcher.record([call], count)


def check_memory(cfg: PlannerConfig, env_cfg: NavigationConfig, count: int, device: torch.device) -> None:
    """Raise MemoryBudgetError if the maps of so many drones do not fit."""
    each = buffer_bytes(cfg, env_cfg) + 2000
    need, have = count * each, available_bytes(device)
    if need > 0.8 * have:
        raise MemoryBudgetError(
            f"The planner's maps of {count:,} drones need {need / 2**30:.1f} GiB, but {have / 2**30:.1f} GiB are "
            f"available: lower env.num_envs to at most {int(0.8 * have / each):,}."
        )


class PlannerPilot(Steering):
    """Tries a few hundred commands on what it remembers of its LiDAR and on the nearest movers, and flies the cheapest.

    Args:
        cfg: What it tries and what that costs.
        env_cfg: The env that it flies in.
        shield: Fly the command it is given instead, where that is safe.
    """

    def __init__(
        self, cfg: PlannerConfig | None = None, env_cfg: NavigationConfig | None = None, shield: bool = False
    ) -> None:
        super().__init__(env_cfg)
        self.cfg, self.shield = cfg or PlannerConfig(), shield
        check_settings(self.cfg)

    def get_name(self) -> str:
        return "planner"

    def make_buffers(self, count: int, device: torch.device) -> PlannerBuffers:
        return PlannerBuffers(self.cfg, self.env_cfg, count, device, self.shield)

    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Action [B, 3]."""
        return self.as_action(self.command(obs))
