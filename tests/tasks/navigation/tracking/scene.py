"""Scripted scenes for the tracker: upright cylinders, static or moving, and a drone that flies past them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import warp as wp

from fledge.envs.launch import Call, Launcher
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.planner.structs import seen_of
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE, MoversFrom
from fledge.tasks.navigation.sensing.rays import directions
from fledge.tasks.navigation.tracking.kernel import track_alone
from fledge.tasks.navigation.tracking.structs import bind_tracker, make_buffers
from tests.tasks.navigation.tracking.reference import ReferenceTracker

CFG = NavigationConfig(
    1, decimation=6, lidar_azimuths=160, lidar_elevations_deg=[-15.0, -5.0, 0.0, 5.0, 15.0], lidar_range_m=8.0,
    lidar_sees_movers=True, movers_from=MoversFrom.lidar, pose=True, moving_obstacles=0, static_obstacles=0,
)  # fmt: skip
STEP_S = CFG.dt_s * CFG.decimation
RAYS = directions(CFG)
Path = Callable[[float], tuple[float, ...]]  # time, s -> x, y and, of a drone, its height


@dataclass
class Moment:
    """The moving tracks of kernel and reference at a decision: positions and velocities, [n, 2] each."""

    own: np.ndarray
    movers: np.ndarray
    pos: np.ndarray
    vel: np.ndarray
    reference_pos: np.ndarray
    reference_vel: np.ndarray


def scan(own: np.ndarray, cylinders: Sequence[tuple[float, float, float]]) -> np.ndarray:
    """Return the scan [H, V] of tall cylinders (x, y, radius)."""
    nearest = np.full(RAYS.shape[:2], CFG.lidar_range_m)
    dx, dy = RAYS[..., 0], RAYS[..., 1]
    for x, y, radius in cylinders:
        ox, oy, a = own[0] - x, own[1] - y, dx**2 + dy**2
        b, c = ox * dx + oy * dy, ox**2 + oy**2 - radius**2
        root = b**2 - a * c
        distance = (-b - np.sqrt(np.maximum(root, 0))) / a
        hit = (root > 0) & (distance > 0) & (own[2] + distance * RAYS[..., 2] > 0)
        nearest = np.where(hit, np.minimum(nearest, distance), nearest)
    return CFG.lidar_range_m - nearest


def fly(
    drone: Path, movers: Sequence[tuple[Path, float]], columns: Sequence[tuple[float, float, float]], count: int
) -> Iterator[Moment]:
    """Fly a drone past movers (path, radius) and columns (x, y, radius); yield what is tracked at each decision."""
    buffers = make_buffers(CFG, 1, torch.device("cpu"))
    shapes = {"state": 8, "pose": 2, "lidar": RAYS[..., 0].size, "dynamic_obstacle": 50, "attitude": 0}
    obs = {name: torch.zeros((1, size)) for name, size in shapes.items()}
    fresh, launcher = torch.ones(1, dtype=torch.bool), Launcher("cpu", 1)
    args = [wp.from_torch(fresh), seen_of(CFG, obs, CFG.planner), bind_tracker(CFG, buffers)]
    program = launcher.record([Call(track_alone, [*args, wp.from_torch(obs["dynamic_obstacle"])])], 1)
    reference = ReferenceTracker(RAYS, CFG.lidar_range_m, STEP_S)
    for n in range(count):
        own, at = np.array(drone(n * STEP_S)), np.array([path(n * STEP_S) for path, _ in movers]).reshape(-1, 2)
        lidar = scan(own, [*((x, y, r) for (x, y), (_, r) in zip(at, movers, strict=True)), *columns])
        flat = np.hypot(*own[:2])
        obs["state"][0, :4] = torch.tensor([*(-own[:2] / flat), 0.0, flat])
        obs["pose"][0, 0] = own[2]
        obs["lidar"][0] = torch.tensor(lidar.ravel())
        launcher.run(program)
        fresh.fill_(False)
        rows = obs["dynamic_obstacle"].view(5, 10).double().numpy()
        rows = rows[rows[:, DYNAMIC_OBSTACLE.at("horizontal_distance")] > 0]
        tracks = sorted(
            reference.update(own, lidar.astype(np.float32).astype(float)),
            key=lambda t: np.linalg.norm(t["pos"] - own[:2]),
        )[:5]
        pos = own[:2] + rows[:, :2] * rows[:, 3:4]
        ours = (np.array([t[key] for t in tracks]).reshape(-1, 2) for key in ("pos", "vel"))
        yield Moment(own, at, pos, rows[:, 5:7], *ours)
