"""Navigation on a robot: readings that a pilot needs, geometry of the sensor, limits and delays, and simulated readings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fledge.agents.base import BaseAgent
from fledge.core.settings import flat_settings
from fledge.envs.base import TensorEnv
from fledge.tasks.navigation.config import ActionForm, NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.perception.config import PerceptionConfig
from fledge.tasks.navigation.physics.shapes import sizes
from fledge.tasks.navigation.planner.pilot import PlannerPilot
from fledge.tasks.navigation.randomize import RandomizeConfig
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE, GRID_MAP, NEAREST, OBSERVATIONS, PLAN
from fledge.tasks.navigation.sensing.rays import azimuths_deg, bin_deg, directions, elevations_deg
from fledge.tasks.navigation.steering import read_by
from fledge.tasks.robot import Readings, RobotSide

PLANNER = "fledge.tasks.navigation.planner.reader:PlanReader"
UNUSED = ("num_", "reward.", "randomize.", "nan_", "map_", "static_", "moving_", "movers_cycle", "grid_", "eval_world")
THIN_DEG = 1.0  # a point hits a ray within this angle, or within a share of the spacing of denser rays
SHARE = 0.45
READ_FROM = {
    "time_s": {"unit": "s", "shape": [], "doc": "time of the odometry; must grow"},
    "position_w": {"unit": "m", "frame": "world", "shape": [3], "doc": "of the drone; the ground is near z = 0"},
    "velocity_w": {"unit": "m/s", "frame": "world", "shape": [3], "doc": "of the drone"},
    "quaternion_wxyz": {"unit": "1", "order": "w, x, y, z", "shape": [4], "doc": "turns body into world vectors"},
    "points_w": {
        "unit": "m",
        "frame": "world",
        "shape": ["P", 3],
        "missing": "an empty array; points that are not finite are left out",
        "doc": "hits of the sensor, with those of the ground, without those of the drone; or points_b in the sensor's frame "
        "with its mount, or a depth image with its camera",
    },
}
MOVERS = {
    "unit": "m, m/s",
    "frame": "world",
    "shape": ["K", 8],
    "missing": "an empty array, or null",
    "doc": "moving obstacles that a detector tracks: centre (3), velocity (3), width, height; leave their points out of the "
    "cloud",
}
ABSENT = {
    "lidar": "0: no hit within range_m",
    DYNAMIC_OBSTACLE.name: "an obstacle that is not there is a row of zeros",
}


class NavigationRobot(RobotSide):
    """Velocity commands from a point cloud, odometry and a goal."""

    def planner_config(self, cfg: NavigationConfig, agent: BaseAgent) -> NavigationConfig | None:
        return dataclasses.replace(cfg, planner=agent.cfg) if isinstance(agent, PlannerPilot) else None

    def describe(self, cfg: NavigationConfig, observes: Sequence[str], network: bool = True) -> dict[str, Any] | None:
        computable = {observation.name for observation in OBSERVATIONS} - {GRID_MAP.name}
        if cfg.action_form is not ActionForm.velocity or set(observes) - computable:
            return None
        plans = not network or PLAN.name in observes
        tracked = [DYNAMIC_OBSTACLE.name] if cfg.tracks_movers else []
        computes = [name for name in observes if network and name in (PLAN.name, *tracked)]
        raw = (
            READ_FROM if cfg.tracks_movers or DYNAMIC_OBSTACLE.name not in observes else {**READ_FROM, "movers": MOVERS}
        )
        memories = ["goal frame", *(["planner's memory", "last action"] if plans else [])]
        return {
            "raw_inputs": raw,
            "missing": {name: text for name, text in ABSENT.items() if name in observes},
            "timing": describe_timing(cfg, "movers" in raw),
            "limits": {
                "speed_m_s": cfg.speed_limit,  # per axis of the goal frame
                "min_height_m": cfg.lowest_m,
                "max_height_m": cfg.max_height_m,
            },
            "sensor": describe_sensor(cfg),
            "planner": describe_planner(cfg, computes) if plans or computes else None,
            "reset": memories,
        }

    def recording_config(self, cfg: NavigationConfig) -> NavigationConfig:
        """Return the config without noise, delays, drift or other drones."""
        clean = dataclasses.replace(
            cfg, perception=PerceptionConfig(), randomize=RandomizeConfig(), drones=1, pose=True
        )
        return dataclasses.replace(clean, broadcast=True)

    def read(self, env: TensorEnv, obs: Mapping[str, Tensor], rows: Sequence[int] | None = None) -> Readings:
        own, wanted = env.unwrapped, range(env.num_envs) if rows is None else rows
        assert isinstance(own, NavigationEnv)
        state = {name: own.state[name].cpu().numpy().copy() for name in ("start", "goal", "pos", "vel", "quat", "slot")}
        quaternion = state["quat"][:, [3, 0, 1, 2]].astype(np.float64)
        return Readings(
            start_w=state["start"],
            goal_w=state["goal"],
            position_w=state["pos"],
            velocity_w=state["vel"],
            quaternion_wxyz=quaternion,
            points_w=hits(own.cfg, obs["lidar"].cpu().numpy(), state["pos"], quaternion, wanted),
            movers=movers_near(own, state["slot"], state["pos"], wanted),
        )


def describe_planner(cfg: NavigationConfig, computes: Sequence[str]) -> dict[str, Any]:
    """Return what the planner reads and computes, and its settings."""
    reads = [observation.name for observation in read_by(cfg)]
    return {
        "computes": list(computes),
        "reads": [name for name in reads if name != DYNAMIC_OBSTACLE.name or not cfg.tracks_movers],
        "computed_by": PLANNER,
        "settings": {key: value for key, value in flat_settings(cfg).items() if not key.startswith(UNUSED)},
    }


def describe_timing(cfg: NavigationConfig, movers: bool) -> dict[str, Any]:
    """Return the largest ages at which readings are as in training, and the delays that were trained, s.

    A reading may be one decision older than any in training.
    """
    decision_s, seen, r = cfg.dt_s * cfg.decimation, cfg.perception, cfg.randomize
    least = 1.0 - seen.vary
    delays = {
        "points": [least * seen.lidar_delay_s, seen.lidar_delay_s],
        "movers": [least * seen.mover_delay_s, seen.mover_delay_s],
        "command": [r.latency_min_steps * cfg.dt_s, r.latency_steps * cfg.dt_s],
    }
    ages = {
        "odometry": decision_s,
        "points": seen.lidar_delay_s + max(seen.lidar_period_s, decision_s) + decision_s,
        "movers": seen.mover_delay_s + max(seen.mover_period_s, decision_s) + decision_s,
    }
    if not movers:
        del ages["movers"], delays["movers"]
    rounded = {name: [round(value, 6) for value in pair] for name, pair in delays.items()}
    return {"max_age_s": {name: round(value, 6) for name, value in ages.items()}, "trained_delay_s": rounded}


def describe_sensor(cfg: NavigationConfig) -> dict[str, Any]:
    """Return the geometry of the rays, and the range and number of moving obstacles."""
    around, up = azimuths_deg(cfg), elevations_deg(cfg)
    gaps = [360.0, *np.diff(around), *np.diff(np.sort(up))]
    if cfg.lidar_view_deg == 360 and len(around) > 1:
        gaps.append(360.0 / len(around))
    return {
        "range_m": cfg.lidar_range_m,
        "min_range_m": cfg.lidar_min_range_m,
        "view_deg": cfg.lidar_view_deg,
        "azimuths_deg": around.tolist(),
        "elevations_deg": up.tolist(),
        "frame": "body" if cfg.lidar_tilts else "yaw",
        "pinhole": cfg.lidar_pinhole,
        "bins": cfg.lidar_jitter,
        "tolerance_deg": max(bin_deg(cfg)) if cfg.lidar_jitter else round(min(THIN_DEG, SHARE * min(gaps)), 6),
        "mover_range_m": cfg.lidar_range_m,
        "mover_rows": NEAREST,
    }


def hits(
    cfg: NavigationConfig, lidar: np.ndarray, pos: np.ndarray, quaternion: np.ndarray, rows: Sequence[int]
) -> list[np.ndarray]:
    """Return the points that the rays of N drones hit, [P, 3] m, world, for each drone; none for those not in `rows`.

    Args:
        lidar: [N, 1, H, V] the observation.
        quaternion: [N, 4] w, x, y, z.
    """
    rays, value = directions(cfg), lidar[:, 0].astype(np.float64)
    found = [np.zeros((0, 3))] * len(pos)
    for i in rows:
        w, x, y, z = quaternion[i]
        if not cfg.lidar_tilts:
            half = 0.5 * math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
            w, x, y, z = math.cos(half), 0.0, 0.0, math.sin(half)
        axis, hit = (x, y, z), value[i] > 0.0
        ray = rays[hit]
        across = 2.0 * cross(axis, ray)
        turned = ray + w * across + cross(axis, across)
        found[i] = pos[i] + (cfg.lidar_range_m - value[i][hit])[:, None] * turned
    return found


def cross(a: tuple[float, float, float], b: np.ndarray) -> np.ndarray:
    """Return the cross products of a vector with vectors [P, 3]; np.cross takes five times as long."""
    x, y, z = b.T
    return np.stack([a[1] * z - a[2] * y, a[2] * x - a[0] * z, a[0] * y - a[1] * x], axis=1)


def movers_near(env: NavigationEnv, slot: np.ndarray, pos: np.ndarray, rows: Sequence[int]) -> list[np.ndarray]:
    """Return the moving obstacles within twice the LiDAR's range of each drone, [K, 8]; none for those not in `rows`."""
    crowd = env.bank.maps.crowd
    trail, vel, counts = crowd.trail.numpy()[-1], crowd.vel.numpy(), crowd.count.numpy()
    size = sizes(crowd.kinds.numpy())[:, 1:]
    found = [np.zeros((0, 8), np.float32)] * len(pos)
    for i in rows:
        s = slot[i]
        at = trail[s, : counts[s]]
        near = np.hypot(*(at - pos[i])[:, :2].T) < 2.0 * env.cfg.lidar_range_m
        table = [at, vel[s, : counts[s]], size[: counts[s]]]
        found[i] = np.concatenate(table, axis=1)[near].astype(np.float32)
    return found
