"""Scenes: worlds of a published benchmark, with exact obstacles, a fixed start and goal, and movers on prescribed paths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fledge.tasks.navigation.worlds.readers import primitives
from fledge.tasks.navigation.worlds.routes import Routes
from fledge.tasks.navigation.worlds.triangles import cells_of_triangles
from fledge.tasks.navigation.worlds.voxels import World, grid_shape

CELL_M = 0.2  # side of a voxel, unless told otherwise; surfaces are exact with any
SIDES = 16  # of the prism that encloses a cylinder: at most 2 % wider


@dataclass
class Movers:
    """Paths of M movers, closed functions of the time t in seconds.

    The position is fold(origin + drift * t) + loop * (sin a + 2 sin 2a, cos a - 2 cos 2a, -sin 3a) with a = rate * t + phase,
    where fold reflects x and y at ± turn.
    """

    kinds: np.ndarray  # [M] int32, as in `physics.shapes`
    origin: np.ndarray  # [M, 3] float64, m
    drift: np.ndarray  # [M, 3] float64, m/s
    loop: np.ndarray  # [M, 3] float64, m
    pace: np.ndarray  # [M, 2] float64: rate in rad/s, phase in rad
    turn: np.ndarray  # [2] float64, m: where the drift turns back along x and y; at least |origin|


@dataclass
class Scene:
    """Flight, obstacles and movers of a benchmark's world. All coordinates are the benchmark's own."""

    start: tuple[float, float, float]  # m
    goal: tuple[float, float, float]  # m
    half_width_m: float  # obstacles are placed within this of y = 0: a flight that goes farther flies round
    boxes: np.ndarray  # [B, 6] float32, m: centre and size of each static obstacle, for viewers
    movers: Movers

    def route(self) -> Routes:
        """Return the one route from start to goal, a straight line."""
        path = np.array([self.start, self.goal], np.float32)
        return Routes(path[:1], path[1:], np.linalg.norm(path[1:] - path[:1], axis=1), [path])


def make_scene(
    name: str,
    scene: Scene,
    low: tuple[float, float],
    high: tuple[float, float, float],
    round_boxes: int = 0,
    cell_m: float = CELL_M,
) -> World:
    """Return the world of a scene: its boxes, of which the last `round_boxes` are upright cylinders, on flat ground.

    Args:
        low: Lower bound of the world along x and y, m.
        high: Upper bound along x, y and z, m.
        cell_m: Side of a voxel, m. Larger ones save memory; surfaces stay exact, since they are triangles.
    """
    origin = np.array([*low, -0.5 * cell_m])  # the ground lies in the middle of the lowest voxels
    size = np.array(high) - origin
    shape = grid_shape(size, cell_m)
    middle, half = origin[:2] + 0.5 * size[:2], 0.5 * size[:2] - 1e-3
    centres, sizes = np.split(scene.boxes.astype(np.float64)[:, None, None], 2, axis=-1)  # [B, 1, 1, 3] each
    edge = len(sizes) - round_boxes
    shapes = primitives.box(np.ones(3)), primitives.prism(0.5, 1.0, SIDES)
    boxes, prisms = (
        shape * sizes[part] + centres[part] for shape, part in zip(shapes, (np.s_[:edge], np.s_[edge:]), strict=True)
    )
    ground = primitives.plane(half) + np.append(middle, 0.0)
    triangles = np.concatenate([ground, boxes.reshape(-1, 3, 3), prisms.reshape(-1, 3, 3)]).astype(np.float32)
    first, _ = cells_of_triangles(triangles, origin, shape, cell_m)
    return World(name, (first[1:] > first[:-1]).reshape(shape), origin, cell_m, triangles, scene=scene)
