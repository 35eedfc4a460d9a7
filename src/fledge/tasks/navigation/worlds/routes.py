"""Starts and goals in a world, with the length of the shortest path between them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import warp as wp

from fledge.core.errors import InputError
from fledge.core.machine import default_threads
from fledge.core.random import Purpose, philox
from fledge.envs.launch import Call, Launcher
from fledge.tasks.navigation.worlds.free_space import FreeSpace, find_free_space, height_above_ground
from fledge.tasks.navigation.worlds.kernels import shared
from fledge.tasks.navigation.worlds.kernels.paths import NEIGHBOURS, Nodes, pull_taut, sweep_lengths
from fledge.tasks.navigation.worlds.voxels import World

GOALS = 32
NODE_M = 0.3  # distance of the coarse grid's nodes; more if there would be over MAX_NODES of them
MAX_NODES = 8_000_000
MAX_LENGTHS = 64_000_000  # nodes times goals: 256 MB
MAX_CORNERS = 64  # of a path that are kept
ATTEMPTS = 16  # random starts for a route before all that are far enough are listed


@dataclass
class Routes:
    """Starts and goals of R flights, in one connected part of free space."""

    start: np.ndarray  # [R, 3] float32, m
    goal: np.ndarray  # [R, 3] float32, m
    length: np.ndarray  # [R] float32, m: shortest path with the clearance; at least the straight distance
    paths: list[np.ndarray]  # [n, 3] float32 each, m: corners of that path, from start to goal


def draw_routes(
    world: World,
    seed: int,
    count: int = 1024,
    clearance_m: float = 0.5,
    heights_m: tuple[float, float] = (0.5, 2.5),
    min_length_m: float = 3.0,
    space: FreeSpace | None = None,
) -> Routes:
    """Return random routes: starts and goals in the largest connected part of free space, a pure function of the arguments.

    Goals are drawn uniformly, and for each goal several starts. Lengths are those of a path through a coarser grid, pulled
    taut: usually a few percent longer than the shortest path, never shorter than the straight line. At corners a path may
    come up to 0.15 m (half a node) closer to solid than the clearance.

    Args:
        world: Where to fly.
        seed: Seed of the draws.
        count: Number of routes R.
        clearance_m: Smallest distance of a path from anything solid and from the bounds, m.
        heights_m: Lowest and highest start and goal above the solid below them, or above the lower bound, m.
        min_length_m: Shortest route, m, measured along the coarser grid, which makes routes up to 13 % longer.
        space: The world's free space with this clearance, if it is already known.

    Raises:
        InputError: There is no free space, none at these heights, or none far enough from another.
    """
    space = space or find_free_space(world, clearance_m)
    choices = _ends(world, space, heights_m)
    graph = _Graph(world, space)
    goals = min(GOALS, count, max(1, MAX_LENGTHS // graph.nodes))
    ends = choices[_draw(np.arange(goals), 0, Purpose.GOAL, seed, len(choices))]
    lengths = graph.lengths(ends)
    starts, goal_of = _starts(graph, choices, lengths, seed, count, min_length_m, world.name)
    start, goal = graph.point(choices[starts]), graph.point(ends[goal_of])
    taut, paths = graph.taut(lengths, goal_of, graph.node_of(choices[starts]), start, goal)
    return Routes(start, goal, taut, paths)


def _draw(who: np.ndarray, when: int, purpose: Purpose, seed: int, below: int) -> np.ndarray:
    """Return a random index below `below` for each number in `who`."""
    zeros = np.zeros_like(who)
    words = philox(np.stack([who, zeros + when, zeros + int(purpose), zeros], axis=-1), seed)
    return (words[:, 0].astype(np.uint64) * np.uint64(below) >> np.uint64(32)).astype(np.int64)


def _ends(world: World, space: FreeSpace, heights_m: tuple[float, float]) -> np.ndarray:
    """Return the flat indices of all voxels in which a route may start or end."""
    low, high = heights_m
    if not 0.0 <= low <= high:
        raise InputError(f"heights_m is {heights_m}, but must be two heights, the lower first.")
    height = (height_above_ground(world.solid) + 0.5) * world.cell_m
    choices = np.flatnonzero(space.inside & (height >= low) & (height <= high))
    if not len(choices):
        raise InputError(
            f"{world.name} has no reachable free space {low:g} to {high:g} m above the ground that is {space.clearance_m:g} m "
            "away from everything: check its scale and its up axis, or lower the clearance."
        )
    return choices


def _starts(
    graph: _Graph, choices: np.ndarray, lengths: np.ndarray, seed: int, count: int, min_length_m: float, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each route the start, as an index into `choices`, and the number of its goal."""
    longest = lengths[:, graph.has_any(choices)].max(axis=1)
    useful = np.flatnonzero(longest >= min_length_m)
    if not len(useful):
        raise InputError(
            f"{name} is too small: the longest of the routes has {longest.max():.1f} m, but min_length_m is {min_length_m:g}: "
            "check the scale, or lower min_length_m or the clearance."
        )
    routes = np.arange(count)
    goal_of = useful[routes % len(useful)]
    starts = np.zeros(count, np.int64)
    open_ = np.ones(count, bool)
    for attempt in range(ATTEMPTS):
        starts[open_] = _draw(routes[open_], attempt, Purpose.START, seed, len(choices))
        open_ = lengths[goal_of, graph.node_of(choices[starts])] < min_length_m
    for route in routes[open_]:
        far = np.flatnonzero(lengths[goal_of[route], graph.node_of(choices)] >= min_length_m)
        starts[route] = far[_draw(routes[route : route + 1], ATTEMPTS, Purpose.START, seed, len(far))[0]]
    return starts, goal_of


