"""LiDAR of voxel worlds in object order: every beam against brute force and against the walk from voxel to voxel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics import near_boxes, voxel_worlds
from fledge.tasks.navigation.sensing.rays import directions
from fledge.tasks.navigation.worlds.triangles import cells_of_triangles
from fledge.tasks.navigation.worlds.world import World, save_world
from tests.tasks.navigation.physics.test_voxels import ray_boxes, ray_triangles
from tests.tasks.navigation.worlds.rooms import box

DRONES = 150
CELL = 0.1
SHAPE = (90, 80, 36)
GRAZING = 2e-3  # share of the beams that may pass on either side of an edge
BEAMS = {"lidar_elevations_deg": [-50.0, -10.0, 0.0, 10.0, 20.0, 60.0], "lidar_azimuths": 40}
Make = Callable[..., NavigationEnv]


@pytest.fixture(autouse=True)
def few_routes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voxel_worlds, "ROUTES", 8)
        yield


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[NavigationEnv] = []

    def make_env(world: World | str, **settings: Any) -> NavigationEnv:
        if isinstance(world, World):
            save_world(world, tmp_path / f"{world.name}.fworld")
            world = str(tmp_path / f"{world.name}.fworld")
        small = {"num_envs": DRONES, "num_maps": 1, "moving_obstacles": 0, "world": world}
        made.append(NavigationEnv(NavigationConfig(**(small | BEAMS | settings)), seed=4, num_threads=1))
        made[-1].reset()
        return made[-1]

    yield make_env
    for env in made:
        env.close()


def look(env: NavigationEnv, objects: bool = True) -> np.ndarray:
    """Distances of all beams [N, H, V], m: in object order, or by the walk."""
    env.scans_objects = objects
    env._bindings.clear()
    seen = env.reset(torch.zeros(env.num_envs, dtype=torch.bool))["obs"]["lidar"][:, 0]
    return env.cfg.lidar_range_m - seen.double().numpy()


def place(env: NavigationEnv, beyond: float = 0.0) -> np.ndarray:
    """Put drones anywhere in the world, also into obstacles, up to `beyond` m outside; return the directions of all beams."""
    rng = np.random.default_rng(5)
    low, high = env.bank.worlds.worlds[0].bounds
    env.state["pos"].copy_(torch.as_tensor(rng.uniform(low - beyond, high + beyond, (DRONES, 3))))
    half = rng.uniform(-np.pi, np.pi, DRONES)
    half[::4] = np.pi / 4 * rng.integers(0, 4, len(half[::4]))  # some beams along the axes
    zero = np.zeros(DRONES)
    env.state["quat"].copy_(torch.as_tensor(np.stack([zero, zero, np.sin(half), np.cos(half)], axis=1)))
    rays, turn = directions(env.cfg), 2 * half
    x = np.cos(turn)[:, None, None] * rays[..., 0] - np.sin(turn)[:, None, None] * rays[..., 1]
    y = np.sin(turn)[:, None, None] * rays[..., 0] + np.cos(turn)[:, None, None] * rays[..., 1]
    return np.stack([x, y, np.broadcast_to(rays[..., 2], x.shape)], axis=-1)


def blocks() -> World:
    """Blocks of many sizes between a ground and a ceiling with holes, some of them floating."""
    rng = np.random.default_rng(1)
    solid = np.zeros(SHAPE, bool)
    solid[:, :, 0] = solid[:, :, -1] = True
    for low in rng.integers(0, np.array(SHAPE) - 4, (40, 3)):
        high = low + rng.integers(1, 9, 3)
        solid[low[0] : high[0], low[1] : high[1], low[2] : high[2]] = True
    solid[20:30, 20:40, -1] = False
    return World("blocks", solid, np.zeros(3), CELL)


def crates(rest: np.ndarray) -> World:
    """A mesh of closed and open boxes, with sheets along the axes, in a world that cuts some of them off."""
    rng = np.random.default_rng(2)
    triangles = [rest]
    for k in range(60):
        low = rng.uniform((0.2, 0.2, 0.1), (8.0, 7.0, 3.4))
        sides = box(tuple(low), tuple(low + rng.uniform(0.05, 1.6, 3)))
        kept = (np.arange(6), rng.permutation(6)[:3], np.arange(4))[k % 3]
        triangles.append(sides.reshape(6, 2, 3, 3)[kept].reshape(-1, 3, 3))
    ground = box((0.1, 0.1, 0.05), (8.9, 7.9, 9.0))
    triangles.append(ground[np.ptp(ground[..., 2], axis=1) == 0])
    mesh = np.concatenate(triangles).astype(np.float32)
    first, _ = cells_of_triangles(mesh, np.zeros(3), SHAPE, CELL)
    return World("crates", (np.diff(first) > 0).reshape(SHAPE), np.zeros(3), CELL, mesh)


def lists(env: NavigationEnv) -> np.ndarray:
    return env.bank.worlds.struct.near.numpy()[0]


def mismatch(found: np.ndarray, expected: np.ndarray) -> float:
    return float((np.abs(found - expected) > 1e-3).mean())


def test_every_beam_equals_brute_force_among_voxels(make: Make) -> None:
    env = make(blocks())
    assert (lists(env)[:, 1] > 0).all()
    rays, pos = place(env), env.state["pos"].double().numpy()
    world = env.bank.worlds.worlds[0]
    low = world.origin + CELL * np.argwhere(world.solid)
    expected = np.stack([ray_boxes(np.repeat(o[None], 240, 0), r, low, low + CELL)
                         for o, r in zip(pos, rays.reshape(DRONES, -1, 3), strict=True)]).reshape(rays.shape[:3])  # fmt: skip
    expected = np.minimum(expected, env.cfg.lidar_range_m)
    assert 0.25 < (expected < env.cfg.lidar_range_m).mean() < 0.95
    assert (expected == 0).mean() > 0.02
    assert mismatch(look(env), expected) < GRAZING


def test_every_beam_equals_brute_force_among_triangles(make: Make) -> None:
    env = make(crates(np.zeros((0, 3, 3))))
    assert (lists(env)[:, 1] > 0).all()
    rays, pos = place(env), env.state["pos"].double().numpy()
    world = env.bank.worlds.worlds[0]
    flat = rays.reshape(-1, 3)
    origin = pos.repeat(240, axis=0)
    with np.errstate(all="ignore"):
        distance = np.concatenate(
            [
                ray_triangles(o, r, world.triangles)
                for o, r in zip(*(np.split(v, 60) for v in (origin, flat)), strict=True)
            ]
        )
    low, high = world.bounds
    at = origin + distance[:, None].clip(max=9.0) * flat
    distance[((at < low) | (at > high)).any(axis=1)] = np.inf  # there is nothing outside of a world
    expected = np.minimum(distance, env.cfg.lidar_range_m).reshape(rays.shape[:3])
    assert 0.25 < (expected < env.cfg.lidar_range_m).mean() < 0.95
    assert mismatch(look(env), expected) < GRAZING


@pytest.mark.parametrize("name", ["rooms", "stairs", "canopy", "cave"])
def test_object_order_and_the_walk_agree_in_generated_worlds(make: Make, name: str) -> None:
    env = make(name)
    place(env, beyond=0.3)
    objects = look(env)
    assert (objects < env.cfg.lidar_range_m).mean() > 0.2
    assert mismatch(objects, look(env, objects=False)) < GRAZING


def test_beams_walk_where_boxes_are_many_or_sloped_triangles_are_in_reach(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    slope = np.array([[[1.0, 1.0, 1.0], [1.5, 1.0, 1.5], [1.0, 1.6, 2.0]]])
    env = make(crates(slope), lidar_range_m=3.0)
    listed = lists(env)[:, 1].reshape(9, 8) >= 0
    assert not listed[:4, :4].any()
    assert listed[6:, 6:].all()
    place(env)
    assert mismatch(look(env), look(env, objects=False)) < GRAZING
    monkeypatch.setattr(near_boxes, "CROWDED", 14)
    env = make(blocks(), lidar_range_m=2.0)
    assert 0 < (lists(env)[:, 1] >= 0).sum() < len(lists(env))
    place(env)
    assert mismatch(look(env), look(env, objects=False)) < 1e-3
    monkeypatch.setattr(near_boxes, "MOST_RUNS", 1000)
    env = make(blocks(), lidar_range_m=2.0)
    assert lists(env).tolist() == [[0, -1]]
    place(env)
    np.testing.assert_array_equal(look(env), look(env, objects=False))


def test_a_box_in_the_wrong_place_is_noticed(make: Make) -> None:
    env = make(blocks())
    place(env)
    right = look(env, objects=False)
    corner = env.bank.worlds._kept["box_low"]
    corner.assign(corner.numpy() - 0.01)
    assert mismatch(look(env), right) > 0.05


def test_sensors_that_cast_single_rays_need_no_lists(make: Make) -> None:
    rings, single = make("rooms"), make("rooms", lidar_tilts=True)
    assert rings.bank.worlds is not None
    assert single.bank.worlds is not None
    assert (rings.bank.worlds._kept["near"].numpy()[..., 1] > 0).any()
    assert not (single.bank.worlds._kept["near"].numpy()[..., 1] > 0).any()


def test_the_walk_ends_for_nan(make: Make) -> None:
    env = make("rooms")
    env.state["quat"][0] = torch.nan
    look(env, objects=False)
