"""The voxel worlds that an env flies in: read or generated, fitted to the flying heights, with routes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import warp as wp

from fledge.core.errors import ConfigError, MemoryBudgetError
from fledge.core.machine import available_bytes
from fledge.core.paths import path_hint
from fledge.core.random import derive_seed
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.physics.near_boxes import NearBoxes, near_boxes, scans_objects
from fledge.tasks.navigation.physics.paths import make_paths
from fledge.tasks.navigation.physics.voxel_struct import Voxels
from fledge.tasks.navigation.worlds.distance import chebyshev
from fledge.tasks.navigation.worlds.routes import Routes, draw_routes
from fledge.tasks.navigation.worlds.scene import Scene
from fledge.tasks.navigation.worlds.triangles import cells_of_triangles
from fledge.tasks.navigation.worlds.world import MADE, SCENES, World, load_world, make_world

ROUTES = 1024
SHORTEST_M = 10.0
CLEARANCE_M = 0.1  # of routes, beyond the drone's radius
HEIGHTS_M = (0.5, 2.5)  # of starts and goals above the ground
SCENE_CELL_M = 1.0  # voxels of scenes; their surfaces are exact anyway


def fit_world(world: World, height_m: float) -> World:
    """Return a world in the env's frame: x = y = 0 in its middle, z = 0 on its ground, cut off at `height_m`.

    The ground is the upper side of the lowest layer of voxels if most of that layer is solid, else its lower side.
    """
    ground = int(world.solid[:, :, 0].mean() > 0.5)
    layers = min(world.solid.shape[2], ground + max(1, round(height_m / world.cell_m)))
    sides = np.array(world.solid.shape) * world.cell_m
    origin = np.array([-sides[0] / 2, -sides[1] / 2, -ground * world.cell_m])
    triangles = None if world.triangles is None else (world.triangles - world.origin + origin).astype(np.float32)
    return dataclasses.replace(world, solid=world.solid[:, :, :layers], origin=origin, triangles=triangles)


def is_scene(cfg: NavigationConfig) -> bool:
    """Return whether the env flies in a benchmark's scene."""
    return any(name in SCENES for name in cfg.world_names)


def shortest_route(world: World) -> float:
    """Return the length of the shortest route to draw, m: short flights say little, but a room has only short ones."""
    return min(SHORTEST_M, float(np.linalg.norm(np.array(world.solid.shape[:2]) * world.cell_m)) / 4)


