"""The bank of maps: many forests with their crowds, replaced one by one in the background.

A slot is the memory of one map; K slots form a ring. Map number q (0, 1, 2, ...) has the key (q, bank), is stored in slot
q % K, and is in use while head <= q < head + active, with head = clock // refresh_steps. A slot is rebuilt only when no
drone can still be flying in it: K exceeds `active` by more than the number of maps replaced during the longest episode.
So the map of an episode depends only on clock and counters, never on the speed of threads.
"""

from __future__ import annotations

import functools
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
import warp as wp

from fledge.core.errors import ConfigError, InputError, MemoryBudgetError
from fledge.core.machine import available_bytes
from fledge.core.random import derive_seed, split_seed
from fledge.envs.launch import Call, Launcher
from fledge.envs.streams import on_torch_stream
from fledge.tasks.navigation.config import Layout, Movers, NavigationConfig
from fledge.tasks.navigation.physics.arena import ROWS, SIDES, place_arena
from fledge.tasks.navigation.physics.columns import BUCKETS, Columns
from fledge.tasks.navigation.physics.crowd import Crowd, crowd_kinds, place_crowd, step_crowd
from fledge.tasks.navigation.physics.parallel_maps import AT_ONCE, launch_drawing
from fledge.tasks.navigation.physics.paths import place_paths, step_paths
from fledge.tasks.navigation.physics.pedestrians import (
    PLAN_S,
    PLANES,
    place_pedestrians,
    plan_pedestrians,
    walk_pedestrians,
)
from fledge.tasks.navigation.physics.structs import Maps, allocate, bind
from fledge.tasks.navigation.physics.terrain import CELLS, WALLS, place_boxes, place_walls
from fledge.tasks.navigation.physics.voxel_worlds import VoxelWorlds, is_scene
from fledge.tasks.navigation.physics.walkers import place_walkers, step_walkers

NEVER = 2**31 - 1
BANK_FLAG = 0x80000000  # keys of bank maps; maps made per episode use (env, episode) below it


