"""Scenes of published benchmarks: SANDO's obstacle worlds and FAPP's scene."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from fledge.tasks.navigation.physics.shapes import CUBE, CYLINDER, STANDING_Z_M, WIDTHS
from fledge.tasks.navigation.worlds.generators.canvas import Draws
from fledge.tasks.navigation.worlds.scene import Movers, Scene, make_scene
from fledge.tasks.navigation.worlds.voxels import CELL_M, World

MOVING, UPRIGHT = 0.65, 0.35  # shares: of SANDO's obstacles that move, of its static ones that are pillars
PILLAR_M, ACROSS_M, ALONG_M = (0.4, 0.4, 4.0), (0.4, 4.0, 0.4), (4.0, 0.4, 0.4)
FAPP_HALF_M, FAPP_HEIGHT_M = 25.0, 4.0
FAPP_STATIC, FAPP_MOVERS = 100, 100  # boxes and as many cylinders; movers
FAPP_WIDTHS_M, FAPP_SPEEDS = (0.4, 1.0), (0.5, 3.0)
FAPP_LANE_M, FAPP_LANE_HEIGHT_M = 27.0, 1.5
WALL_M = 0.4


def sando(count: int, name: str, seed: int, cell_m: float = 2 * CELL_M) -> World:
    """Return SANDO's world with `count` obstacles: what its published generator (mit-acl/sando) draws from this seed.

    Numbers come from Python's `random.seed(seed)`, in the order of that generator.
    """
    rng = random.Random(seed)
    moving = int(MOVING * count)
    static = count - moving
    pillars, upright = UPRIGHT * static, int(UPRIGHT * static)
    paths, boxes = [], []
    for i in range(count):
        x, y, z = 5.0 + 95.0 * rng.random(), -6.0 + 12.0 * rng.random(), 0.5 + 4.0 * rng.random()
        if i < moving:
            sx, sy, sz = (rng.uniform(2.0, 4.0) for _ in range(3))
            phase, slower = rng.uniform(0.0, 3.0), rng.uniform(4.0, 6.0)
            paths.append((x, y, z, sx / 6.0, sy / 5.0, sz / 2.0, 1.0 / slower, phase))
        elif i - moving < pillars:
            boxes.append((x, y, 0.5 * PILLAR_M[2], *PILLAR_M))
        else:
            boxes.append((x, y, z, *(ACROSS_M if i - moving - upright < 0.5 * (static - upright) else ALONG_M)))
    origin, loop, pace = np.split(np.array(paths), (3, 6), axis=1)
    turn = np.full(2, 1e6)  # never
    movers = Movers(np.full(moving, CUBE, np.int32), origin, np.zeros_like(origin), loop, pace, turn)
    scene = Scene((0.0, 0.0, 2.0), (105.0, 0.0, 2.0), 6.0, np.array(boxes, np.float32), movers)
    return make_scene(name, scene, (-5.0, -20.0), (110.0, 20.0, 6.5), cell_m=cell_m)


def fapp(name: str, seed: int, cell_m: float = 2 * CELL_M) -> World:
    """Return a scene as FAPP's paper describes it: 100 boxes, 100 cylinders and 100 movers at 0.5 to 3 m/s in 50 x 50 m.

    Not published, and so chosen here: widths of 0.4 to 1 m, heights above the ceiling, movers that are standing cylinders of
    0.25 to 1 m with constant speed, pass static obstacles and turn back at the borders, walls along two sides, and the flight.
    """
    draws = Draws(name, seed, 0)
    places = FAPP_HALF_M * (2.0 * draws.units(4 * FAPP_STATIC).reshape(-1, 2) - 1.0)
    low, high = FAPP_WIDTHS_M
    sides = low + (high - low) * draws.units(4 * FAPP_STATIC).reshape(-1, 2)
    sides[FAPP_STATIC:, 1] = sides[FAPP_STATIC:, 0]  # diameters
    tall = np.full((2 * FAPP_STATIC, 1), FAPP_HEIGHT_M)
    columns = np.concatenate([places, 0.5 * tall, sides, tall], axis=1)
    wall = [2 * FAPP_HALF_M, WALL_M, FAPP_HEIGHT_M]
    walls = [[0.0, side * (FAPP_HALF_M + 0.5 * WALL_M), 0.5 * FAPP_HEIGHT_M, *wall] for side in (-1.0, 1.0)]
    speed = FAPP_SPEEDS[0] + (FAPP_SPEEDS[1] - FAPP_SPEEDS[0]) * draws.units(FAPP_MOVERS)
    heading = 2.0 * np.pi * draws.units(FAPP_MOVERS)
    at = FAPP_HALF_M * (2.0 * draws.units(2 * FAPP_MOVERS).reshape(-1, 2) - 1.0)
    none = np.zeros(FAPP_MOVERS)
    movers = Movers(
        (WIDTHS * CYLINDER + np.arange(FAPP_MOVERS) % WIDTHS).astype(np.int32),
        np.stack([*at.T, none + STANDING_Z_M], axis=1),
        np.stack([speed * np.cos(heading), speed * np.sin(heading), none], axis=1),
        np.zeros((FAPP_MOVERS, 3)),
        np.zeros((FAPP_MOVERS, 2)),
        np.full(2, FAPP_HALF_M),
    )
    ends = [(side * FAPP_LANE_M, 0.0, FAPP_LANE_HEIGHT_M) for side in (-1.0, 1.0)]
    scene = Scene(ends[0], ends[1], FAPP_HALF_M, np.concatenate([walls, columns]).astype(np.float32), movers)
    bound = FAPP_HALF_M + WALL_M
    return make_scene(name, scene, (-30.0, -bound), (30.0, bound, FAPP_HEIGHT_M + 0.5), FAPP_STATIC, cell_m)


SCENES: Mapping[str, Callable[..., World]] = {
    "sando_easy": partial(sando, 50, "sando_easy"),
    "sando_medium": partial(sando, 100, "sando_medium"),
    "sando_hard": partial(sando, 200, "sando_hard"),
    "fapp": partial(fapp, "fapp"),
}
"""Scenes by name: functions of a seed and the side of a voxel."""
