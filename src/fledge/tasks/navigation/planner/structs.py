"""Buffers of the planner for N drones, and the Warp structs over them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import warp as wp

from fledge.tasks.navigation.config import Collision, NavigationConfig
from fledge.tasks.navigation.orca.kernel import guard_of, num_planes
from fledge.tasks.navigation.physics.structs import bind
from fledge.tasks.navigation.planner import search
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.cost_to_go import POINTS, CostToGo
from fledge.tasks.navigation.planner.kernel import Planner
from fledge.tasks.navigation.planner.local_map import LocalMap, disc, ring_distances, window_cells
from fledge.tasks.navigation.planner.readings import Movers, Seen
from fledge.tasks.navigation.sensing.observations import NEAREST
from fledge.tasks.navigation.sensing.rays import bin_deg, directions, elevations_deg
from fledge.tasks.navigation.tracking import structs as tracking

BOX_WIDTH = (
    1.2  # boxes count as cylinders that are wider by this factor: between the circles inside and around a square
)

MAP_RANGE_M = 11.0  # of the local map under sensors that see farther: 256 x 256 cells, 1 MiB per drone

Shapes = dict[str, tuple[torch.dtype, tuple[int, ...]]]


def map_range_m(env_cfg: NavigationConfig) -> float:
    """Return the distance up to which the local map keeps hits, m: the sensor's range, but at most MAP_RANGE_M."""
    if env_cfg.tracks_movers:
        return min(env_cfg.lidar_range_m, tracking.MAP_RANGE_M)
    far = env_cfg.casts_single_rays and env_cfg.lidar_range_m > MAP_RANGE_M
    return MAP_RANGE_M if far else env_cfg.lidar_range_m


def buffer_shapes(cfg: PlannerConfig, env_cfg: NavigationConfig) -> Shapes:
    """Return dtype and shape of each buffer for one drone, by name."""
    f32, i32, points = torch.float32, torch.int32, POINTS * POINTS
    return {
        "cells": (torch.int64, (2 * window_cells(map_range_m(env_cfg)) ** 2,)),
        "centre": (i32, (2,)),
        "fresh": (torch.bool, ()),
        "drawn": (f32, ()),
        "acc": (f32, (3,)),
        "stay_pos": (f32, (3,)),
        "stay": (i32, ()),
        "length": (f32, (points,)),
        "slow": (f32, (points,)),
        "corner": (f32, (2,)),
        "age": (i32, ()),
        "place": (f32, (NEAREST, 4)),
        "motion": (f32, (NEAREST, 4)),
        "unseen": (f32, (NEAREST,)),
        "planes": (f32, (num_planes(env_cfg) if cfg.guard else 0, 4)),
    }


def buffer_bytes(cfg: PlannerConfig, env_cfg: NavigationConfig) -> int:
    """Return the memory of one drone's buffers, bytes."""
    shapes = buffer_shapes(cfg, env_cfg).values()
    return sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in shapes)


def within_limit(cfg: PlannerConfig, limit: float) -> PlannerConfig:
    """Return the settings with candidate speeds of at most `limit`, m/s.

    The env clips each axis of a command, which would change the direction of faster commands.
    """
    speeds = {name: min(getattr(cfg, name), limit) for name in ("slow", "middle", "fast", "climb")}
    return dataclasses.replace(cfg, **speeds)


def array(values: np.ndarray, device: torch.device, dtype: Any = wp.float32) -> Any:
    return wp.array(np.ascontiguousarray(values), dtype=dtype, device=str(device))


def seen_of(env_cfg: NavigationConfig, tensors: Mapping[str, torch.Tensor], cfg: PlannerConfig | None = None) -> Seen:
    """Return the struct by which kernels read the observations in `tensors`, each of shape [N, numbers per drone].

    If `cfg` is None, `standing` and `memory` stay 0: no scan is remembered.
    """
    seen, angles = bind(Seen, tensors), np.radians(elevations_deg(env_cfg))
    device = tensors["lidar"].device
    seen.azimuths, seen.range_m, seen.reach_m = env_cfg.lidar_azimuths, env_cfg.lidar_range_m, map_range_m(env_cfg)
    single, jitter = env_cfg.casts_single_rays or env_cfg.tracks_movers, env_cfg.lidar_jitter
    seen.rays = array(directions(env_cfg).reshape(-1, 3)[: None if single else 0].astype(np.float32), device, wp.vec3)
    seen.tilts, seen.angle_error = int(env_cfg.lidar_tilts), math.radians(bin_deg(env_cfg)[1] / 2) if jitter else 0.0
    seen.late_s = env_cfg.perception.mean_scan_delay_s
    seen.cosine, seen.sine = array(np.cos(angles), device), array(np.sin(angles), device)
    if cfg is not None:
        seen.standing, seen.memory = int(cfg.standing and not env_cfg.world), int(cfg.memory)
    return seen


