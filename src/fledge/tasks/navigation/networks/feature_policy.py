"""Small networks on hand-made features: actor-critics of the presets `fast` and `planned`, and the actor of SAC and TD3.

The features are computed from NavRL's observations alone:

9    unit vector to goal (3), distance / 20 m, distance / LiDAR range (at most 1), height to goal, velocity (3)
H*V  LiDAR beams as log(range / distance) / log(range / radius): 0 free, 1 at the drone's surface
5*14 per obstacle: offset (3), relative velocity (3), gap, closeness, time and miss distance of the closest
     approach, vertical clearance, width, box or cylinder, present
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.base import Obs
from fledge.agents.distributions import GaussianHead, Params
from fledge.agents.mlp import mlp, value_layer
from fledge.agents.observations import Flattener
from fledge.agents.squashed import SquashedActor
from fledge.core.specs import TensorSpec
from fledge.tasks.navigation.physics.shapes import BOX_M, WIDTHS
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE, LIDAR, NEAREST, PLAN, STATE

VELOCITY = TensorSpec((3,), torch.float32, 0.0, 1.0, doc="velocity in the goal frame, 0.5 = at rest")
READ: tuple[str, ...] = (STATE.name, LIDAR.name, DYNAMIC_OBSTACLE.name)
FORWARD = 0.6  # an untrained policy flies towards the goal at this share of full speed
LOG_STD_RANGE = (-5.0, 0.5)
STATE_FEATURES = 9
OBSTACLE_FEATURES = 14
RADIUS_M = 0.3
MIN_GAP_M = 0.05


@dataclass(frozen=True)
class Sectors:
    """How a dense scan is reduced for a network: the nearest hit of each sector of the LiDAR's view, within a range.

    Args:
        rays: Azimuths and elevations of the scan.
        range_m: Its range.
        shape: Azimuths and elevations of the sectors; must divide `rays`.
        reach_m: Range of the sectors; hits beyond it are ignored.
        wraps: Whether the last azimuth lies beside the first; the first sector then looks ahead.
    """

    rays: tuple[int, int]
    range_m: float
    shape: tuple[int, int]
    reach_m: float
    wraps: bool = True

    def reduce(self, lidar: Tensor) -> Tensor:
        """Return [B, 1, H, V] `reach_m` less the distance of each sector's nearest hit, from a scan [B, 1, *rays]."""
        wide, tall = (n // m for n, m in zip(self.rays, self.shape, strict=True))
        rays = torch.roll(lidar, wide // 2, dims=2) if self.wraps else lidar
        return (functional.max_pool2d(rays, (wide, tall)) + (self.reach_m - self.range_m)).clamp(min=0.0)


class ExtraObservations:
    """Observations that a subclass of the env adds; the networks read them after the features."""

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self.specs = dict(specs)
        self.flatten = Flattener(specs, {})
        self.names, self.inputs = self.flatten.keys, self.flatten.inputs

    def append(self, features: Tensor, obs: Obs) -> Tensor:
        """Return features [B, F] with the extra observations after them."""
        return torch.cat([features, self.flatten(obs)], dim=-1) if self.names else features

    def examples(self, batch: int, seed: int) -> dict[str, Tensor]:
        """Return `batch` random observations that fit the specs."""
        return self.flatten.examples(batch, seed)


class FeaturePolicy(ActorCritic):
    """A small MLP on hand-made features, shared by actor and critic: the network of the preset `fast`.

    Args:
        gru_size: Width of a memory of past features, which the MLP reads too; 0: none.
        sectors: Reduces the scan to `lidar_shape` and `range_m`; None: the network reads every ray.
    """

    observes, captures = READ, True

    def __init__(
        self,
        lidar_shape: tuple[int, int] = (36, 4),
        hidden: Sequence[int] = (256, 128),
        log_std_max: float = -0.5,
        range_m: float = 4.0,
        more_inputs: int = 0,
        forward: float = FORWARD,
        extra: Mapping[str, TensorSpec] | None = None,
        gru_size: int = 0,
        sectors: Sectors | None = None,
    ) -> None:
        super().__init__()
        self.range_m, self.lidar_shape, self.sectors = range_m, lidar_shape, sectors
        self.extra = ExtraObservations(extra or {})
        self.observes, self.reads = (*type(self).observes, *self.extra.names), self.extra.specs
        self.inputs = num_features(lidar_shape[0] * lidar_shape[1]) + self.extra.inputs + more_inputs
        self.trunk = mlp(self.add_memory(self.inputs, gru_size), hidden)
        self.head = GaussianHead(hidden[-1], VELOCITY, forward, log_std_max)
        self.critic = value_layer(hidden[-1])

    def encode(self, obs: Obs) -> Tensor:
        if self.sectors:
            obs = {**obs, LIDAR.name: self.sectors.reduce(obs[LIDAR.name])}
        return self.extra.append(navigation_features(obs, self.range_m), obs)

    def decide(self, x: Tensor, z: Tensor) -> tuple[Params, Tensor]:
        h = self.trunk(z)
        return self.head(h), self.critic(h).squeeze(-1)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        rays, range_m = (self.sectors.rays, self.sectors.range_m) if self.sectors else (self.lidar_shape, self.range_m)
        return example_flight(batch, rays, range_m, seed) | self.extra.examples(batch, seed)


class PlannedPolicy(FeaturePolicy):
    """A shared MLP that reads the planner's command and corrects it; before training it flies like the planner.

        mean = the planner's command + correction * tanh(network(features, plan)),  in shares of the speed limit

    `plan` is an observation (`env.plan=true`): on a robot, `fledge_runtime` computes it.

    Args:
        correction: Largest correction of the planner's command per axis, as a share of the speed limit.
    """

    observes = (*READ, PLAN.name)

    def __init__(
        self,
        lidar_shape: tuple[int, int] = (36, 4),
        hidden: Sequence[int] = (256, 128),
        log_std_max: float = -1.5,
        range_m: float = 4.0,
        correction: float = 0.5,
        extra: Mapping[str, TensorSpec] | None = None,
        gru_size: int = 0,
        sectors: Sectors | None = None,
    ) -> None:
        super().__init__(lidar_shape, hidden, log_std_max, range_m, PLAN.width, 0.0, extra, gru_size, sectors)
        self.correction = correction

    def encode(self, obs: Obs) -> Tensor:
        return torch.cat([super().encode(obs), obs["plan"]], dim=-1)

    def decide(self, x: Tensor, z: Tensor) -> tuple[Params, Tensor]:
        h = self.trunk(z)
        wish, spread = self.head(h)
        command = x[..., -PLAN.width :][..., PLAN["command"]]
        return (command + self.correction * torch.tanh(wish), spread), self.critic(h).squeeze(-1)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        plan = torch.rand(batch, PLAN.width, generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
        return {**super().example_inputs(batch, seed), "plan": plan}


class FeatureActor(SquashedActor):
    """Actor of SAC and TD3 (`SquashedActor`) on the same features as FeaturePolicy."""

    observes = READ

    def __init__(
        self,
        lidar_shape: tuple[int, int] = (36, 4),
        hidden: Sequence[int] = (256, 128),
        range_m: float = 4.0,
        extra: Mapping[str, TensorSpec] | None = None,
    ) -> None:
        more = ExtraObservations(extra or {})
        inputs = num_features(lidar_shape[0] * lidar_shape[1]) + more.inputs
        super().__init__(inputs, VELOCITY, hidden, FORWARD, LOG_STD_RANGE)
        self.range_m, self.lidar_shape, self.extra = range_m, lidar_shape, more
        self.observes, self.reads = (*READ, *more.names), more.specs

    def encode(self, obs: Obs) -> Tensor:
        return self.extra.append(navigation_features(obs, self.range_m), obs)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        return example_flight(batch, self.lidar_shape, self.range_m, seed) | self.extra.examples(batch, seed)


def example_flight(batch: int, lidar_shape: tuple[int, int], range_m: float, seed: int) -> dict[str, Tensor]:
    """Return a batch of random navigation observations, with values of realistic size."""
    g = torch.Generator().manual_seed(seed)
    obstacles = torch.randn(batch, *DYNAMIC_OBSTACLE.shape(), generator=g)
    flat, width, box = (DYNAMIC_OBSTACLE.at(name) for name in ("horizontal_distance", "width_class", "is_box"))
    rows = obstacles.shape[:-1]
    obstacles[..., flat] = obstacles[..., flat].abs() * (torch.rand(rows, generator=g) > 0.3)
    obstacles[..., width] = torch.randint(0, WIDTHS, rows, generator=g).float()
    obstacles[..., box] = torch.randint(0, 2, rows, generator=g).float()
    return {
        "state": torch.randn(batch, *STATE.shape(), generator=g),
        "lidar": (torch.rand(batch, 1, *lidar_shape, generator=g) * 1.5 * range_m - 2).clamp(0, range_m - 0.1),
        "dynamic_obstacle": obstacles,
    }


def num_features(beams: int, obstacles: int = NEAREST) -> int:
    """Return the number of features for this number of LiDAR beams and moving obstacles."""
    return STATE_FEATURES + beams + obstacles * OBSTACLE_FEATURES


def navigation_features(obs: Mapping[str, Tensor], range_m: float = 4.0) -> Tensor:
    """Return [B, F] float32 features of a batch of navigation observations."""
    if obs["state"].is_cuda:
        from fledge.tasks.navigation.networks.feature_kernel import fused_features, is_fused

        if is_fused(obs):
            return fused_features(obs, range_m)
    velocity = obs["state"][:, STATE["velocity"]]
    distance = (range_m - obs["lidar"].flatten(1)).clamp(min=0.1)
    beams = (range_m / distance).log() * (1.0 / math.log(range_m / RADIUS_M))
    obstacles = obstacle_features(obs["dynamic_obstacle"].squeeze(1), velocity, range_m)
    return torch.cat([own_features(obs["state"], range_m), beams, obstacles.flatten(1)], dim=-1)


def own_features(state: Tensor, range_m: float = 4.0) -> Tensor:
    """Return the nine features of the observation `state`, [B, 9], in the order that the module's docstring gives."""
    unit, far, up, velocity = state.split(STATE.widths, dim=-1)
    return torch.cat([unit, far * 0.05, far.clamp(max=range_m) / range_m, up, velocity * 0.5], dim=-1)


def obstacle_features(rows: Tensor, velocity: Tensor, range_m: float) -> Tensor:
    """Return features [B, K, 14] of obstacle rows [B, K, 10] and the drone's velocity [B, 3], goal frame; 0 in empty rows."""
    unit, flat, dz, moving, width_class, is_box = rows.split(DYNAMIC_OBSTACLE.widths, dim=-1)
    present = (flat > 0).float()
    width = (width_class + 1.0) * 0.25
    offset = unit * torch.sqrt(flat * flat + dz * dz)
    relative = moving - velocity[:, None, :]
    reach = 0.5 * width + RADIUS_M
    gap = flat - reach
    along = (offset[..., :2] * relative[..., :2]).sum(-1, keepdim=True)
    speed2 = relative[..., :2].square().sum(-1, keepdim=True).clamp(min=1e-3)
    when = (-along / speed2).clamp(0.0, 4.0)
    miss = (offset[..., :2] + relative[..., :2] * when).norm(dim=-1, keepdim=True) - reach
    clearance = (dz.abs() - 0.5 * BOX_M - RADIUS_M) * is_box
    closeness = (range_m / gap.clamp(min=MIN_GAP_M)).log() * 0.25
    features = [offset * (1.0 / range_m), relative * 0.5, gap * (1.0 / range_m), closeness, when * 0.25, miss * 0.5]
    return torch.cat([*features, clearance, width, is_box, present], dim=-1) * present
