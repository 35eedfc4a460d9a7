"""The scripted policy `planner`, also a shield: predicts the results of commands from the drone's own sensor data."""

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
from fledge.tasks.navigation.planner.identify import STATE as RESPONSE_STATE
from fledge.tasks.navigation.planner.kernel import plan
from fledge.tasks.navigation.planner.structs import bind_planner, buffer_bytes, buffer_shapes, seen_of, within_limit
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE
from fledge.tasks.navigation.steering import Buffers, Steering
from fledge.tasks.navigation.tracking.kernel import track_alone
from fledge.tasks.navigation.tracking.structs import SCRATCH, bind_tracker, make_buffers, tracker_bytes

TRACKER = "tracker_"  # prefix of the tracker's buffers among the planner's


class PlannerBuffers(Buffers):
    """Buffers of the planner for N drones: local maps, cost-to-go and searches."""

    remembered: tuple[str, ...] = (
        "cells",
        "centre",
        "fresh",
        "drawn",
        "acc",
        *RESPONSE_STATE,
        "stay_pos",
        "stay",
        "place",
        "motion",
        "unseen",
        "length",
        "corner",
        "age",
    )

    def __init__(
        self, cfg: PlannerConfig, env_cfg: NavigationConfig, count: int, device: torch.device, shield: bool = False
    ) -> None:
        check_memory(cfg, env_cfg, count, device)
        super().__init__(env_cfg, count, device, buffer_shapes(cfg, env_cfg))
        seen, t, before = seen_of(env_cfg, self.tensors, cfg), None, []
        if env_cfg.tracks_movers:
            buffers = make_buffers(env_cfg, count, device)
            self.tensors |= {TRACKER + name: tensor for name, tensor in buffers.items()}
            self.remembered = (*self.remembered, *(TRACKER + name for name in buffers if name not in SCRATCH))
            t, names = bind_tracker(env_cfg, buffers), ("fresh", DYNAMIC_OBSTACLE.name)
            fresh, rows = (wp.from_torch(self.tensors[name]) for name in names)
            before = [Call(track_alone, [fresh, seen, t, rows])]
        self.planner = bind_planner(within_limit(cfg, env_cfg.speed_limit), env_cfg, self.tensors, t, shield)
        self.record(plan, seen, self.planner, int(shield), before=before)


def check_memory(cfg: PlannerConfig, env_cfg: NavigationConfig, count: int, device: torch.device) -> None:
    """Raise MemoryBudgetError if the planner's maps of `count` drones do not fit into memory."""
    each = buffer_bytes(cfg, env_cfg) + tracker_bytes(env_cfg) + 2000
    need, have = count * each, available_bytes(device)
    if need > 0.8 * have:
        raise MemoryBudgetError(
            f"The planner's maps of {count:,} drones need {need / 2**30:.1f} GiB, but {have / 2**30:.1f} GiB are "
            f"available: lower env.num_envs to at most {int(0.8 * have / each):,}."
        )


class PlannerPilot(Steering):
    """Predicts the flight under each of a few hundred commands, among LiDAR hits and movers, and flies the cheapest.

    Args:
        cfg: Candidates and costs.
        env_cfg: Config of the env to fly in.
        shield: Act as a safety filter: keep the command `wanted` if it is safe, else take the nearest safe command.
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
        """Return the actions, [B, 3]."""
        return self.as_action(self.command(obs))
