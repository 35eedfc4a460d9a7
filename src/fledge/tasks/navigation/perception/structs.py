"""Struct of the perception kernels: levels of the faults, and what they remember."""

import math

import torch
import warp as wp

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.perception.config import MAX_GHOSTS
from fledge.tasks.navigation.physics.structs import allocate
from fledge.tasks.navigation.sensing.observations import ATTITUDE, LIDAR

MINUTE_S = 60.0
COPIED = (
    "vary",
    "miss_rate",
    "lose_rate",
    "lose_s",
    "ghosts",
    "ghost_s",
    "position_noise",
    "velocity_noise",
    "size_error",
)


@wp.struct
class Faults:
    """Levels and state of faulty perception. In shapes: N drones, K maps, M movers per map, G ghosts, B beams.

    T is the number of physics steps in the memory of movers, S the number of LiDAR scans kept; 0 if not needed.
    """

    vary: float  # these as in `PerceptionConfig`
    miss_rate: float
    lose_rate: float
    lose_s: float
    ghosts: float
    ghost_s: float
    position_noise: float
    velocity_noise: float
    size_error: float
    occlusion: int
    half_view: float  # rad
    decision_s: float
    frame_steps: int  # physics steps between two frames of the detector; 0: a frame for every decision
    delay_steps: int  # age of a frame, physics steps
    scan_every: int  # decisions between two LiDAR scans
    scan_delay: int  # age of a LiDAR scan, decisions
    drift_m: float  # m per square root of a second, as a standard deviation
    drift_yaw: float  # rad per square root of a second
    trail: wp.array3d(dtype=wp.vec3)  # [T, K, M] m, world: ring of past positions; clock t is in row t mod T
    lost: wp.array2d(dtype=wp.int32)  # [N, M] 1 if the drone has lost the mover's track
    ghost_kind: wp.array2d(dtype=wp.int32)  # [N, G] as in `physics.shapes`; -1 in an empty slot
    ghost_pos: wp.array2d(dtype=wp.vec3)  # [N, G] m, world
    ghost_vel: wp.array2d(dtype=wp.vec3)  # [N, G] m/s, world
    odometer: wp.array(dtype=wp.vec3)  # [N] m, world: true position up to which the estimate is summed up
    scans: wp.array3d(
        dtype=wp.float32
    )  # [N, S, B] ring of LiDAR scans and their attitudes; scan number n of an episode is in row n mod S


def in_steps(seconds: float, step_s: float) -> int:
    """Return a time in whole steps, rounded."""
    return round(seconds / step_s)


def scan_size(cfg: NavigationConfig) -> int:
    """Return how many numbers a stored scan of one drone has: those of `lidar` and, if it is observed, of `attitude`."""
    return LIDAR.size(cfg) + (ATTITUDE.size() if ATTITUDE.enabled(cfg) else 0)


def make_faults(cfg: NavigationConfig, maps: int, device: torch.device) -> tuple[Faults, dict[str, torch.Tensor]]:
    """Return the struct of a config, and its arrays as tensors by name; `maps` is the number of map slots."""
    n, m, p = cfg.num_envs, cfg.moving_obstacles, cfg.perception
    decision_s = cfg.dt_s * cfg.decimation
    frame, delay = in_steps(p.mover_period_s, cfg.dt_s), in_steps(p.mover_delay_s, cfg.dt_s)
    every, late = max(1, in_steps(p.lidar_period_s, decision_s)), in_steps(p.lidar_delay_s, decision_s)
    steps = frame + delay + 2 if frame + delay else 0  # one more row, as velocities are differences
    scans = math.ceil(late / every) + 1 if every > 1 or late else 0
    beams = scan_size(cfg) if scans else 0
    shapes: dict[int | str, tuple[int, ...]] = {1: (n,), 2: (n, MAX_GHOSTS), 3: (n, scans, beams)}
    faults, tensors = allocate(Faults, {**shapes, "lost": (n, m), "trail": (steps, maps, m)}, device)
    for name in COPIED:
        setattr(faults, name, getattr(p, name))
    faults.occlusion, faults.half_view = int(p.occlusion), math.radians(p.view_deg) / 2
    faults.decision_s, faults.frame_steps, faults.delay_steps = decision_s, frame, delay
    faults.scan_every, faults.scan_delay = every, late
    faults.drift_m = p.drift_m / math.sqrt(MINUTE_S)
    faults.drift_yaw = math.radians(p.drift_yaw_deg) / math.sqrt(MINUTE_S)
    return faults, tensors


def faults_bytes(cfg: NavigationConfig) -> int:
    """Return the approximate memory of one drone's faults, bytes."""
    p, decision_s = cfg.perception, cfg.dt_s * cfg.decimation
    scans = (p.lidar_period_s + p.lidar_delay_s) / decision_s + 2
    return 4 * (cfg.moving_obstacles + 7 * MAX_GHOSTS + 3 + round(scans) * scan_size(cfg))
