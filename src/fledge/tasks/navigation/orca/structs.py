"""Warp structs of ORCA for N drones: its settings, and the buffers of half-spaces and movers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import warp as wp

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.orca.kernel import Caution, Guard
from fledge.tasks.navigation.planner.readings import Movers
from fledge.tasks.navigation.sensing.observations import NEAREST

HORIZON_S = 2.0  # for movers
NEAR_HORIZON_S = 1.0  # for what stands still
LAG_S = 0.4  # the drone coasts this long: 68 % of a change of speed is done after 0.5 s
SKIN_M = 0.1
HEIGHTS = 2


def num_planes(env_cfg: NavigationConfig) -> int:
    """Return the largest number of half-spaces of one drone."""
    return NEAREST + env_cfg.lidar_azimuths + HEIGHTS


def movers_of(tensors: Mapping[str, torch.Tensor]) -> Movers:
    """Return the struct over the buffers `place` and `motion`, [N, NEAREST, 4]."""
    movers = Movers()
    movers.place, movers.motion = (wp.from_torch(tensors[name], dtype=wp.vec4) for name in ("place", "motion"))
    return movers


def guard_of(env_cfg: NavigationConfig, planes: torch.Tensor, on: bool = True) -> Guard:
    """Return ORCA's settings in an env, over a buffer of half-spaces [N, num_planes, 4], which is not read when off."""
    guard, q = Guard(), Caution()
    q.body, q.limit = env_cfg.collision_radius_m + SKIN_M, env_cfg.speed_limit
    q.floor, q.ceiling = env_cfg.min_height_m + SKIN_M, env_cfg.max_height_m - SKIN_M
    q.step_s = env_cfg.dt_s * env_cfg.decimation
    q.horizon, q.near_horizon, q.lag = HORIZON_S, NEAR_HORIZON_S, LAG_S
    guard.on, guard.caution = int(on), q
    if on:
        guard.planes = wp.from_torch(planes, dtype=wp.vec4)
    return guard
