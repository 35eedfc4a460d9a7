"""What the planner's kernels work with, for N drones: buffers, and the structs that hand them over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import warp as wp

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.orca.kernel import Guard
from fledge.tasks.navigation.orca.structs import caution_of, num_planes
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.cost_to_go import PLACES, Ways
from fledge.tasks.navigation.planner.local_map import LocalMap, Scan, disc, ring_distances, window_cells
from fledge.tasks.navigation.planner.search import (
    CEILING_M,
    FLOOR_M,
    MOVERS,
    VERTICAL_LAG_S,
    Movers,
    Search,
    candidates,
    looks,
    response,
)

Shapes = dict[str, tuple[torch.dtype, tuple[int, ...]]]


def kit_shapes(cfg: PlannerConfig, world: NavigationConfig) -> Shapes:
    """Buffers of one drone: dtype and shape by name."""
    f32, i32, places = torch.float32, torch.int32, PLACES * PLACES
    return {
        "cells": (torch.int64, (2 * window_cells(world.lidar_range_m) ** 2,)),
        "centre": (i32, (2,)),
        "fresh": (torch.bool, ()),
        "acc": (f32, (3,)),
        "length": (f32, (places,)),
        "slow": (f32, (places,)),
        "corner": (f32, (2,)),
        "age": (i32, ()),
        "place": (f32, (MOVERS, 4)),
        "motion": (f32, (MOVERS, 4)),
        "planes": (f32, (num_planes(world) if cfg.guard else 0, 4)),
    }


def kit_bytes(cfg: PlannerConfig, world: NavigationConfig) -> int:
    """Memory of one drone's buffers."""
    shapes = kit_shapes(cfg, world).values()
    return sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in shapes)


def within_limit(cfg: PlannerConfig, limit: float) -> PlannerConfig:
    """The same settings, no faster than the drone can be told to fly: what is cut off axis by axis flies another way."""
    speeds = {name: min(getattr(cfg, name), limit) for name in ("slow", "middle", "fast", "climb")}
    return dataclasses.replace(cfg, **speeds)


def array(values: np.ndarray, device: torch.device, dtype: Any = wp.float32) -> Any:
    return wp.array(np.ascontiguousarray(values), dtype=dtype, device=str(device))


def scan_of(world: NavigationConfig, lidar: torch.Tensor, cfg: PlannerConfig | None = None) -> Scan:
    """How a LiDAR buffer [N, H * V] is to be read; without a planner's settings nothing is kept of it."""
    scan, angles = Scan(), np.radians(np.asarray(world.lidar_elevations_deg))
    scan.lidar = wp.from_torch(lidar)
    scan.azimuths, scan.range_m = world.lidar_azimuths, world.lidar_range_m
    scan.cosine, scan.sine = array(np.cos(angles), lidar.device), array(np.sin(angles), lidar.device)
    scan.standing = scan.memory = 0
    if cfg is not None:
        scan.standing, scan.memory = int(cfg.standing), int(cfg.memory)
    return scan


class Kit:
    """The structs over buffers of `kit_shapes`, [N, ...] each: `map`, `ways`, `movers`, `search`, `guard`, `step`.

    `step` is what velocity, acceleration and command make of the acceleration within a decision: flat, upright.
    """

    def __init__(self, cfg: PlannerConfig, world: NavigationConfig, tensors: Mapping[str, torch.Tensor]) -> None:
        self.cfg = cfg = within_limit(cfg, world.speed_limit)
        self.world, self.tensors = world, tensors
        self.device = tensors["cells"].device
        self.movers = Movers()
        self.movers.place, self.movers.motion = (
            wp.from_torch(tensors[name], dtype=wp.vec4) for name in ("place", "motion")
        )
        self.map, self.ways, self.search, self.guard = self._map(), self._ways(), self._search(), self._guard()
        seconds, lags = np.array([world.dt_s * world.decimation]), (cfg.lag_s, min(cfg.lag_s, VERTICAL_LAG_S))
        self.step = self._array(np.stack([response(seconds, lag)[0, 2] for lag in lags]), wp.vec3)

    def _array(self, values: np.ndarray, dtype: Any = wp.float32) -> Any:
        return array(values, self.device, dtype)

    def _map(self) -> LocalMap:
        m, t = LocalMap(), self.tensors
        m.size = window_cells(self.world.lidar_range_m)
        cells = t["cells"]
        m.cells = wp.array(ptr=cells.data_ptr(), shape=tuple(cells.shape), dtype=wp.uint64, device=str(self.device))
        m.centre = wp.from_torch(t["centre"], dtype=wp.vec2i)
        m.fresh = wp.from_torch(t["fresh"])
        m.disc = self._array(disc(), wp.vec3i)
        return m

    def _ways(self) -> Ways:
        w, t, cfg = Ways(), self.tensors, self.cfg
        w.length, w.slow, w.age = (wp.from_torch(t[name]) for name in ("length", "slow", "age"))
        w.corner = wp.from_torch(t["corner"], dtype=wp.vec2)
        near = [20.0 if away <= self.world.collision_radius_m else 1.0 for away in ring_distances()]
        near[3] += cfg.narrow
        near[4] += cfg.narrow / 2
        w.slowness = self._array(np.array(near))
        w.every, w.rounds = cfg.ways_every, 3
        return w

    def _guard(self) -> Guard:
        g = Guard()
        g.on, g.caution = int(self.cfg.guard), caution_of(self.world)
        if self.cfg.guard:
            g.planes = wp.from_torch(self.tensors["planes"], dtype=wp.vec4)
        return g

    def _search(self) -> Search:
        cfg, world, s = self.cfg, self.world, Search()
        times = (np.arange(round(cfg.horizon_s / cfg.step_s)) + 1.0) * cfg.step_s
        flat, upright = looks(cfg, cfg.lag_s), looks(cfg, min(cfg.lag_s, VERTICAL_LAG_S))
        s.commands = self._array(candidates(cfg), wp.vec3)
        s.flat, s.upright = self._array(flat, wp.vec3), self._array(upright, wp.vec3)
        s.kinds = 2 if cfg.brief_s else 1
        s.price = self._array(cfg.margin_cost * np.exp(-times / cfg.fading_s))
        s.mover_price = self._array(cfg.mover_cost * np.exp(-times / cfg.fading_s))
        s.mover_margin = cfg.mover_margin_m
        s.ring_m = self._array(ring_distances())
        s.step_s, s.body, s.margin = cfg.step_s, world.collision_radius_m + cfg.skin_m, cfg.margin_m
        s.crash_cost, s.crash_relief = cfg.crash_cost, cfg.crash_relief
        s.goal_radius = world.goal_radius_m
        s.floor, s.ceiling = world.min_height_m + FLOOR_M, world.max_height_m - CEILING_M
        s.alarm = max(1, round(min(cfg.alarm_s, cfg.horizon_s) / cfg.step_s))
        s.gain = cfg.fast * cfg.horizon_s
        s.near = s.gain + world.goal_radius_m + 1.0
        return s
