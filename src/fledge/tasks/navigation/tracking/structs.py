"""Buffers of the tracker for N drones, and the Warp struct over them.

All positions are in the goal frame with the goal at (0, 0) and heights above the ground, as in `planner.readings.Own`. Times
are counted in decisions since the episode began.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
import warp as wp

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.physics.structs import bind
from fledge.tasks.navigation.planner.local_map import window_cells
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE, LIDAR
from fledge.tasks.navigation.sensing.rays import bin_deg

TRACKS = 16
BESIDE_CELLS = 2  # hits this near to a static cell belong to it
CLUSTERS = 32
MAP_RANGE_M = 5.4  # hits beyond this horizontal distance are ignored: 128 x 128 cells of 0.1 m, 256 KiB per drone
SCRATCH = (
    "returns",
    "open",
    "fresh",
    "heights",
    "clusters",
    "uprights",
    "match",
    "taken",
)  # written before they are read


@wp.struct
class Tracker:
    """Settings, memory and tracks of N drones. In shapes: B rays, H azimuths, K tracks, C clusters."""

    tracks: int  # K; loops over a constant would be unrolled, which takes minutes to compile
    beside: int  # cells along a side of the neighbourhood in which a hit is beside a static cell
    around: int  # 9: a cell and its neighbours
    on: int  # 0: there is no tracker, and all arrays are empty
    size: int  # cells along a side of `grid`, a power of two
    azimuths: int
    elevations: int
    wraps: int  # 1 if the last azimuth lies beside the first
    pitch: float  # rad between two azimuths
    decision_s: float
    late_s: float  # age of a scan when it arrives
    confirm: int  # decisions after which a cell that is hit again and again counts as static
    confirm_late: int  # the same for a cell that was free before
    gap: int  # decisions without a hit after which such a stay begins anew
    recent: int  # decisions for which a cell counts as free after a ray passed through it
    hold: int  # decisions for which a cell that is not static is kept
    overrule: int  # decisions for which a hit on an obstacle that moves makes a cell no longer static
    clock: wp.array(dtype=wp.int32)  # [N] decisions since the episode began
    scanned: wp.array(dtype=wp.int32)  # [N] clock of the last new scan
    scan: wp.array2d(dtype=wp.float32)  # [N, B] the last new scan
    grid: wp.array2d(
        dtype=wp.vec4i
    )  # [N, size * size] cell number, first and last hit of its stay, height bands and flag
    free: wp.array2d(
        dtype=wp.vec2i
    )  # [N, size * size] cell number, clock at which rays passed * 16 + lowest height band
    pos: wp.array2d(dtype=wp.vec3)  # [N, K] m, at the last scan
    vel: wp.array2d(dtype=wp.vec3)  # [N, K] m/s
    cov: wp.array2d(
        dtype=wp.vec3
    )  # [N, K] variance of position, covariance, variance of velocity; the same for x and y
    born: wp.array2d(dtype=wp.vec2)  # [N, K] m: first position
    shape: wp.array2d(
        dtype=wp.vec3
    )  # [N, K] width in m, share of scans that saw a box, share of hits in cells once free
    life: wp.array2d(dtype=wp.vec3i)  # [N, K] scans that saw it (0: no track), clock of the last one, 1 if it moves
    rows: wp.array2d(dtype=wp.float32)  # [N, 5 * 10] the observation `dynamic_obstacle`
    returns: wp.array2d(dtype=wp.vec4)  # [N, H] x, y, horizontal distance, number of hits
    open: wp.array2d(
        dtype=wp.vec4
    )  # [N, H] horizontal unit vector, distance of the nearest hit, slope of the lowest ray
    fresh: wp.array2d(dtype=wp.float32)  # [N, H] share of the return's hits that lie in cells that were free before
    heights: wp.array2d(dtype=wp.vec4)  # [N, H] lowest and highest hit; rays that passed below and above: OPEN if none
    clusters: wp.array2d(dtype=wp.vec4)  # [N, C] x, y, width, horizontal distance
    uprights: wp.array2d(dtype=wp.vec3)  # [N, C] height of the centre, 1 if it looks like a box, share of `fresh`
    match: wp.array2d(dtype=wp.int32)  # [N, K] cluster of a track, or -1
    taken: wp.array2d(dtype=wp.int32)  # [N, C] 1 if the cluster has a track


def in_decisions(seconds: float, cfg: NavigationConfig) -> int:
    return max(1, round(seconds / (cfg.dt_s * cfg.decimation)))


CONFIRM_S, CONFIRM_LATE_S, GAP_S, RECENT_S, HOLD_S, OVERRULE_S = 1.0, 2.0, 0.7, 1.5, 0.3, 3.0


def tracker_shapes(cfg: NavigationConfig) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Return dtype and shape of each buffer of one drone, by name; all are empty unless movers come from the LiDAR."""
    f32, i32, on = torch.float32, torch.int32, cfg.tracks_movers
    k, c, h, cells = (x if on else 0 for x in (TRACKS, CLUSTERS, cfg.lidar_azimuths, window_cells(MAP_RANGE_M) ** 2))
    return {
        "clock": (i32, ()),
        "scanned": (i32, ()),
        "scan": (f32, (LIDAR.size(cfg) if on else 0,)),
        "grid": (i32, (cells, 4)),
        "free": (i32, (cells, 2)),
        "pos": (f32, (k, 3)),
        "vel": (f32, (k, 3)),
        "cov": (f32, (k, 3)),
        "born": (f32, (k, 2)),
        "shape": (f32, (k, 3)),
        "life": (i32, (k, 3)),
        "rows": (f32, (DYNAMIC_OBSTACLE.size(cfg) if on else 0,)),
        "returns": (f32, (h, 4)),
        "open": (f32, (h, 4)),
        "fresh": (f32, (h,)),
        "heights": (f32, (h, 4)),
        "clusters": (f32, (c, 4)),
        "uprights": (f32, (c, 3)),
        "match": (i32, (k,)),
        "taken": (i32, (c,)),
    }


def tracker_bytes(cfg: NavigationConfig) -> int:
    """Return the memory of one drone's tracker, bytes."""
    return sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in tracker_shapes(cfg).values())


def make_buffers(cfg: NavigationConfig, count: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Return zeroed buffers of `count` drones by name."""
    return {k: torch.zeros((count, *s), dtype=d, device=device) for k, (d, s) in tracker_shapes(cfg).items()}


def bind_tracker(cfg: NavigationConfig, tensors: Mapping[str, torch.Tensor]) -> Tracker:
    """Return the tracker's struct over `tensors`, with names and shapes of `tracker_shapes` after the axis N."""
    t, late = bind(Tracker, tensors), cfg.perception.lidar_delay_s * (1.0 - cfg.perception.vary / 2)
    t.on, t.size, t.azimuths, t.elevations = (
        int(cfg.tracks_movers),
        window_cells(MAP_RANGE_M),
        cfg.lidar_azimuths,
        cfg.num_elevations,
    )
    t.wraps, t.pitch = int(cfg.lidar_view_deg == 360), math.radians(bin_deg(cfg)[0])
    t.decision_s, t.late_s = cfg.dt_s * cfg.decimation, late
    t.tracks, t.beside, t.around = TRACKS, 2 * BESIDE_CELLS + 1, 9
    t.confirm, t.confirm_late = in_decisions(CONFIRM_S, cfg), in_decisions(CONFIRM_LATE_S, cfg)
    t.gap, t.recent, t.hold, t.overrule = (in_decisions(s, cfg) for s in (GAP_S, RECENT_S, HOLD_S, OVERRULE_S))
    return t
