"""What ORCA's kernels work with, for N drones: how careful they are, and room for the half-spaces."""

from __future__ import annotations

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.orca.kernel import Caution
from fledge.tasks.navigation.planner.search import MOVERS

HORIZON_S = 2.0  # for movers
NEAR_HORIZON_S = 1.0  # for what stands, which does not come nearer by itself
LAG_S = 0.4  # what the drone coasts for: 68 % of a change of speed is done after 0.5 s
SKIN_M = 0.1
HEIGHTS = 2


def num_planes(world: NavigationConfig) -> int:
    """Half-spaces of one drone at most."""
    return MOVERS + world.lidar_azimuths + HEIGHTS


def caution_of(world: NavigationConfig) -> Caution:
    """How careful to be in a world."""
    q = Caution()
    q.body, q.limit = world.collision_radius_m + SKIN_M, world.speed_limit
    q.floor, q.ceiling = world.min_height_m + SKIN_M, world.max_height_m - SKIN_M
    q.step_s, q.horizon, q.near_horizon, q.lag = world.dt_s * world.decimation, HORIZON_S, NEAR_HORIZON_S, LAG_S
    return q
