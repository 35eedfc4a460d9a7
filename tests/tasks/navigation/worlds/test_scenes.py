"""Scenes of benchmarks: SANDO's worlds number by number, FAPP's counts and speeds, exact surfaces."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from fledge.tasks.navigation.physics.shapes import sizes
from fledge.tasks.navigation.worlds.check import examine
from fledge.tasks.navigation.worlds.world import SCENES, make_world

COUNTS = {"sando_easy": 50, "sando_medium": 100, "sando_hard": 200}


def described(count: int, seed: int) -> tuple[list[list[float]], list[list[float]]]:
    """SANDO's obstacles as its description has them: movers (x, y, z, sx, sy, sz, offset, slower), boxes (centre, size)."""
    random.seed(seed)
    movers, boxes = [], []
    n = int(0.65 * count)
    rest = count - n
    for i in range(count):
        x = 5 + 95 * random.random()
        y = -6 + 12 * random.random()
        z = 0.5 + 4 * random.random()
        if i < n:
            scale = [random.uniform(2, 4), random.uniform(2, 4), random.uniform(2, 4)]
            offset = random.uniform(0, 3)
            movers.append([x, y, z, *scale, offset, random.uniform(4, 6)])
        elif i - n < 0.35 * rest:
            boxes.append([x, y, 2, 0.4, 0.4, 4])
        elif i - n - int(0.35 * rest) < (rest - int(0.35 * rest)) / 2:
            boxes.append([x, y, z, 0.4, 4, 0.4])
        else:
            boxes.append([x, y, z, 4, 0.4, 0.4])
    return movers, boxes


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("seed", [0, 9])
def test_a_world_of_sando_is_what_its_seed_draws(name: str, seed: int) -> None:
    movers, boxes = described(COUNTS[name], seed)
    world = SCENES[name](seed, cell_m=1.0)
    scene = world.scene
    assert scene is not None
    assert (scene.start, scene.goal) == ((0.0, 0.0, 2.0), (105.0, 0.0, 2.0))
    np.testing.assert_allclose(scene.boxes, np.array(boxes), atol=1e-5)
    made = scene.movers
    assert len(made.kinds) == len(movers) == int(0.65 * COUNTS[name])
    assert (sizes(made.kinds) == np.float32(0.8)).all()
    for t in (0.0, 1.3, 47.9):
        for j, (x, y, z, sx, sy, sz, offset, slower) in enumerate(movers):
            a = t / slower + offset
            place = (
                x + sx / 6 * (math.sin(a) + 2 * math.sin(2 * a)),
                y + sy / 5 * (math.cos(a) - 2 * math.cos(2 * a)),
                z - sz / 2 * math.sin(3 * a),
            )
            rate, phase = made.pace[j]
            b = rate * t + phase
            loop = (math.sin(b) + 2 * math.sin(2 * b), math.cos(b) - 2 * math.cos(2 * b), -math.sin(3 * b))
            assert made.origin[j] + made.loop[j] * loop == pytest.approx(place, abs=1e-6)
    assert not made.drift.any()


def test_a_scene_leaves_the_numbers_of_python_alone_and_counts_its_index_as_seeds() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    shifted = make_world("sando_easy", 3, 4).scene
    assert random.random() == expected
    np.testing.assert_array_equal(shifted.boxes, SCENES["sando_easy"](7, cell_m=1.0).scene.boxes)  # type: ignore[union-attr]


def test_the_scene_of_fapp_has_its_published_counts_and_speeds() -> None:
    world = SCENES["fapp"](5, cell_m=1.0)
    scene = world.scene
    assert scene is not None
    assert len(scene.boxes) == 2 + 200  # two walls
    assert (np.abs(scene.boxes[2:, :2]) <= 25.0).all()
    speed = np.linalg.norm(scene.movers.drift, axis=1)
    assert len(speed) == 100
    assert speed.min() >= 0.5
    assert speed.max() <= 3.0
    assert speed.min() < 0.7
    assert speed.max() > 2.8
    assert (np.abs(scene.movers.origin[:, :2]) <= 25.0).all()
    ends = np.array([scene.start, scene.goal])
    assert (np.abs(ends[:, 0]) >= 25.0 + 0.5 + 0.3).all()  # no mover reaches them


@pytest.mark.parametrize("name", SCENES)
def test_triangles_enclose_the_boxes_closely_and_stand_on_the_ground(name: str) -> None:
    world = SCENES[name](2, cell_m=1.0)
    assert world.scene is not None
    assert world.triangles is not None
    low = world.bounds[0]
    assert (world.triangles.reshape(-1, 3) >= low - 1e-5).all()
    ground = world.triangles[:2].reshape(-1, 3)
    assert (ground[:, 2] == 0).all()
    corners = np.concatenate([world.scene.boxes[:, :3] - s * world.scene.boxes[:, 3:] / 2 for s in (-1, 1)])
    above = world.triangles[2:].reshape(-1, 3)
    slack = 0.02 * 0.5 * 1.0 + 1e-4 if name == "fapp" else 1e-4
    np.testing.assert_allclose(above.min(axis=0), corners.min(axis=0), atol=slack)
    np.testing.assert_allclose(above.max(axis=0), corners.max(axis=0), atol=slack)
    index = np.floor((above - world.origin) / world.cell_m).astype(int)
    inside = ((index >= 0) & (index < world.solid.shape)).all(axis=1)
    assert world.solid[tuple(index[inside].T)].all()


def test_a_scene_is_checked_along_its_own_route() -> None:
    report, routes, _ = examine(make_world("sando_easy", 0, 0))
    assert report.routes == 1
    assert report.route_longest_m == pytest.approx(105.0)
    assert routes is not None
    np.testing.assert_allclose(routes.goal, [[105.0, 0.0, 2.0]])
