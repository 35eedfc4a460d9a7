"""The plan as part of an env: its buffers, which belong to the env's state, and the launches that write it."""

from __future__ import annotations

from typing import Any

import torch
import warp as wp

from fledge.envs.launch import Call
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.physics.structs import Result
from fledge.tasks.navigation.planner.plan_observation import PLAN_WIDTH, PlanBuffers, observe_plan
from fledge.tasks.navigation.planner.structs import PlannerStructs, buffer_bytes, buffer_shapes, scan_of
from fledge.tasks.navigation.sensing.observations import POSE

SCRATCH = ("fresh", "slow", "place", "motion", "planes")  # worked out anew whenever they are read


def plan_bytes(env_cfg: NavigationConfig) -> int:
    """Return the memory of one drone's plan."""
    return buffer_bytes(env_cfg.planner, env_cfg) + 4 * (PLAN_WIDTH + 8)


class ObservedPlan:
    """Plans of N drones.

    Args:
        action: [N, 3] what the env flies.
        step: [N] physics steps flown in the episode, as a Warp array.
    """

    def __init__(self, env_cfg: NavigationConfig, action: torch.Tensor, step: Any) -> None:
        self.env_cfg, self.step = env_cfg, step
        count, device = action.shape[0], action.device
        shapes = {
            **buffer_shapes(env_cfg.planner, env_cfg),
            "vel": (torch.float32, (3,)),
            "kept": (torch.float32, (PLAN_WIDTH,)),
        }
        self.tensors = {k: torch.zeros((count, *s), dtype=d, device=device) for k, (d, s) in shapes.items()}
        self.state = {k: v for k, v in self.tensors.items() if k not in SCRATCH}
        """Buffers that the next plan depends on."""
        self.pose = torch.zeros((count, POSE.width), device=device)  # where `pose` is not observed
        self.structs = PlannerStructs(env_cfg.planner, env_cfg, self.tensors)
        self.buffers = self._bind(action)

    def _bind(self, action: torch.Tensor) -> PlanBuffers:
        o, cfg = PlanBuffers(), self.structs.cfg
        o.fast, o.slow, o.limit = cfg.fast, cfg.slow, self.env_cfg.speed_limit
        o.brief_m = cfg.fast * (cfg.brief_s or cfg.horizon_s)
        o.flown, o.kept = wp.from_torch(action), wp.from_torch(self.tensors["kept"])
        o.vel = wp.from_torch(self.tensors["vel"], dtype=wp.vec3)
        return o

    def call(self, who: int, result: Result, obs: Any, lidar: torch.Tensor, out: torch.Tensor) -> Call:
        """Return the launch that reads an observation and writes the plan of `who` (`plan_observation`) into `out`."""
        scan = scan_of(self.env_cfg, lidar, self.env_cfg.planner)
        seen = [obs.state, obs.dynamic_obstacle, obs.pose]
        planner = [scan, self.structs.planner, self.buffers]
        return Call(observe_plan, [who, result, self.step, *seen, *planner, wp.from_torch(out)])
