"""Sensors by name: directions, fields of view, blind zones, jitter and tilt, against plain float64 references."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, uniform
from fledge.core.settings import check_settings
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.sensing.rays import depth_image, directions
from fledge.tasks.navigation.task import NavigationTask
from fledge.training.config import make_config
from tests.tasks.navigation.sensing.test_raycast import Rays, columns_of, ground, movers_of, place, slabs

NAMES = ("d435", "mid360", "navrl", "ouster16", "vl53l5cx")
MakeEnv = Callable[..., NavigationEnv]


def config(name: str, *words: str, **more: Any) -> NavigationConfig:
    """The env config of a named sensor, small."""
    small = [
        f"env.{key}={value}" for key, value in ({"num_envs": 24, "num_maps": 2, "movers_cycle": "[1.0]"} | more).items()
    ]
    return make_config("navigation", None, [f"sensor={name}", *small, *words]).env


@pytest.fixture
def make_env() -> Iterator[MakeEnv]:
    made: list[NavigationEnv] = []

    def make(name: str, *words: str, threads: int = 2, **more: Any) -> NavigationEnv:
        made.append(NavigationEnv(config(name, *words, **more), seed=8, num_threads=threads))
        return made[-1]

    yield make
    for env in made:
        env.close()


PLAIN = ("env.perception.lidar_period_s=0", "env.randomize.lidar_noise_m=0", "env.randomize.lidar_noise_per_m2=0")


def look(env: NavigationEnv) -> np.ndarray:
    """[N, H, V] observed distances, without beginning an episode; the range where nothing is hit."""
    lidar = env.reset(env_mask=torch.zeros(env.num_envs, dtype=torch.bool))["obs"]["lidar"]
    return env.cfg.lidar_range_m - lidar[:, 0].numpy().astype(np.float64)


def turns(env: NavigationEnv, tilts: bool) -> np.ndarray:
    """[N, 3, 3] rotations from the sensor to the world, by yaw alone or by the whole attitude, in float64."""
    x, y, z, w = env.state["quat"].numpy().astype(np.float64).T
    full = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    ).transpose(2, 0, 1)
    if tilts:
        return full
    yaw = np.arctan2(full[:, 1, 0], full[:, 0, 0])
    c, s, o = np.cos(yaw), np.sin(yaw), np.zeros_like(yaw)
    return np.array([[c, -s, o], [s, c, o], [o, o, o + 1]]).transpose(2, 0, 1)


def reference_angles(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Azimuths and elevations [H, V] in degrees, written down from the data sheets."""
    if name == "d435":  # pixels of an image plane at distance 1
        x = np.tan(np.radians(43.5)) * (2 * (np.arange(64) + 0.5) / 64 - 1)
        y = np.tan(np.radians(29.0)) * (2 * (np.arange(48) + 0.5) / 48 - 1)
        across, up = np.meshgrid(x, y, indexing="ij")
        return np.degrees(np.arctan(across)), np.degrees(np.arctan2(up, np.hypot(1, across)))
    around, up = {
        "mid360": (np.arange(90) * 4.0, -7 + 59 / 15 * (np.arange(15) + 0.5)),
        "navrl": (np.arange(36) * 10.0, np.array([-10.0, 0, 10, 20])),
        "ouster16": (np.arange(64) * 5.625, np.linspace(-16.6, 16.6, 16)),
        "vl53l5cx": (np.linspace(-19.6875, 19.6875, 8), np.linspace(-19.6875, 19.6875, 8)),
    }[name]
    grid = np.meshgrid(around, up, indexing="ij")
    return grid[0], grid[1]


@pytest.mark.parametrize("name", NAMES)
def test_rays_of_a_named_sensor_have_the_directions_of_its_data_sheet(name: str) -> None:
    around, up = (np.radians(angle) for angle in reference_angles(name))
    expected = np.stack([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)], -1)
    cfg = config(name)
    np.testing.assert_allclose(directions(cfg), expected, atol=2e-5)
    assert cfg.lidar_sees_movers == (name != "navrl")
    seen = NavigationTask().contract(cfg)["observation"]
    assert seen["lidar"]["shape"] == [1, *around.shape]
    assert seen["lidar"]["frame"] == ("yaw" if name == "navrl" else "body")
    middle = around.shape[0] // 2 if name == "d435" else 0
    np.testing.assert_allclose(seen["lidar"]["elevations_deg"], np.degrees(up)[middle], atol=0.01)
    np.testing.assert_allclose(seen["lidar"]["azimuths_deg"], np.degrees(around)[:, 0], atol=1e-6)
    assert ("attitude" in seen) == (name != "navrl")


