"""Pedestrians: the half-plane against RVO2's construction, and walks in which bodies touch neither walls nor each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import warp as wp

from fledge.core.errors import ConfigError
from fledge.core.settings import check_settings
from fledge.tasks.navigation.config import Layout, Movers, NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.pedestrians import reciprocal
from fledge.tasks.navigation.physics.shapes import widths
from fledge.tasks.navigation.physics.terrain import CELLS, SOLID
from fledge.tasks.navigation.worlds.voxels import World
from fledge.tasks.navigation.worlds.world import save_world

HORIZON, STEP = 2.0, 0.1


@wp.kernel(enable_backward=False)
def half_planes(
    p: wp.array(dtype=wp.vec3),
    own: wp.array(dtype=wp.vec3),
    other: wp.array(dtype=wp.vec3),
    radius: wp.array(dtype=wp.float32),
    plane: wp.array(dtype=wp.vec4),
):
    k = wp.tid()
    plane[k] = reciprocal(p[k], own[k], other[k], radius[k], 2.0, 0.1)


def by_rvo2(p: np.ndarray, own: np.ndarray, other: np.ndarray, radius: float) -> tuple[np.ndarray, float]:
    """Normal n and bound b of the half-plane n . v >= b, by the legs and the cut-off circle of the velocity obstacle."""
    v = own - other
    square = p @ p
    inside = square <= radius**2
    w = v - p / (STEP if inside else HORIZON)
    if inside or (w @ p < 0 and (w @ p) ** 2 > radius**2 * (w @ w)):  # the circle is nearest
        n = w / np.linalg.norm(w)
        u = (radius / (STEP if inside else HORIZON) - np.linalg.norm(w)) * n
    else:
        leg = np.sqrt(square - radius**2)
        if p[0] * w[1] - p[1] * w[0] > 0:  # left leg
            along = np.array([p[0] * leg - p[1] * radius, p[0] * radius + p[1] * leg]) / square
        else:
            along = -np.array([p[0] * leg + p[1] * radius, -p[0] * radius + p[1] * leg]) / square
        u = (v @ along) * along - v
        n = np.array([-along[1], along[0]])
    return n, float((own + 0.5 * u) @ n)


def test_a_half_plane_is_that_of_rvo2() -> None:
    generator = np.random.default_rng(0)
    n = 2000
    p, own, other = (np.c_[generator.uniform(-s, s, (n, 2)), np.zeros(n)] for s in (3.0, 1.5, 1.5))
    radius = generator.uniform(0.2, 1.1, n).astype(np.float32)
    given = [wp.array(a.astype(np.float32), dtype=wp.vec3, device="cpu") for a in (p, own, other)]
    planes = wp.zeros(n, dtype=wp.vec4, device="cpu")
    wp.launch(half_planes, n, [*given, wp.array(radius, device="cpu"), planes], device="cpu")
    found = planes.numpy()
    assert np.abs(found[:, 2]).max() < 1e-5
    kinds = 0
    for k in range(n):
        normal, bound = by_rvo2(*(given[m].numpy()[k, :2].astype(float) for m in range(3)), float(radius[k]))
        kinds += int(p[k] @ p[k] <= radius[k] ** 2)
        np.testing.assert_allclose(found[k, [0, 1]], normal, atol=5e-3)
        assert found[k, 3] == pytest.approx(bound, abs=1e-2)
    assert kinds > 50


def test_two_that_meet_head_on_give_way_by_half_each() -> None:
    # joint radius 1, 4 m apart, 0.8 m/s each: the circle of radius 0.5 around p / horizon = (2, 0) begins at 1.5
    given = [wp.array([a], dtype=wp.vec3, device="cpu") for a in ([4.0, 0, 0], [0.8, 0, 0], [-0.8, 0, 0])]
    plane = wp.zeros(1, dtype=wp.vec4, device="cpu")
    wp.launch(half_planes, 1, [*given, wp.array([1.0], dtype=wp.float32, device="cpu"), plane], device="cpu")
    # v = 1.6 is 0.1 beyond the rim at 1.5, so each slows down by 0.05
    np.testing.assert_allclose(plane.numpy()[0], [-1.0, 0.0, 0.0, -0.75], atol=1e-4)


def hall() -> World:
    """12 x 9 x 3.5 m with walls, a partition with a door, and thin posts."""
    solid = np.zeros((120, 90, 35), bool)
    solid[:, :, 0] = solid[0] = solid[-1] = solid[:, 0] = solid[:, -1] = True
    solid[60, :35] = solid[60, 55:] = True
    for x, y in np.random.default_rng(1).integers(10, 80, (8, 2)):
        solid[x, y] = True
    return World("hall", solid, np.zeros(3), 0.1)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[NavigationEnv] = []
    save_world(hall(), tmp_path / "hall.fworld")
    sources = {"hall": {"world": str(tmp_path / "hall.fworld")}, "forest": {"static_obstacles": 350}}

    def build(source: str, threads: int = 2, **options: Any) -> NavigationEnv:
        base: dict[str, Any] = {"num_envs": 4, "num_maps": 2, "moving_obstacles": 12, "movers": Movers.pedestrians}
        env = NavigationEnv(NavigationConfig(**(base | sources[source] | options)), seed=5, num_threads=threads)
        env.reset()
        made.append(env)
        return env

    yield build
    for env in made:
        env.close()


def wall_boxes(env: NavigationEnv, slot: int) -> np.ndarray:
    """Lower corners of the solid cells at waist height, [n, 2] m; cells are 0.1 m wide."""
    if env.bank.worlds is None:
        solid, corner = env.bank.grid[slot].numpy().reshape(CELLS, CELLS) >= SOLID, np.array([-25.0, -25.0])
    else:
        world = env.bank.worlds.worlds[0]
        solid, corner = world.solid[:, :, int((1.0 - world.origin[2]) / 0.1)], world.origin[:2]
    return corner + 0.1 * np.argwhere(solid)


@pytest.mark.parametrize(("source", "movers", "decimation"), [("hall", 12, 5), ("forest", 80, 8), ("hall", 12, 1)])
def test_pedestrians_walk_through_neither_walls_nor_each_other(
    make: Any, source: str, movers: int, decimation: int
) -> None:
    env = make(source, moving_obstacles=movers, decimation=decimation)
    radius = widths(env.bank.kinds.numpy()) / 2
    walls = [wall_boxes(env, slot) for slot in range(2)]
    first = env.bank.tensors["trail"][-1].clone()
    pairs, gaps, speeds = [], [], []
    for _ in range(2000 // decimation):
        env.step(torch.full((4, 3), 0.5))
        pos = env.bank.tensors["trail"][-1].numpy()[..., :2].astype(float)
        speeds.append(env.bank.tensors["vel"].norm(dim=-1).numpy())
        for slot in range(2):
            between = np.linalg.norm(pos[slot][:, None] - pos[slot], axis=-1) - radius - radius[:, None]
            pairs.append(between[np.triu_indices(movers, 1)].min())
            if len(pairs) % 10 < 2:
                away = np.maximum(np.abs(pos[slot][:, None] - walls[slot] - 0.05) - 0.05, 0.0)
                gaps.append((np.linalg.norm(away, axis=-1).min(axis=1) - radius).min())
    assert min(pairs) > -0.02
    assert min(gaps) > -0.001
    assert np.max(speeds) <= 1.5 + 1e-3
    assert np.mean(speeds) > 0.4
    moved = (env.bank.tensors["trail"][-1] - first).norm(dim=-1)
    assert float(moved.median()) > 1.5
    assert float((env.bank.tensors["trail"][..., 2] - 2.5).abs().max()) < 1e-6


@pytest.mark.parametrize("source", ["hall", "forest"])
def test_walks_depend_neither_on_threads_nor_on_a_save_in_between(make: Any, source: str) -> None:
    def walk(env: NavigationEnv, steps: int) -> list[bytes]:
        shown = []
        for _ in range(steps):
            env.step(torch.full((4, 3), 0.6))
            shown.append(env.bank.tensors["trail"].numpy().tobytes() + env.bank.tensors["vel"].numpy().tobytes())
        return shown

    one, other = make(source, threads=1, decimation=5), make(source, threads=2, decimation=5)
    assert walk(one, 60) == walk(other, 60)
    again = make(source, decimation=5)
    again.load_state_dict(one.state_dict())
    assert walk(one, 60) == walk(again, 60)


def test_swinging_movers_of_the_arena_are_no_pedestrians() -> None:
    cfg = NavigationConfig(layout=Layout.arena, starts=Starts.lane, movers=Movers.pedestrians)
    with pytest.raises(ConfigError, match=r"set env\.movers=roam"):
        check_settings(cfg, "env.")