class _Graph:
    """A coarse grid over the free space of a world: a node stands for some voxels, and is open if one of them is inside."""

    def __init__(self, world: World, space: FreeSpace) -> None:
        self.world, self.shape = world, np.array(world.solid.shape)
        self.factor = max(1, round(NODE_M / world.cell_m))
        while (-(-self.shape // self.factor)).prod() > MAX_NODES:
            self.factor += 1
        self.sizes = -(-self.shape // self.factor) + 2  # with a closed border
        self.nodes = int(self.sizes.prod())
        voxel = self._middles(space.inside)
        opened = np.flatnonzero(voxel >= 0)
        places = np.zeros((self.nodes, 3), np.float32)
        places[opened] = self.point(voxel[opened])
        offsets = [o for o in itertools.product((-1, 0, 1), repeat=3) if o < (0, 0, 0)]
        flat = [-(x * int(self.sizes[1] * self.sizes[2]) + y * int(self.sizes[2]) + z) for x, y, z in offsets]
        step_m = [self.factor * world.cell_m * float(np.linalg.norm(o)) for o in offsets]
        assert len(offsets) == NEIGHBOURS
        self.struct = Nodes()
        self.struct.open = self._array(opened, wp.int32)
        self.struct.offset, self.struct.step_m = self._array(flat, wp.int32), self._array(step_m, wp.float32)
        self.struct.place = self._array(places, wp.vec3)
        self._mask = space.inside.view(np.uint8)
        self.struct.inside = shared(self._mask, wp.uint8)
        self.struct.origin, self.struct.cell_m = wp.vec3(*map(float, world.origin)), world.cell_m

    @staticmethod
    def _array(values: Any, dtype: Any) -> Any:
        return wp.array(np.asarray(values), dtype=dtype, device="cpu")

    def node_of(self, voxels: np.ndarray) -> np.ndarray:
        """Return the flat index of the node of each voxel, given by its flat index."""
        x, y, z = (index // self.factor + 1 for index in np.unravel_index(voxels, self.shape))
        return (x * self.sizes[1] + y) * self.sizes[2] + z

    def has_any(self, voxels: np.ndarray) -> np.ndarray:
        """Return which nodes hold any of the voxels, given by flat index, [nodes] bool."""
        mask = np.zeros(tuple(self.shape), bool)
        mask.reshape(-1)[voxels] = True
        return self._middles(mask) >= 0

    def point(self, voxels: np.ndarray) -> np.ndarray:
        """Return the centre of each voxel, [n, 3] float32, m."""
        index = np.stack(np.unravel_index(voxels, self.shape), axis=-1)
        return (self.world.origin + (index + 0.5) * self.world.cell_m).astype(np.float32)

    def _middles(self, mask: np.ndarray) -> np.ndarray:
        """Return for each node the one of its voxels in a mask that is nearest to its centre, [nodes] int64; -1: none."""
        voxel = np.full(tuple(self.sizes), -1, np.int64)
        inner = voxel[1:-1, 1:-1, 1:-1]
        middle = (self.factor - 1) / 2
        offsets = sorted(np.ndindex(*[self.factor] * 3), key=lambda o: sum((k - middle) ** 2 for k in o))
        for offset in offsets:
            part = mask[tuple(slice(k, None, self.factor) for k in offset)]
            target = inner[: part.shape[0], : part.shape[1], : part.shape[2]]
            index = np.nonzero(part & (target < 0))
            target[index] = np.ravel_multi_index(
                tuple(i * self.factor + k for i, k in zip(index, offset, strict=True)), tuple(self.shape)
            )
        return voxel.reshape(-1)

    def _run(self, call: Call, size: int) -> None:
        launcher = Launcher("cpu", default_threads())
        try:
            launcher.run(launcher.record([call], size))
        finally:
            launcher.close()

    def lengths(self, goals: np.ndarray) -> np.ndarray:
        """Return the length of the shortest path along the grid from each node to each goal, [G, nodes] float32, m."""
        lengths = np.full((len(goals), self.nodes), np.inf, np.float32)
        self._run(
            Call(sweep_lengths, [self.struct, self._array(self.node_of(goals), wp.int32), shared(lengths, wp.float32)]),
            len(goals),
        )
        return lengths

    def taut(
        self, lengths: np.ndarray, goal_of: np.ndarray, nodes: np.ndarray, start: np.ndarray, goal: np.ndarray
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the length of the path of each route, pulled taut, [R] float32, m, and its corners."""
        taut, count = np.zeros(len(goal_of), np.float32), np.zeros(len(goal_of), np.int32)
        corners = np.zeros((len(goal_of), MAX_CORNERS, 3), np.float32)
        args = [shared(lengths, wp.float32)]
        args += [self._array(goal_of, wp.int32), self._array(nodes, wp.int32)]
        args += [self._array(start, wp.vec3), self._array(goal, wp.vec3)]
        args += [shared(taut, wp.float32), shared(corners, wp.vec3), shared(count, wp.int32)]
        self._run(Call(pull_taut, [self.struct, *args]), len(goal_of))
        ends = zip(corners, count, goal, strict=True)
        return taut, [np.concatenate([path[:number], end[None]]) for path, number, end in ends]