@pytest.mark.parametrize("name", ["d435", "mid360", "vl53l5cx", "ouster16"])
@pytest.mark.parametrize("tilts", [True, False])
def test_rays_of_tilted_drones_equal_brute_force_over_boxes_ground_and_movers(
    name: str, tilts: bool, make_env: MakeEnv
) -> None:
    env = make_env(name, *PLAIN, f"env.lidar_tilts={tilts}", "env.moving_obstacles=40", num_envs=8)
    place(env, np.random.default_rng(5), tilt=1.2)
    ours, cfg, hits = look(env), env.cfg, []
    rays_b = directions(cfg)
    shape = rays_b.shape[:2]
    for i in range(env.num_envs):
        local = rays_b
        if cfg.lidar_jitter:
            n = np.arange(shape[0] * shape[1], dtype=np.int64) + 2**31  # the first observation of an episode
            draw = np.stack(
                [np.full_like(n, i), np.full_like(n, env._clock), np.full_like(n, Purpose.LIDAR_RAY), n], -1
            )
            u = uniform(draw, 8).astype(np.float64).reshape(*shape, 4)
            around = np.radians(4.0 * (np.arange(90)[:, None] - 0.5 + u[..., 0]))
            up = np.radians(-7 + 59 / 15 * (np.arange(15)[None] + u[..., 1]))
            local = np.stack([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)], -1)
        rays = Rays(env.state["pos"][i].numpy().astype(np.float64), (local @ turns(env, tilts)[i].T).reshape(-1, 3))
        slot = int(env.state["slot"][i])
        low, high = columns_of(env.bank.boxes[slot].numpy(), env.bank.heights[slot].numpy())
        hit = np.minimum(ground(rays), slabs(rays, low, high).min(-1))
        movers = env.bank.tensors["trail"][-1, slot].numpy().astype(np.float64)
        hits.append(np.minimum(hit, movers_of(movers, rays)).reshape(shape))
    expected = np.stack(hits)
    far = (expected > cfg.lidar_range_m) | (expected < cfg.lidar_min_range_m)
    expected = np.where(far, cfg.lidar_range_m, expected)
    assert 0.1 < (expected < cfg.lidar_range_m).mean() < 0.99
    assert (np.abs(ours - expected) < 1e-3).mean() >= 0.999


def test_movers_are_seen_by_every_ray_that_meets_them_however_many_there_are(make_env: MakeEnv) -> None:
    env = make_env("vl53l5cx", *PLAIN, "env.static_obstacles=0", "env.moving_obstacles=64")
    place(env, np.random.default_rng(6), pos=np.full((24, 3), 2.0), tilt=0.4)
    trail = env.bank.tensors["trail"]
    rng = np.random.default_rng(7)
    trail.copy_(torch.as_tensor(np.full(3, 2.0) + rng.uniform(-3, 3, trail.shape)).float())  # more than a thread lists
    ours = look(env)
    for i in range(env.num_envs):
        rays = Rays(np.full(3, 2.0), (directions(env.cfg) @ turns(env, True)[i].T).reshape(-1, 3))
        movers = trail[-1, int(env.state["slot"][i])].numpy().astype(np.float64)
        hit = np.minimum(np.minimum(movers_of(movers, rays), ground(rays)), 4.0)
        hit = np.where(hit < 0.02, 4.0, hit)
        assert (np.abs(ours[i].reshape(-1) - hit) < 1e-3).mean() >= 0.98


def test_surfaces_in_the_blind_zone_give_no_return(make_env: MakeEnv) -> None:
    views = []
    for nearest in (0.0, 0.8):
        env = make_env("ouster16", *PLAIN, f"env.lidar_min_range_m={nearest}")
        place(env, np.random.default_rng(9), tilt=0.0)
        env.state["pos"][:, 2] = 0.2  # 0.7 m above the ground along the lowest rays
        views.append(look(env))
    near = views[0] < 0.8
    assert near.any()
    assert (views[1][near] == 40.0).all()
    np.testing.assert_array_equal(views[1][~near], views[0][~near])


