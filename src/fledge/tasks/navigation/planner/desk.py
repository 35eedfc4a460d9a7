"""Buffers of the planner for N drones, and the launch that works on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import warp as wp

from fledge.core.errors import MemoryBudgetError
from fledge.core.machine import available_bytes
from fledge.sim.launch import Call
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.kernel import plan
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
from fledge.tasks.navigation.planner.way import PLACES, Ways
from fledge.tasks.navigation.steering import Desk


class PlannerDesk(Desk):
    """Maps, ways and searches of N drones."""

    remembered = ("cells", "centre", "fresh", "acc", "length", "corner", "age")

    def __init__(
        self, cfg: PlannerConfig, world: NavigationConfig, count: int, device: torch.device, shield: bool = False
    ) -> None:
        self.cfg = cfg
        self.size = window_cells(world.lidar_range_m)
        self._check_memory(count, device)
        f32, i32, places = torch.float32, torch.int32, PLACES * PLACES
        own: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "cells": (torch.int64, (2 * self.size * self.size,)),
            "centre": (i32, (2,)),
            "acc": (f32, (3,)),
            "length": (f32, (places,)),
            "slow": (f32, (places,)),
            "corner": (f32, (2,)),
            "age": (i32, ()),
            "place": (f32, (MOVERS, 4)),
            "motion": (f32, (MOVERS, 4)),
        }
        super().__init__(world, count, device, own)
        t = self.tensors
        movers = Movers()
        movers.place, movers.motion = (wp.from_torch(t[name], dtype=wp.vec4) for name in ("place", "motion"))
        rows = [wp.from_torch(t[name]) for name in ("state", "dynamic_obstacle", "pose")]
        call = Call(
            plan,
            [
                *rows,
                self._scan(),
                self._search(),
                self._map(),
                self._ways(),
                movers,
                self._step(),
                int(shield),
                *(wp.from_torch(t[name], dtype=wp.vec3) for name in ("wanted", "acc", "command")),
            ],
        )
        self.program = self.launcher.record([call], count)

    def _check_memory(self, count: int, device: torch.device) -> None:
        each = 16 * self.size * self.size + 8 * PLACES * PLACES + 2000
        need, have = count * each, available_bytes(device)
        if need > 0.8 * have:
            raise MemoryBudgetError(
                f"The planner's maps of {count:,} drones need {need / 2**30:.1f} GiB, but {have / 2**30:.1f} GiB are "
                f"available: lower env.num_envs to at most {int(0.8 * have / each):,}."
            )

    def _map(self) -> LocalMap:
        m, t = LocalMap(), self.tensors
        m.size = self.size
        cells = t["cells"]
        m.cells = wp.array(ptr=cells.data_ptr(), shape=tuple(cells.shape), dtype=wp.uint64, device=str(self.device))
        m.centre = wp.from_torch(t["centre"], dtype=wp.vec2i)
        m.fresh = wp.from_torch(t["fresh"])
        m.disc = self.array(disc(), wp.vec3i)
        return m

    def _ways(self) -> Ways:
        w, t, cfg = Ways(), self.tensors, self.cfg
        w.length, w.slow, w.age = (wp.from_torch(t[name]) for name in ("length", "slow", "age"))
        w.corner = wp.from_torch(t["corner"], dtype=wp.vec2)
        near = [20.0 if away <= self.world.collision_radius_m else 1.0 for away in ring_distances()]
        near[3] += cfg.narrow
        near[4] += cfg.narrow / 2
        w.slowness = self.array(np.array(near))
        w.every, w.rounds = cfg.ways_every, 3
        return w

    def _scan(self) -> Scan:
        scan = self.scan()
        scan.standing, scan.memory = int(self.cfg.standing), int(self.cfg.memory)
        return scan

    def _search(self) -> Search:
        cfg, world, s = self.cfg, self.world, Search()
        times = (np.arange(round(cfg.horizon_s / cfg.step_s)) + 1.0) * cfg.step_s
        flat, upright = looks(cfg, cfg.lag_s), looks(cfg, min(cfg.lag_s, VERTICAL_LAG_S))
        s.commands = self.array(candidates(cfg), wp.vec3)
        s.flat, s.upright = self.array(flat, wp.vec3), self.array(upright, wp.vec3)
        s.kinds = 2 if cfg.brief_s else 1
        s.price = self.array(cfg.margin_cost * np.exp(-times / cfg.fading_s))
        s.mover_price = self.array(cfg.mover_cost * np.exp(-times / cfg.fading_s))
        s.mover_margin = cfg.mover_margin_m
        s.ring_m = self.array(ring_distances())
        s.step_s, s.body, s.margin = cfg.step_s, world.collision_radius_m + cfg.skin_m, cfg.margin_m
        s.crash_cost, s.crash_relief = cfg.crash_cost, cfg.crash_relief
        s.goal_radius = world.goal_radius_m
        s.floor, s.ceiling = world.min_height_m + FLOOR_M, world.max_height_m - CEILING_M
        s.alarm = max(1, round(min(cfg.alarm_s, cfg.horizon_s) / cfg.step_s))
        s.gain = cfg.fast * cfg.horizon_s
        s.near = s.gain + world.goal_radius_m + 1.0
        return s

    def _step(self) -> Any:
        """What velocity, acceleration and command make of the acceleration within a decision: two rows, flat and upright."""
        seconds = np.array([self.world.dt_s * self.world.decimation])
        rows = [response(seconds, lag)[0, 2] for lag in (self.cfg.lag_s, min(self.cfg.lag_s, VERTICAL_LAG_S))]
        return self.array(np.stack(rows), wp.vec3)
