"""Buffers of the planner for N drones, and the Warp structs over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import warp as wp

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.orca.structs import guard_of, movers_of, num_planes
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.cost_to_go import PLACES, CostToGo
from fledge.tasks.navigation.planner.kernel import Planner
from fledge.tasks.navigation.planner.local_map import LocalMap, Scan, disc, ring_distances, window_cells
from fledge.tasks.navigation.planner.search import (
    CEILING_M,
    FLOOR_M,
    VERTICAL_LAG_S,
    Search,
    candidates,
    looks,
    response,
)
from fledge.tasks.navigation.sensing.observations import NEAREST

Shapes = dict[str, tuple[torch.dtype, tuple[int, ...]]]


def buffer_shapes(cfg: PlannerConfig, env_cfg: NavigationConfig) -> Shapes:
    """Buffers of one drone: dtype and shape by name."""
    f32, i32, places = torch.float32, torch.int32, PLACES * PLACES
    return {
        "cells": (torch.int64, (2 * window_cells(env_cfg.lidar_range_m) ** 2,)),
        "centre": (i32, (2,)),
        "fresh": (torch.bool, ()),
        "acc": (f32, (3,)),
        "length": (f32, (places,)),
        "slow": (f32, (places,)),
        "corner": (f32, (2,)),
        "age": (i32, ()),
        "place": (f32, (NEAREST, 4)),
        "motion": (f32, (NEAREST, 4)),
        "planes": (f32, (num_planes(env_cfg) if cfg.guard else 0, 4)),
    }


def buffer_bytes(cfg: PlannerConfig, env_cfg: NavigationConfig) -> int:
    """Memory of one drone's buffers."""
    shapes = buffer_shapes(cfg, env_cfg).values()
    return sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in shapes)


def within_limit(cfg: PlannerConfig, limit: float) -> PlannerConfig:
    """The same settings, no faster than the drone can be told to fly: what is cut off axis by axis flies another way."""
    speeds = {name: min(getattr(cfg, name), limit) for name in ("slow", "middle", "fast", "climb")}
    return dataclasses.replace(cfg, **speeds)


def array(values: np.ndarray, device: torch.device, dtype: Any = wp.float32) -> Any:
    return wp.array(np.ascontiguousarray(values), dtype=dtype, device=str(device))


def scan_of(env_cfg: NavigationConfig, lidar: torch.Tensor, cfg: PlannerConfig | None = None) -> Scan:
    """How a LiDAR buffer [N, H * V] is to be read; without a planner's settings nothing is kept of it."""
    scan, angles = Scan(), np.radians(np.asarray(env_cfg.lidar_elevations_deg))
    scan.lidar = wp.from_torch(lidar)
    scan.azimuths, scan.range_m = env_cfg.lidar_azimuths, env_cfg.lidar_range_m
    scan.cosine, scan.sine = array(np.cos(angles), lidar.device), array(np.sin(angles), lidar.device)
    scan.standing = scan.memory = 0
    if cfg is not None:
        scan.standing, scan.memory = int(cfg.standing), int(cfg.memory)
    return scan


class PlannerStructs:
    """The structs over buffers of `buffer_shapes`, [N, ...] each: `planner` holds them all."""

    def __init__(self, cfg: PlannerConfig, env_cfg: NavigationConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        self.cfg = cfg = within_limit(cfg, env_cfg.speed_limit)
        self.env_cfg, self.tensors = env_cfg, tensors
        self.device = tensors["cells"].device
        self.planner = p = Planner()
        p.search, p.map, p.cost, p.movers = self._search(), self._map(), self._cost(), movers_of(tensors)
        p.guard = guard_of(env_cfg, tensors["planes"], cfg.guard)
        p.acc = wp.from_torch(tensors["acc"], dtype=wp.vec3)
        seconds, lags = np.array([env_cfg.dt_s * env_cfg.decimation]), (cfg.lag_s, min(cfg.lag_s, VERTICAL_LAG_S))
        p.step = self._array(np.stack([response(seconds, lag)[0, 2] for lag in lags]), wp.vec3)

    def _array(self, values: np.ndarray, dtype: Any = wp.float32) -> Any:
        return array(values, self.device, dtype)

    def _map(self) -> LocalMap:
        m, t = LocalMap(), self.tensors
        m.size = window_cells(self.env_cfg.lidar_range_m)
        cells = t["cells"]
        m.cells = wp.array(ptr=cells.data_ptr(), shape=tuple(cells.shape), dtype=wp.uint64, device=str(self.device))
        m.centre = wp.from_torch(t["centre"], dtype=wp.vec2i)
        m.fresh = wp.from_torch(t["fresh"])
        m.disc = self._array(disc(), wp.vec3i)
        return m

    def _cost(self) -> CostToGo:
        w, t, cfg = CostToGo(), self.tensors, self.cfg
        w.length, w.slow, w.age = (wp.from_torch(t[name]) for name in ("length", "slow", "age"))
        w.corner = wp.from_torch(t["corner"], dtype=wp.vec2)
        near = [20.0 if away <= self.env_cfg.collision_radius_m else 1.0 for away in ring_distances()]
        near[3] += cfg.narrow
        near[4] += cfg.narrow / 2
        w.slowness = self._array(np.array(near))
        w.every, w.rounds = cfg.ways_every, 3
        return w

    def _search(self) -> Search:
        cfg, env_cfg, s = self.cfg, self.env_cfg, Search()
        times = (np.arange(round(cfg.horizon_s / cfg.step_s)) + 1.0) * cfg.step_s
        flat, upright = looks(cfg, cfg.lag_s), looks(cfg, min(cfg.lag_s, VERTICAL_LAG_S))
        s.commands = self._array(candidates(cfg), wp.vec3)
        s.flat, s.upright = self._array(flat, wp.vec3), self._array(upright, wp.vec3)
        s.kinds = 2 if cfg.brief_s else 1
        s.price = self._array(cfg.margin_cost * np.exp(-times / cfg.fading_s))
        s.mover_price = self._array(cfg.mover_cost * np.exp(-times / cfg.fading_s))
        s.mover_margin = cfg.mover_margin_m
        s.ring_m = self._array(ring_distances())
        s.step_s, s.body, s.margin = cfg.step_s, env_cfg.collision_radius_m + cfg.skin_m, cfg.margin_m
        s.crash_cost, s.crash_relief = cfg.crash_cost, cfg.crash_relief
        s.goal_radius = env_cfg.goal_radius_m
        s.floor, s.ceiling = env_cfg.min_height_m + FLOOR_M, env_cfg.max_height_m - CEILING_M
        s.alarm = max(1, round(min(cfg.alarm_s, cfg.horizon_s) / cfg.step_s))
        s.gain = cfg.fast * cfg.horizon_s
        s.near = s.gain + env_cfg.goal_radius_m + 1.0
        return s