class VoxelWorlds:
    """Worlds by the names in `env.world`, K map slots that use them in turn, and routes through them.

    Files are the same in every bank of maps, with other routes; generators make other worlds. Scenes have their own flight and
    movers (`paths`), the same number in every world.

    Args:
        slots: Number K of map slots.
        bank: Number of the map bank.
    """

    def __init__(self, cfg: NavigationConfig, slots: int, device: torch.device, seed: int, bank: int) -> None:
        own_seed, names = derive_seed(seed, bank), cfg.world_names
        self.worlds: list[World] = []
        self.number = np.zeros(slots, np.int32)
        known: dict[tuple[str, int], int] = {}
        for slot in range(slots):
            name = names[slot % len(names)]
            key = (name, slot // len(names) if name in MADE else 0)
            if key not in known:
                known[key] = len(self.worlds)
                self.worlds.append(self._make(name, own_seed, key[1], cfg.max_height_m))
            self.number[slot] = known[key]
            self._check_scene(cfg, self.worlds[-1].scene)
        self.reach_m = max(float(np.abs(world.bounds).max()) for world in self.worlds)
        self._check_memory(device)
        clearance = cfg.collision_radius_m + CLEARANCE_M
        self.routes = [
            world.scene.route()
            if world.scene
            else draw_routes(world, derive_seed(own_seed, n), ROUTES, clearance, HEIGHTS_M, shortest_route(world))
            for n, world in enumerate(self.worlds)
        ]
        reach_m = cfg.lidar_range_m if scans_objects(cfg, device) else 0.0
        self.struct, self._kept = pack(self.worlds, self.routes, self.number, device, reach_m)
        self.scene = self.worlds[0].scene
        if self.scene is not None:
            movers = [world.scene.movers for world in self.worlds if world.scene]
            self.paths, self._paths = make_paths(movers, cfg.moving_obstacles, str(device))

    @staticmethod
    def _check_scene(cfg: NavigationConfig, scene: Scene | None) -> None:
        """Raise ConfigError if a scene is not alone, lacks movers for `env.moving_obstacles`, or is to be seen as a grid."""
        if scene is None:
            return
        if len(cfg.world_names) > 1:
            raise ConfigError(
                f"env.world={cfg.world} names a scene and other worlds, but a scene has its own flight and movers: name "
                "one scene alone."
            )
        if cfg.moving_obstacles > (most := len(scene.movers.kinds)):
            raise ConfigError(
                f"env.moving_obstacles is {cfg.moving_obstacles}, but the scene {cfg.world} has {most} movers: set "
                f"env.moving_obstacles={most}, or fewer."
            )
        if cfg.grid_map:
            raise ConfigError(f"env.grid_map=true does not work in the scene {cfg.world}: set env.grid_map=false.")

    @staticmethod
    def _make(name: str, seed: int, index: int, height_m: float) -> World:
        if name in SCENES:
            return SCENES[name](seed + index, cell_m=SCENE_CELL_M)
        if name not in MADE and not os.path.lexists(name):
            raise ConfigError(
                f"env.world names {name}, which is not there.{path_hint(Path(name))} Paths count from the current folder: go "
                "to the one in which the run began, or pass env.world=FILE."
            )
        return fit_world(make_world(name, seed, index) if name in MADE else load_world(Path(name)), height_m)

    @functools.cached_property
    def digest(self) -> int:
        """A number that depends on every voxel and triangle, to notice a file that has changed since a run was saved."""
        total = hashlib.blake2b(digest_size=7)
        for world in self.worlds:
            total.update(repr((world.solid.shape, world.cell_m)).encode() + np.packbits(world.solid).tobytes())
            total.update(b"" if world.triangles is None else np.ascontiguousarray(world.triangles).tobytes())
        return int.from_bytes(total.digest())

    def _check_memory(self, device: torch.device) -> None:
        largest = max(world.solid.size for world in self.worlds)
        each = largest * (5 if any(world.triangles is not None for world in self.worlds) else 1)
        need, have = len(self.worlds) * each + 4 * largest, available_bytes(device)  # 4: while it is packed
        if need > 0.8 * have:
            raise MemoryBudgetError(
                f"{len(self.worlds)} worlds of up to {largest:,} voxels need {need / 2**30:.1f} GiB, but "
                f"{have / 2**30:.1f} GiB are available: name fewer worlds, lower env.num_maps, or use larger voxels."
            )


def as_bricks(distance: np.ndarray) -> np.ndarray:
    """Return voxels [X, Y, Z] by bricks of 4 x 4 x 4, [bricks, 64]; those beyond the world's end are 255."""
    padded = np.pad(distance, [(0, -size % 4) for size in distance.shape], constant_values=255)
    x, y, z = (size // 4 for size in padded.shape)
    return padded.reshape(x, 4, y, 4, z, 4).transpose(0, 2, 4, 1, 3, 5).reshape(-1, 64)


def pack(
    worlds: list[World], routes: list[Routes], number: np.ndarray, device: torch.device, reach_m: float
) -> tuple[Voxels, dict[str, Any]]:
    """Return worlds and routes as the struct for kernels, and the arrays that it points to.

    `reach_m` is the range within which boxes are listed.
    """
    count, most = len(worlds), max(world.solid.size for world in worlds)
    bricks = np.zeros(
        (count, max(math.prod(-(-size // 4) for size in world.solid.shape) for world in worlds)), np.uint8
    )
    cells = np.zeros((*bricks.shape, 64), np.uint8)
    first = np.zeros((0, 0), np.int32)
    lists, vertices = [np.zeros(0, np.int32)], [np.zeros((0, 3), np.float32)]
    has_triangles = any(world.triangles is not None for world in worlds)
    if has_triangles:
        first = np.zeros((count, most + 1), np.int32)
    entries = triangles = 0
    near: list[NearBoxes] = []
    for w, world in enumerate(worlds):
        size = world.solid.size
        distance = as_bricks(chebyshev(world.solid))
        cells[w, : len(distance)], bricks[w, : len(distance)] = distance, distance.min(axis=1)
        has_surface = None
        if world.triangles is not None:
            begin, ids = cells_of_triangles(world.triangles, world.origin, world.solid.shape, world.cell_m)
            first[w, : size + 1] = begin + entries
            lists.append((ids + triangles).astype(np.int32))
            vertices.append(world.triangles.reshape(-1, 3))
            entries += len(ids)
            triangles += len(world.triangles)
            has_surface = (np.diff(begin) > 0).reshape(world.solid.shape)
        near.append(near_boxes(world, has_surface, reach_m))
    near_lists = np.zeros((count, max(len(boxes.lists) for boxes in near), 2), np.int32)
    for w, boxes in enumerate(near):
        entry = sum(len(other.faces) for other in near[:w])
        near_lists[w, : len(boxes.lists)] = np.where(boxes.lists[:, 1:] < 0, boxes.lists, boxes.lists + entry)
    corners = np.concatenate([boxes.corners for boxes in near])
    arrays: dict[str, tuple[np.ndarray, Any]] = {
        "world": (number, wp.int32),
        "cells": (cells.reshape(count, -1), wp.uint8),
        "bricks": (bricks, wp.uint8),
        "size": (np.array([world.solid.shape for world in worlds], np.int32), wp.vec3i),
        "corner": (np.array([world.origin for world in worlds], np.float32), wp.vec3),
        "cell_m": (np.array([world.cell_m for world in worlds], np.float32), wp.float32),
        "list_first": (first, wp.int32),
        "lists": (np.concatenate(lists), wp.int32),
        "vertices": (np.concatenate(vertices), wp.vec3),
        "near": (near_lists, wp.vec2i),
        "near_shape": (np.array([boxes.shape for boxes in near], np.int32), wp.vec2i),
        "near_m": (np.array([boxes.side_m for boxes in near], np.float32), wp.float32),
        "box_low": (corners[:, 0], wp.vec3),
        "box_high": (corners[:, 1], wp.vec3),
        "box_faces": (np.concatenate([boxes.faces for boxes in near]), wp.int32),
        "start": (np.stack([r.start for r in routes]), wp.vec3),
        "goal": (np.stack([r.goal for r in routes]), wp.vec3),
        "length": (np.stack([r.length for r in routes]), wp.float32),
    }
    struct = Voxels()
    kept: dict[str, Any] = {}
    for name, (values, dtype) in arrays.items():
        kept[name] = wp.array(values, dtype=dtype, device=str(device))
        setattr(struct, name, kept[name])
    struct.triangles = int(has_triangles)
    return struct, kept