def test_jitter_stays_in_its_bin_and_changes_in_every_scan_whatever_the_threads(make_env: MakeEnv) -> None:
    words = (*PLAIN, "env.lidar_elevations_deg=[-60,-20]", "env.lidar_rows=4", "env.lidar_tilts=false")
    scans = []
    for threads in (1, 2):
        env = make_env("mid360", *words, "env.static_obstacles=0", "env.moving_obstacles=0", threads=threads)
        env.reset()
        env.state["pos"][:] = torch.tensor([0.0, 0.0, 2.0])
        scans.append([look(env), look(env)])
        env.step(torch.full((24, 3), 0.5))
        env.state["pos"][:] = torch.tensor([0.0, 0.0, 2.0])
        scans[-1].append(look(env))
    for one, two in zip(*scans, strict=True):
        np.testing.assert_array_equal(one, two)
    first, again, later = scans[0]
    np.testing.assert_array_equal(first, again)  # looking twice at the same time is the same scan
    assert (first != later).mean() > 0.99
    place_in_bin = (np.degrees(np.arcsin(-2.0 / first)) + 60) / 10 - np.arange(4)
    assert (place_in_bin > -1e-3).all()
    assert (place_in_bin < 1 + 1e-3).all()
    assert place_in_bin.std() == pytest.approx(12**-0.5, abs=0.01)  # evenly


@pytest.mark.parametrize("name", NAMES)
def test_a_named_sensor_steps_and_resumes_bit_for_bit(name: str, make_env: MakeEnv) -> None:
    env, other = (make_env(name, "env.moving_obstacles=20", "env.decimation=5", threads=k) for k in (1, 2))
    action = torch.full((24, 3), 0.8)
    env.reset()
    for _ in range(4):
        env.step(action)
    other.load_state_dict(env.state_dict())
    for _ in range(3):
        one, two = env.step(action), other.step(action)
        for key in one["obs"].keys():  # noqa: SIM118
            assert torch.equal(one["obs"][key], two["obs"][key]), key
    lidar = one["obs"]["lidar"]
    assert ((lidar >= 0) & (lidar <= env.cfg.lidar_range_m)).all()
    assert (lidar > 0).any()
    if name == "navrl":
        return
    tilt = one["obs"]["attitude"].abs().amax()
    assert 0.02 < tilt < 1.0


def test_attitude_is_that_of_the_scan(make_env: MakeEnv) -> None:
    env = make_env("ouster16", "env.decimation=1")  # a scan every 6 decisions
    out, action, seen = env.reset(), torch.tensor([1.0, 0.2, 0.5]).expand(24, 3), []
    for _ in range(13):
        out = env.step(action)
        seen.append((out["obs"]["lidar"].clone(), out["obs"]["attitude"].clone()))
    same = [torch.equal(a[0], b[0]) for a, b in itertools.pairwise(seen)]
    assert same == [torch.equal(a[1], b[1]) for a, b in itertools.pairwise(seen)]
    assert same.count(False) == 2
    turned = turns(env, True)
    env2 = make_env("ouster16", *PLAIN, "env.decimation=1")
    env2.reset()
    for _ in range(13):
        out = env2.step(action)
    roll, pitch = out["obs"]["attitude"].numpy().astype(np.float64).T
    np.testing.assert_allclose(np.sin(pitch), -turned[:, 2, 0], atol=1e-5)
    np.testing.assert_allclose(np.cos(pitch) * np.sin(roll), turned[:, 2, 1], atol=1e-5)


def test_a_depth_image_has_the_depth_along_the_axis_the_top_first_and_the_left_first(make_env: MakeEnv) -> None:
    cfg = config("d435")
    distance = np.full((64, 48), 20.0)  # nothing
    hit = directions(cfg)[50, 40]  # to the left (h counts counter-clockwise) and up
    distance[50, 40] = 3.0 / hit[0]  # a wall 3 m ahead
    lidar = torch.as_tensor(np.maximum(cfg.lidar_range_m - distance, 0.0)).float()[None, None]
    image = depth_image(lidar, cfg)
    assert image.shape == (1, 48, 64)
    assert image[0, 47 - 40, 63 - 50] == pytest.approx(3.0, abs=1e-5)
    assert (image > 0).sum() == 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"lidar_rows": 3}, "needs two env.lidar_elevations_deg"),
        ({"lidar_jitter": True}, "env.lidar_jitter=true needs env.lidar_rows"),
        ({"lidar_pinhole": True}, "env.lidar_view_deg below 180"),
        ({"lidar_min_range_m": 4.0}, "must be below env.lidar_range_m"),
    ],
)
def test_settings_that_contradict_each_other_get_a_sentence(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_settings(NavigationConfig(**changed), "env.")
