"""The planner's desk: buffers of N drones, and the launch that works on them."""

from __future__ import annotations

import torch
import warp as wp

from fledge.core.errors import MemoryBudgetError
from fledge.core.machine import available_bytes
from fledge.envs.launch import Call
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.kernel import plan
from fledge.tasks.navigation.planner.structs import Kit, kit_bytes, kit_shapes, scan_of
from fledge.tasks.navigation.steering import Desk


class PlannerDesk(Desk):
    """Maps, ways and searches of N drones."""

    remembered = ("cells", "centre", "fresh", "acc", "length", "corner", "age")

    def __init__(
        self, cfg: PlannerConfig, world: NavigationConfig, count: int, device: torch.device, shield: bool = False
    ) -> None:
        check_memory(cfg, world, count, device)
        super().__init__(world, count, device, kit_shapes(cfg, world))
        t = self.tensors
        t["fresh"].fill_(True)
        self.kit = kit = Kit(cfg, world, t)
        rows = [wp.from_torch(t[name]) for name in ("state", "dynamic_obstacle", "pose")]
        scan = scan_of(world, t["lidar"], cfg)
        planner = [scan, kit.search, kit.map, kit.ways, kit.movers, kit.step, kit.guard, int(shield)]
        own = [wp.from_torch(t[name], dtype=wp.vec3) for name in ("wanted", "acc", "command")]
        self.program = self.launcher.record([Call(plan, [*rows, *planner, *own])], count)


def check_memory(cfg: PlannerConfig, world: NavigationConfig, count: int, device: torch.device) -> None:
    """MemoryBudgetError where the maps of so many drones do not fit."""
    each = kit_bytes(cfg, world) + 2000
    need, have = count * each, available_bytes(device)
    if need > 0.8 * have:
        raise MemoryBudgetError(
            f"The planner's maps of {count:,} drones need {need / 2**30:.1f} GiB, but {have / 2**30:.1f} GiB are "
            f"available: lower env.num_envs to at most {int(0.8 * have / each):,}."
        )
