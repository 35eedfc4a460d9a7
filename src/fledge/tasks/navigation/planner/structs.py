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
from fledge.tasks.navigation.orca.kernel import LAG_S, guard_of, num_planes
from fledge.tasks.navigation.physics.structs import bind
from fledge.tasks.navigation.planner import clearance, responses
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.cost_to_go import POINTS, CostToGo, factors, line
from fledge.tasks.navigation.planner.identify import FADING_S, Response
from fledge.tasks.navigation.planner.kernel import Planner
from fledge.tasks.navigation.planner.local_map import LocalMap, block, cell, ring_distances, stencils, window_cells
from fledge.tasks.navigation.planner.readings import Movers, Seen
from fledge.tasks.navigation.sensing.observations import NEAREST
from fledge.tasks.navigation.sensing.rays import bin_deg, directions, elevations_deg
from fledge.tasks.navigation.tracking import structs as tracking

BOX_WIDTH = (
    1.2  # boxes count as cylinders that are wider by this factor: between the circles inside and around a square
)

GUARD_SHARE = LAG_S / responses.USUAL_S  # lag of velocity obstacles, as a share of the time to follow a command
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
    steps = round(cfg.horizon_s / cfg.step_s)
    return {
        "cells": (torch.int64, (2 * window_cells(map_range_m(env_cfg)) ** 2,)),
        "centre": (i32, (2,)),
        "fresh": (torch.bool, ()),
        "drawn": (f32, ()),
        "acc": (f32, (3,)),
        **response_shapes(cfg, env_cfg.dt_s * env_cfg.decimation),
        "stay_pos": (f32, (3,)),
        "stay": (i32, ()),
        "length": (f32, (points,)),
        "slow": (f32, (points,)),
        "corner": (f32, (2,)),
        "age": (i32, ()),
        "place": (f32, (NEAREST, 4)),
        "motion": (f32, (NEAREST, 4)),
        "unseen": (f32, (NEAREST,)),
        "near": (i32, (steps,)),
        "drift": (f32, (2 * steps, 3)),
        "last": (i32, ()),
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
    shield: bool = False,
) -> Planner:
    """Return the planner's struct over `tensors`, the buffers of N drones by name.

    They have the names, dtypes and, after the axis N, the shapes of `buffer_shapes`. `cfg` must come from `within_limit`.
    `tracker` has the memory of hits, if movers come from the LiDAR.
    """
    hasten = cfg.hasten and cfg.identify and not shield
    kinds = {"cells": ("cells", cell), "blocks": ("cells", block), "rows": ("length", line), "slow": ("slow", line)}
    rows = {name: tensors[of].unflatten(1, (-1, kind._length_)) for name, (of, kind) in kinds.items()}
    device, p = tensors["cells"].device, bind(Planner, tensors)
    m, w = bind(LocalMap, {**tensors, **rows}), bind(CostToGo, {**tensors, **rows})
    m.size, m.stencils = window_cells(map_range_m(env_cfg)), array(stencils(), device, block)
    near = [20.0 if away <= env_cfg.collision_radius_m + cfg.skin_m else 1.0 for away in ring_distances()]
    near[3] += cfg.narrow
    near[4] += cfg.narrow / 2
    w.slowness, w.every, w.rounds = factors(*near), cfg.ways_every, 3
    p.movers = movers_of(env_cfg, tensors)
    p.movers.coast_s, p.movers.decision_s = (
        0.0 if env_cfg.tracks_movers else cfg.coast_s,
        env_cfg.dt_s * env_cfg.decimation,
    )
    p.search, p.map, p.cost = make_search(cfg, env_cfg, tensors, hasten), m, w
    p.decision_s, p.patience_s = env_cfg.dt_s * env_cfg.decimation, cfg.patience_s
    if tracker is not None:
        p.tracker = tracker
    p.guard = guard_of(env_cfg, tensors["planes"], cfg.guard)
    p.response = bind_response(cfg, p.decision_s, tensors, hasten, env_cfg.speed_limit)
    seconds = np.array([p.decision_s])
    p.step = array(
        np.stack([responses.response(seconds, r)[0, 2] for r in responses.given_rates(cfg)]), device, wp.vec3
    )
    return p