def movers_of(env_cfg: NavigationConfig, tensors: Mapping[str, torch.Tensor]) -> Movers:
    """Return the struct of the nearest movers over the buffers `place` and `motion` of N drones."""
    movers = bind(Movers, tensors)
    movers.box_width = 1.0 if env_cfg.collision is Collision.beams else BOX_WIDTH
    movers.late_s = 0.0 if env_cfg.tracks_movers else env_cfg.perception.mean_mover_age_s  # tracks are up to date
    return movers


def bind_planner(
    cfg: PlannerConfig,
    env_cfg: NavigationConfig,
    tensors: Mapping[str, torch.Tensor],
    tracker: tracking.Tracker | None = None,
) -> Planner:
    """Return the planner's struct over `tensors`, the buffers of N drones by name.

    They have the names, dtypes and, after the axis N, the shapes of `buffer_shapes`. `cfg` must come from `within_limit`.
    `tracker` has the memory of hits, if movers come from the LiDAR.
    """
    device, p, m, w = tensors["cells"].device, bind(Planner, tensors), bind(LocalMap, tensors), bind(CostToGo, tensors)
    m.size, m.disc = window_cells(map_range_m(env_cfg)), array(disc(), device, wp.vec3i)
    near = [20.0 if away <= env_cfg.collision_radius_m + cfg.skin_m else 1.0 for away in ring_distances()]
    near[3] += cfg.narrow
    near[4] += cfg.narrow / 2
    w.slowness, w.every, w.rounds = array(np.array(near), device), cfg.ways_every, 3
    p.movers = movers_of(env_cfg, tensors)
    p.movers.coast_s, p.movers.decision_s = (
        0.0 if env_cfg.tracks_movers else cfg.coast_s,
        env_cfg.dt_s * env_cfg.decimation,
    )
    p.search, p.map, p.cost = make_search(cfg, env_cfg, device), m, w
    p.decision_s, p.patience_s = env_cfg.dt_s * env_cfg.decimation, cfg.patience_s
    if tracker is not None:
        p.tracker = tracker
    p.guard = guard_of(env_cfg, tensors["planes"], cfg.guard)
    seconds, lags = np.array([env_cfg.dt_s * env_cfg.decimation]), (cfg.lag_s, min(cfg.lag_s, search.VERTICAL_LAG_S))
    p.step = array(np.stack([search.response(seconds, lag)[0, 2] for lag in lags]), device, wp.vec3)
    return p


def make_search(cfg: PlannerConfig, env_cfg: NavigationConfig, device: torch.device) -> search.Search:
    """Return the data that all searches share: candidate commands, the drone's responses to commands, costs, limits."""
    s, beams = search.Search(), env_cfg.collision is Collision.beams
    times = (np.arange(round(cfg.horizon_s / cfg.step_s)) + 1.0) * cfg.step_s
    s.commands = array(search.candidates(cfg), device, wp.vec3)
    s.flat = array(search.step_responses(cfg, cfg.lag_s), device, wp.vec3)
    s.upright = array(search.step_responses(cfg, min(cfg.lag_s, search.VERTICAL_LAG_S)), device, wp.vec3)
    s.kinds = 2 if cfg.brief_s else 1
    s.price = array(cfg.margin_cost * np.exp(-times / cfg.fading_s), device)
    s.mover_price = array(cfg.mover_cost * np.exp(-times / cfg.fading_s), device)
    s.mover_margin, s.fast_mover_s = cfg.mover_margin_m, cfg.fast_mover_s
    s.ring_m = array(ring_distances(), device)
    s.step_s, s.skin, s.margin = cfg.step_s, cfg.skin_m, cfg.margin_m
    s.body = env_cfg.collision_radius_m + cfg.skin_m
    s.crash_cost, s.crash_relief = cfg.crash_cost, cfg.crash_relief
    # a cylinder plans as a sphere does, to keep away from tops and edges; NavRL's beams hardly look down
    s.reach_z = 0.2 if beams else env_cfg.collision_radius_m + search.UPRIGHT_M
    s.goal_radius = env_cfg.goal_radius_m
    lowest = env_cfg.min_height_m if beams else max(env_cfg.min_height_m, env_cfg.collision_radius_m)
    s.floor, s.ceiling = lowest + search.FLOOR_M, env_cfg.max_height_m - search.CEILING_M
    s.alarm = max(1, round(min(cfg.alarm_s, cfg.horizon_s) / cfg.step_s))
    s.gain = cfg.fast * cfg.horizon_s
    s.near = s.gain + env_cfg.goal_radius_m + 1.0
    return s