class MapBank:
    """Holds, builds and replaces all maps of an env; `maps` is the struct that kernels read."""

    def __init__(self, cfg: NavigationConfig, device: torch.device, seed: int, bank: int, launcher: Launcher) -> None:
        self.cfg, self.device, self.launcher, self.number = cfg, device, launcher, bank
        # Keys of maps made per episode, (env, episode), do not hold the bank, so banks differ in their seed there.
        self.seed = wp.vec2ui(*split_seed(derive_seed(seed, bank) if cfg.fresh_maps and bank else seed))
        scene = is_scene(cfg)  # a map for each drone is enough
        self.active = cfg.num_envs if cfg.fresh_maps else min(cfg.num_maps, cfg.num_envs) if scene else cfg.num_maps
        self.slots = self.active
        if cfg.refresh_steps:
            self.slots += -(-(cfg.longest_episode_steps + cfg.decimation) // cfg.refresh_steps) + 2
        self._check_memory()
        self.worlds = VoxelWorlds(cfg, self.slots, device, seed, bank) if cfg.world else None
        self.arena = not cfg.world and cfg.layout is Layout.arena
        k, m, b = (
            self.slots,
            cfg.moving_obstacles,
            0 if cfg.world else cfg.static_obstacles + (WALLS if cfg.walls else 0),
        )
        if self.arena:
            b = cfg.static_obstacles * ROWS + SIDES
        shapes: dict[int | str, tuple[int, ...]] = {1: (k,), 2: (k, m), 3: (cfg.decimation, k, m), "kinds": (m,)}
        crowd, tensors = allocate(Crowd, shapes, device)
        self.scene = self.worlds.scene if self.worlds else None
        self.pedestrians = cfg.movers is Movers.pedestrians
        if self.scene and self.pedestrians:
            raise ConfigError(
                f"env.movers=pedestrians does not work with env.world={cfg.world}, whose movers have paths of their own: set "
                "env.movers=roam."
            )
        kinds = crowd_kinds(m, swings=self.arena, standing=self.pedestrians)
        kinds = self.scene.movers.kinds[:m] if self.scene else kinds
        self.kinds = tensors.pop("kinds").copy_(torch.as_tensor(kinds))
        crowd.swings, crowd.floating, crowd.speed = int(self.arena), int(cfg.floating_boxes), cfg.mover_speed
        self.tensors = {"keys": self._zeros(torch.int32, k, 2), "clock": self._zeros(torch.int32, 1), **tensors}
        self.boxes = self._zeros(torch.int32, k, b, 4)  # inner cells: x0, y0, x1, y1
        self.heights = self._zeros(torch.float32, k, b)  # m
        self._boxes: list[Any] = [wp.from_torch(self.boxes, dtype=wp.vec4i), wp.from_torch(self.heights)]
        self.grid = self._zeros(torch.uint8, 0 if self.worlds else k, CELLS * CELLS)
        drawn = min(k, AT_ONCE)  # at once
        on_gpu = device.type == "cuda" and not self.worlds
        self._rows = wp.from_torch(self._zeros(torch.uint8, drawn, CELLS * CELLS)) if on_gpu else None
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None  # builds the next map
        self.maps = bind(Maps, {"grid": self.grid, **self.tensors})
        self.maps.crowd = crowd
        self.maps.columns, self.columns = allocate(Columns, {2: (k, b), "first": (k, BUCKETS + 1)}, device)
        if self.worlds:
            self.maps.voxels = self.worlds.struct
        self._pending: Future[None] | torch.cuda.Event | None = None
        self._head = 0
        self._share = 1.0
        if not cfg.fresh_maps:
            self._assign(np.arange(self.active), np.arange(self.active), born=0)
            self.build(np.arange(self.active))
            self._build_next()

    def _zeros(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def _check_memory(self) -> None:
        """Raise MemoryBudgetError if the maps of all slots do not fit into memory."""
        cfg = self.cfg
        per_map = (
            (0 if cfg.world else CELLS * CELLS)
            + 40 * cfg.static_obstacles
            + 4 * BUCKETS
            + 12 * cfg.moving_obstacles * (3 + cfg.decimation)
        )
        need, have = self.slots * per_map, available_bytes(self.device)
        if need > 0.8 * have:
            most = int(0.8 * have / per_map) - (self.slots - self.active)
            name = "env.num_envs (with env.fresh_maps)" if cfg.fresh_maps else "env.num_maps"
            fix = f"lower {name} to at most {most:,}"
            if most < 1:
                fix = "raise env.map_refresh_steps, or lower env.moving_obstacles or env.decimation"
            raise MemoryBudgetError(
                f"{self.slots:,} maps need {need / 2**30:.1f} GiB, but {have / 2**30:.1f} GiB are available: {fix}."
            )

    def crowd_calls(self) -> list[Call]:
        """Return the kernel launches that move all moving obstacles by one decision; an empty list if there are none."""
        cfg, maps = self.cfg, self.maps
        if not cfg.moving_obstacles:
            return []
        if self.worlds and self.scene:
            args = [maps.clock, cfg.dt_s, maps.voxels.world, self.worlds.paths, maps.crowd]
            return [Call(step_paths, args, cfg.moving_obstacles)]
        if self.pedestrians:
            return self._pedestrian_calls()
        if self.worlds:
            args = [maps.keys, maps.clock, cfg.dt_s, self.seed, maps.voxels, maps.crowd]
            return [Call(step_walkers, args, cfg.moving_obstacles)]
        return [Call(step_crowd, [maps.keys, maps.clock, cfg.dt_s, self.seed, maps.crowd], cfg.moving_obstacles)]

    def _pedestrian_calls(self) -> list[Call]:
        """Return the launches that plan and walk in turns, `PLAN_S` at a time."""
        cfg, obstacles = self.cfg, self.cfg.moving_obstacles
        planes: Any = wp.zeros((self.slots * obstacles, PLANES), dtype=wp.vec4, device=str(self.device))
        planned: Any = wp.zeros((self.slots, obstacles), dtype=wp.vec3, device=str(self.device))
        calls, period = [], max(1, round(PLAN_S / cfg.dt_s))
        for begin in range(0, cfg.decimation, period):
            steps = min(period, cfg.decimation - begin)
            where = [cfg.dt_s, self.seed, int(self.worlds is not None), self.maps, planes, planned]
            calls.append(Call(plan_pedestrians, [begin, steps, period, *where], obstacles))
            calls.append(Call(walk_pedestrians, [begin, steps, cfg.dt_s, self.maps, planned], obstacles))
        return calls

    def movers_on(self, position: int) -> int:
        """Return the number of moving obstacles on map number `position`; maps use the shares of `movers_cycle` in turn."""
        shares = self.cfg.movers_cycle
        return round(self.cfg.moving_obstacles * shares[position % len(shares)])

    def set_movers_share(self, share: float) -> None:
        """Set the share of moving obstacles, 0 to 1, that is active on every map; a curriculum raises it."""
        self.wait()
        self._share = share
        self.tensors["count"].copy_(self._shown(self.tensors["placed"]))

    def _shown(self, placed: torch.Tensor) -> torch.Tensor:
        return (placed.double() * self._share).round().int()

    def _assign(self, slots: np.ndarray, positions: np.ndarray, born: int) -> None:
        keys = np.stack([positions, np.full_like(positions, BANK_FLAG | self.number)], 1).astype(np.uint32)
        self._set_keys(slots, keys, [self.movers_on(int(p)) for p in positions], born)

    def _set_keys(self, slots: np.ndarray, keys: np.ndarray, counts: list[int], born: int) -> None:
        index = torch.as_tensor(slots, device=self.device, dtype=torch.long)
        self.tensors["keys"][index] = torch.as_tensor(keys.astype(np.uint32).view(np.int32), device=self.device)
        self.tensors["placed"][index] = torch.as_tensor(counts, dtype=torch.int32, device=self.device)
        self.tensors["count"][index] = self._shown(self.tensors["placed"][index])
        self.tensors["born"][index] = born

    def build(self, slots: np.ndarray, crowd: bool = True) -> None:
        """Build the forests of some slots from their keys, in parallel threads; with `crowd`, also place moving obstacles."""
        if len(slots):
            shards = self.launcher.shards(len(slots))
            build = self._build_on_this_thread
            with on_torch_stream(self.device):
                self.launcher.run_tasks([functools.partial(build, slots[a : a + n], crowd) for a, n in shards])

    def _build_on_this_thread(self, slots: np.ndarray, crowd: bool) -> None:
        device, n, num_boxes, maps = str(self.device), len(slots), self.cfg.static_obstacles, self.maps
        index: Any = wp.array(slots.astype(np.int32), device=device)
        if self.worlds:
            if crowd and self.scene:
                wp.launch(place_paths, n, [index, maps.voxels.world, self.worlds.paths, maps.crowd], device=device)
            elif crowd and not self.pedestrians:
                wp.launch(place_walkers, n, [index, maps.keys, self.seed, maps.voxels, maps.crowd], device=device)
            elif crowd:
                wp.launch(place_pedestrians, n, [index, self.seed, 1, maps], device=device)
            return
        boxes, heights = self._boxes
        place = place_arena if self.arena else place_boxes
        wp.launch(place, n, [index, maps.keys, num_boxes, self.seed, boxes, heights], device=device)
        if self.cfg.walls:
            wp.launch(place_walls, n, [index, maps.keys, num_boxes, boxes, heights], device=device)
        self.draw_boxes(slots)
        if crowd and self.pedestrians:
            wp.launch(place_pedestrians, n, [index, self.seed, 0, maps], device=device)
        elif crowd:
            wp.launch(place_crowd, n, [index, maps.keys, self.seed, maps.crowd], device=device)

    def draw_boxes(self, slots: np.ndarray) -> None:
        """Write the grids and the sorted columns of some slots from `boxes` and `heights`."""
        index: Any = wp.array(slots.astype(np.int32), device=str(self.device))
        boxes, heights = self._boxes
        launch_drawing(index, boxes, heights, self.maps.grid, self.maps.columns, self._rows, str(self.device))

    def build_for_episodes(self, envs: np.ndarray, global_envs: np.ndarray, episodes: np.ndarray, clock: int) -> None:
        """Build the maps of these envs' next episodes, each in the env's own slot; used with `env.fresh_maps`."""
        keys = np.stack([global_envs, episodes], 1).astype(np.uint32)
        self._set_keys(envs, keys, [self.movers_on(int(e)) for e in episodes], clock)
        self.build(envs)

    def _build_next(self) -> None:
        """Start to build the map of the next refresh in the background."""
        if not self.cfg.refresh_steps:
            return
        position = self._head + self.active
        slot = np.array([position % self.slots])
        # `born` is the clock at which the map comes into use; until then its crowd rests and no drone flies on it.
        self._assign(slot, np.array([position]), born=(self._head + 1) * self.cfg.refresh_steps)

        if self._side is None:
            self._pending = self.launcher.run_in_background(lambda: self._build_on_this_thread(slot, crowd=True))
            return
        self._side.wait_stream(torch.cuda.current_stream(self.device))  # its slot is no longer read, its key is written
        with torch.cuda.stream(self._side), on_torch_stream(self.device):
            self._build_on_this_thread(slot, crowd=True)
            self._pending = self._side.record_event()

    def before_step(self, clock: int) -> None:
        """Replace maps that are due at `clock`. Call this before anything reads the maps at `clock`."""
        refresh = self.cfg.refresh_steps
        while refresh and clock // refresh > self._head:
            self.wait()
            self._head += 1
            self._build_next()

    def wait(self) -> None:
        """Wait for the map that is being built, if any: on a GPU, let the present stream wait, and not the host.

        Raises:
            Exception: that of the thread that built the map, if it failed.
        """
        if isinstance(self._pending, Future):
            self._pending.result()
        elif self._pending is not None:
            torch.cuda.current_stream(self.device).wait_event(self._pending)
        self._pending = None

    def state_dict(self) -> dict[str, Any]:
        """Return keys, clock and crowds; forests are rebuilt from their keys."""
        self.wait()
        worlds = {"worlds": self.worlds.digest} if self.worlds else {}
        return {"head": self._head, "share": self._share, **worlds, **{k: v.clone() for k, v in self.tensors.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore keys, clock and crowds, and rebuild every forest."""
        self.wait()
        state = {"before": state["trail"][-1], **state}  # older checkpoints lack it
        if self.worlds and state.get("worlds", own := self.worlds.digest) != own:  # older checkpoints lack it, too
            raise InputError(
                f"A file of env.world={self.cfg.world} has changed since this state was saved: restore it, or give the new "
                "file another name and pass it as env.world=FILE, so that the envs begin new episodes in it."
            )
        for name, tensor in self.tensors.items():
            if tuple(state[name].shape) != tuple(tensor.shape):
                raise InputError(
                    f"The saved maps have {name} of shape {tuple(state[name].shape)}, but this env needs "
                    f"{tuple(tensor.shape)}: use the saved numbers of maps and obstacles, and the saved env.decimation."
                )
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])
        self._head, self._share = int(state["head"]), float(state["share"])
        self.build(np.arange(self.slots), crowd=False)
