"""The plan as part of an env: its buffers, which belong to the env's state, and the launches that write it."""

from __future__ import annotations

from typing import Any

import torch
import warp as wp

from fledge.core.specs import TensorSpec
from fledge.envs.launch import Call
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.physics.structs import Obs, Result
from fledge.tasks.navigation.planner.plan_observation import PLAN_WIDTH, Outlook, observe_plan
from fledge.tasks.navigation.planner.structs import Kit, kit_bytes, kit_shapes, scan_of

SCRATCH = ("fresh", "slow", "place", "motion", "planes")  # worked out anew whenever they are read
PLAN = TensorSpec((PLAN_WIDTH,), torch.float32, -1.0, 1.0, doc="what the planner would fly, and what lies ahead of it")


def plan_bytes(world: NavigationConfig) -> int:
    """Memory that the plan of one drone takes."""
    return kit_bytes(world.planner, world) + 4 * (PLAN_WIDTH + 8)


class ObservedPlan:
    """Plans of N drones.

    Args:
        action: [N, 3] what the env flies.
        step: [N] physics steps flown in the episode, as a Warp array.
    """

    def __init__(self, world: NavigationConfig, action: torch.Tensor, step: Any) -> None:
        self.world, self.step = world, step
        count, device = action.shape[0], action.device
        shapes = {
            **kit_shapes(world.planner, world),
            "vel": (torch.float32, (3,)),
            "kept": (torch.float32, (PLAN_WIDTH,)),
        }
        self.tensors = {k: torch.zeros((count, *s), dtype=d, device=device) for k, (d, s) in shapes.items()}
        self.state = {k: v for k, v in self.tensors.items() if k not in SCRATCH}
        """What the next plan depends on."""
        self.pose = torch.zeros((count, 2), device=device)  # where it is not observed
        self.kit = Kit(world.planner, world, self.tensors)
        self.outlook = self._outlook(action)

    def _outlook(self, action: torch.Tensor) -> Outlook:
        o, cfg = Outlook(), self.kit.cfg
        o.fast, o.slow, o.limit = cfg.fast, cfg.slow, self.world.speed_limit
        o.brief_m = cfg.fast * (cfg.brief_s or cfg.horizon_s)
        o.flown, o.kept = wp.from_torch(action), wp.from_torch(self.tensors["kept"])
        o.vel, o.acc = (wp.from_torch(self.tensors[name], dtype=wp.vec3) for name in ("vel", "acc"))
        return o

    def call(self, who: int, result: Result, obs: Obs, lidar: torch.Tensor, out: torch.Tensor) -> Call:
        """The launch that reads an observation and writes the plan of `who` (`outlook`) into `out`."""
        kit, scan = self.kit, scan_of(self.world, lidar, self.world.planner)
        planner = [scan, kit.search, kit.map, kit.ways, kit.movers, kit.step, kit.guard, self.outlook]
        seen = [obs.state, obs.obstacles, obs.pose]
        return Call(observe_plan, [who, result, self.step, *seen, *planner, wp.from_torch(out)])