def response_shapes(cfg: PlannerConfig, decision_s: float) -> Shapes:
    """Return dtype and shape of each buffer of `Response` for one drone, by name."""
    f32, delays = torch.float32, responses.possible_delays(cfg, decision_s)
    flat, up = (len(rates) * len(delays) * cfg.identify for rates in responses.possible_rates(cfg))
    return {
        "sent": (f32, (max(delays) + 1, 3)),
        "flat_state": (f32, (flat, 4)),
        "flat_score": (f32, (flat,)),
        "up_state": (f32, (up, 2)),
        "up_score": (f32, (up,)),
    }


def bind_response(
    cfg: PlannerConfig, decision_s: float, tensors: Mapping[str, torch.Tensor], hasten: bool, limit: float
) -> Response:
    """Return the drones' response, given or to be identified, over the buffers of N drones."""
    device, rates = tensors["sent"].device, responses.possible_rates(cfg)
    r, times = bind(Response, tensors), np.array([decision_s])
    r.on, r.keep, r.decision_s = int(cfg.identify), math.exp(-decision_s / FADING_S), decision_s
    r.delays = array(np.array(responses.possible_delays(cfg, decision_s)), device, wp.int32)
    r.flat, r.upright = (
        array(np.concatenate([responses.response(times, x) for x in group]), device, wp.vec3) for group in rates
    )
    shapes = [[responses.hastened(x)[1] for x in group] for group in rates]
    r.hasten, r.limit = int(hasten), limit
    r.flat_shape, r.up_shape = (array(np.array(x), device, wp.vec2) for x in shapes)
    effective = [responses.hastened(x)[0] if hasten else x for x in rates[0]]
    r.slower = array(np.array([GUARD_SHARE * (1.0 / x.gain + x.lag_s - responses.USUAL_S) for x in effective]), device)
    return r


def make_search(
    cfg: PlannerConfig, env_cfg: NavigationConfig, tensors: Mapping[str, torch.Tensor], hasten: bool
) -> clearance.Search:
    """Return the struct of the search: candidate commands, the drone's responses to commands, costs, limits, buffers."""
    s, beams, device = bind(clearance.Search, tensors), env_cfg.collision is Collision.beams, tensors["cells"].device
    times = (np.arange(round(cfg.horizon_s / cfg.step_s)) + 1.0) * cfg.step_s
    commands = responses.candidates(cfg)
    s.commands = array(commands, device, wp.vec3)
    padded = np.pad(commands, ((0, -len(commands) % clearance.BLOCK), (0, 0)))
    s.blocks = array(padded.T.reshape(3, -1, clearance.BLOCK), device, clearance.commands)
    flat, up = responses.possible_rates(cfg)
    if hasten:
        flat, up = ([responses.hastened(rate)[0] for rate in rates] for rates in (flat, up))
    s.flat = array(responses.step_responses(cfg, flat), device, wp.vec3)
    s.upright = array(responses.step_responses(cfg, up), device, wp.vec3)
    s.top_speed = float(np.linalg.norm(commands[:, :2], axis=1).max())
    s.kinds = 2 if cfg.brief_s else 1
    s.price = array(cfg.margin_cost * np.exp(-times / cfg.fading_s), device)
    s.mover_price = array(cfg.mover_cost * np.exp(-times / cfg.fading_s), device)
    s.mover_margin, s.fast_mover_s = cfg.mover_margin_m, cfg.fast_mover_s
    s.ring_m = array(ring_distances(), device)
    s.step_s, s.skin, s.margin = cfg.step_s, cfg.skin_m, cfg.margin_m
    s.body = env_cfg.collision_radius_m + cfg.skin_m
    s.crash_cost, s.crash_relief, s.depth_cost = cfg.crash_cost, cfg.crash_relief, cfg.depth_cost
    # a cylinder plans as a sphere does, to keep away from tops and edges; NavRL's beams hardly look down
    s.reach_z = 0.2 if beams else env_cfg.collision_radius_m + clearance.UPRIGHT_M
    s.goal_radius = env_cfg.goal_radius_m
    lowest = env_cfg.min_height_m if beams else max(env_cfg.min_height_m, env_cfg.collision_radius_m)
    s.floor, s.ceiling = lowest + clearance.FLOOR_M, env_cfg.max_height_m - clearance.CEILING_M
    s.alarm = max(1, round(min(cfg.alarm_s, cfg.horizon_s) / cfg.step_s))
    s.gain = cfg.fast * cfg.horizon_s
    s.furthest = wp.vec3(*np.abs(responses.step_responses(cfg, flat)).max(axis=(0, 1)))
    s.least_crash = max(cfg.crash_cost - cfg.crash_relief * cfg.horizon_s, 0.0)
    return s
