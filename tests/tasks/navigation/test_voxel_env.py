"""NavigationEnv in worlds of voxels: starts, goals, ends, movers, resume, held-out worlds and misuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import ConfigError, FledgeError
from fledge.core.settings import check_settings
from fledge.envs.placement import EnvPlacement
from fledge.tasks.navigation.config import Collision, NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.physics.voxel_worlds import fit_world
from fledge.tasks.navigation.task import NavigationTask
from fledge.tasks.navigation.worlds.voxels import World
from fledge.tasks.navigation.worlds.world import save_world

CELL = 0.1


def hall(pillars: int = 6, seed: int = 0) -> World:
    """12 x 9 x 3.5 m with a floor, walls and pillars, somewhere far from the origin."""
    generator = np.random.default_rng(seed)
    solid = np.zeros((120, 90, 35), bool)
    solid[:, :, 0] = solid[0] = solid[-1] = solid[:, 0] = solid[:, -1] = True
    for x, y in generator.integers(15, 70, (pillars, 2)):
        solid[x : x + 5, y : y + 5] = True
    return World("hall", solid, np.array([500.0, -80.0, 12.0]), CELL)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worlds") / "hall.fworld"
    save_world(hall(), path)
    return path


@pytest.fixture
def make(file: Path) -> Iterator[Any]:
    made: list[NavigationEnv] = []

    def build(threads: int = 2, seed: int = 3, bank: int = 0, **options: Any) -> NavigationEnv:
        small: dict[str, Any] = {
            "num_envs": 24,
            "num_maps": 3,
            "moving_obstacles": 8,
            "world": str(file),
            "decimation": 4,
        }
        env = NavigationEnv(NavigationConfig(**(small | options)), seed=seed, num_threads=threads, bank=bank)
        made.append(env)
        return env

    yield build
    for env in made:
        env.close()


def solid_at(world: World, points: np.ndarray) -> np.ndarray:
    index = np.floor((points - world.origin) / world.cell_m).astype(int)
    return world.solid[tuple(np.clip(index, 0, np.array(world.solid.shape) - 1).T)]


def test_a_fitted_world_stands_on_its_ground_with_its_middle_at_the_origin_and_ends_at_the_flying_height() -> None:
    fitted = fit_world(hall(), 2.0)
    low, high = fitted.bounds
    np.testing.assert_allclose(low, [-6.0, -4.5, -0.1])
    np.testing.assert_allclose(high, [6.0, 4.5, 2.0])
    no_floor = hall()
    no_floor.solid[:, :, 0] = False
    assert fit_world(no_floor, 9.0).bounds[0][2] == 0.0


def test_flights_go_between_free_points_along_routes_with_a_clock_of_their_length(make: Any) -> None:
    env = make(moving_obstacles=0)
    env.reset()
    world = env.bank.worlds.worlds[0]
    start, goal, route = (env.state[name].numpy() for name in ("start", "goal", "route"))
    for points in (start, goal):
        around = points[:, None] + 0.3 * np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 0]])
        assert not solid_at(world, around.reshape(-1, 3)).any()
    straight = np.linalg.norm(goal - start, axis=1)
    assert (route >= straight - 1e-4).all()
    assert (route > straight + 0.05).any()
    hover = torch.full((24, 3), 0.5)
    expected = (2200 * (route.astype(np.float32) + np.float32(5.0)) / 24.0).astype(int)
    ended = np.zeros(24, int)
    for t in range(400):
        out = env.step(hover)
        fresh = (out["truncated"].numpy()) & (ended == 0)
        ended[fresh] = (t + 1) * 4
    done = ended > 0
    assert done.any()
    np.testing.assert_array_equal(ended[done], -(-expected[done] // 4) * 4)


def test_the_lidar_sees_walls_and_floor_and_nothing_beyond_an_open_side(make: Any, tmp_path: Path) -> None:
    room = hall(pillars=0)
    room.solid[-1] = False  # the side towards +x is open
    save_world(room, tmp_path / "open.fworld")
    env = make(world=str(tmp_path / "open.fworld"), moving_obstacles=0, num_maps=1)
    env.reset()
    env.state["pos"][0] = torch.tensor([3.0, 0.0, 1.0])
    env.state["quat"][0] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    env.state["step"][0] = 1
    obs = env.reset(torch.zeros(24, dtype=torch.bool))["obs"]["lidar"][0, 0]
    ahead, left, behind = (4.0 - obs[h] for h in (0, 9, 18))
    down = 1.0 / np.sin(np.radians(10.0))  # the beam 10 degrees below the horizon meets the floor only beyond 4 m
    assert down > 4.0
    np.testing.assert_allclose(ahead, 4.0)
    np.testing.assert_allclose(behind, 4.0)
    np.testing.assert_allclose(left[1], 4.0, atol=1e-3)
    env.state["pos"][0] = torch.tensor([3.0, 3.0, 0.5])
    obs = env.reset(torch.zeros(24, dtype=torch.bool))["obs"]["lidar"][0, 0]
    np.testing.assert_allclose(4.0 - obs[9], [1.4 / np.cos(np.radians(e)) for e in (-10, 0, 10, 20)], atol=1e-3)
    np.testing.assert_allclose(4.0 - obs[27, 0], 0.5 / np.sin(np.radians(10.0)), atol=1e-3)


def test_leaving_the_world_ends_the_episode_out_of_bounds(make: Any, tmp_path: Path) -> None:
    room = hall(pillars=0)
    room.solid[-1] = False
    save_world(room, tmp_path / "open.fworld")
    env = make(world=str(tmp_path / "open.fworld"), moving_obstacles=0, num_maps=1)
    env.reset()
    env.state["pos"][:] = torch.tensor([5.9, 0.0, 1.0])
    env.state["vel"][:] = torch.tensor([4.0, 0.0, 0.0])
    outcomes = {env.outcomes[int(o)] for _ in range(4) for o in env.step(torch.full((24, 3), 0.5))["outcome"]}
    assert outcomes == {"running", "out_of_bounds"}


@pytest.mark.parametrize("collision", [Collision.cylinder, Collision.sphere])
def test_drones_collide_with_walls_where_their_body_touches_them(make: Any, collision: Collision) -> None:
    env = make(moving_obstacles=0, collision=collision)
    env.reset()
    action = torch.rand(24, 3, generator=torch.Generator().manual_seed(1))
    hits = 0
    for _ in range(300):
        out = env.step(action)
        hits += int((out["outcome"] == 2).sum())
    assert hits > 10


def test_movers_stay_in_free_space_and_walk(make: Any) -> None:
    env = make(moving_obstacles=16, num_maps=2)
    env.reset()
    first, moved, inside = env.bank.tensors["trail"][-1].clone(), 0.0, 0
    for _ in range(500):
        env.step(torch.full((24, 3), 0.5))
        trail = env.bank.tensors["trail"][-1].numpy()
        for slot in range(2):
            at = trail[slot].copy()
            at[:, 2] = 1.0
            inside += int(solid_at(env.bank.worlds.worlds[0], at).sum())
        moved = max(moved, float((env.bank.tensors["trail"][-1] - first).norm(dim=-1).median()))
    assert inside == 0
    assert moved > 2.0


def test_results_depend_neither_on_threads_nor_on_a_save_in_between(make: Any) -> None:
    def fly(env: NavigationEnv, steps: range) -> list[bytes]:
        shown = []
        for t in steps:
            out = env.step(torch.rand(24, 3, generator=torch.Generator().manual_seed(t // 5)))
            shown.append(b"".join(out["obs"][k].numpy().tobytes() for k in sorted(out["obs"].keys())))
        return shown

    one, other = make(threads=1), make(threads=2)
    one.reset()
    other.reset()
    assert fly(one, range(60)) == fly(other, range(60))
    again = make(threads=2)
    again.reset()
    again.load_state_dict(one.state_dict())
    assert fly(one, range(60, 120)) == fly(again, range(60, 120))


def test_evaluation_flies_other_routes_and_the_held_out_worlds(file: Path, tmp_path: Path) -> None:
    task, cfg = NavigationTask(), NavigationConfig(world=str(file), num_envs=8, num_maps=2, moving_obstacles=0)
    held_out = tmp_path / "other.fworld"
    save_world(hall(seed=7), held_out)
    small = {"num_envs": 8, "num_maps": 2}
    train = task.make_env(cfg)
    same = task.make_env(dataclasses.replace(task.evaluation(cfg), **small), EnvPlacement(held_out=True))
    other_cfg = dataclasses.replace(cfg, eval_world=str(held_out))
    other = task.make_env(dataclasses.replace(task.evaluation(other_cfg), **small), EnvPlacement(held_out=True))
    solids = [env.bank.worlds.worlds[0].solid for env in (train, same, other)]
    np.testing.assert_array_equal(solids[0], solids[1])
    assert (solids[0] != solids[2]).any()
    assert (train.bank.worlds.routes[0].start != same.bank.worlds.routes[0].start).any()
    for env in (train, same, other):
        env.close()


def test_generated_worlds_of_training_and_evaluation_differ(make: Any) -> None:
    options = {"world": "hall", "moving_obstacles": 0}
    a, b, c = make(**options, num_maps=1), make(**options, num_maps=2), make(**options, num_maps=1, bank=1)
    solids = [env.bank.worlds.worlds[0].solid for env in (a, b, c)]
    np.testing.assert_array_equal(solids[0], solids[1])
    assert solids[0].shape != solids[2].shape or (solids[0] != solids[2]).any()
    assert len(b.bank.worlds.worlds) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"collision": Collision.beams}, "choose cylinder or sphere"),
        ({"fresh_maps": True}, "set env.fresh_maps=false"),
        ({"world": ",,"}, "names no world"),
        ({"eval_world": " , "}, "names no world"),
    ],
)
def test_settings_that_a_world_excludes_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_settings(NavigationConfig(**({"world": "hall"} | options)), "env.")


def test_a_world_that_does_not_exist_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"env.world names nowhere.*Paths count from the current folder"):
        make(world="nowhere.fworld")


def test_a_world_file_that_changed_since_the_state_was_saved_is_refused(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.fworld"
    save_world(hall(), path)
    env = make(world=str(path))
    env.reset()
    saved = env.state_dict()
    save_world(hall(seed=1), path)
    with pytest.raises(FledgeError, match="has changed since this state was saved"):
        make(world=str(path)).load_state_dict(saved)
    save_world(hall(), path)
    make(world=str(path)).load_state_dict(saved)
    del saved["maps"]["worlds"]  # a state of an older version
    make(world=str(path)).load_state_dict(saved)
