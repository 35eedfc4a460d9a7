"""Observations from readings, by hand and against brute force: frames, rays, depth images, moving obstacles, bad input."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from fledge.core.overrides import build_config
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.robot import describe_sensor
from fledge.tasks.navigation.sensing.rays import directions
from fledge_runtime import Camera, InputError, Inputs, Mount
from fledge_runtime.geometry import Rays, angle_of_turn, turn
from fledge_runtime.observe import Observer

LEVEL = (1.0, 0.0, 0.0, 0.0)
SENSORS = {
    "NavRL's": {},
    "144 x 16, tilting": {
        "lidar_azimuths": 144, "lidar_rows": 16, "lidar_elevations_deg": [-17.7, 17.7], "lidar_tilts": True,
        "lidar_range_m": 8.0, "lidar_min_range_m": 0.3,
    },
    "non-repetitive": {
        "lidar_azimuths": 90, "lidar_rows": 15, "lidar_elevations_deg": [-7.0, 52.0], "lidar_jitter": True,
        "lidar_tilts": True, "lidar_range_m": 10.0,
    },
    "a camera": {
        "lidar_azimuths": 40, "lidar_rows": 24, "lidar_elevations_deg": [-29.0, 29.0], "lidar_view_deg": 87.0,
        "lidar_pinhole": True, "lidar_tilts": True, "lidar_range_m": 10.0,
    },
    "one row, half around": {"lidar_azimuths": 19, "lidar_elevations_deg": [3.0], "lidar_view_deg": 180.0},
}  # fmt: skip


def config(name: str) -> NavigationConfig:
    return dataclasses.replace(NavigationConfig(), **SENSORS[name])


def observer(cfg: NavigationConfig | None = None, start: Any = (0, 0, 1), goal: Any = (10, 0, 1)) -> Observer:
    made = Observer({"sensor": describe_sensor(cfg or NavigationConfig())})
    made.reset(start, goal)
    return made


def yawed(degrees: float) -> tuple[float, ...]:
    return math.cos(math.radians(degrees) / 2), 0.0, 0.0, math.sin(math.radians(degrees) / 2)


def inputs(**given: Any) -> Inputs:
    usual = {"time_s": 0.0, "position_w": (0, 0, 1), "velocity_w": (0, 0, 0), "quaternion_wxyz": LEVEL}
    surroundings = {} if {"points_b", "depth"} & {*given} else {"points_w": np.zeros((0, 3))}
    return Inputs(**{**usual, **surroundings, **given})


def hit_of(seen: dict[str, np.ndarray]) -> tuple[tuple[int, int], float]:
    """Return the only ray that hit something, and its distance with a range of 4 m."""
    (h, v), *more = np.argwhere(seen["lidar"][0])
    assert not more
    return (int(h), int(v)), 4.0 - float(seen["lidar"][0, h, v])


@pytest.mark.parametrize("name", SENSORS)
def test_hits_on_the_rays_of_every_sensor_are_found_at_their_distance(name: str) -> None:
    cfg, rng = config(name), np.random.default_rng(0)
    rays = Rays(describe_sensor(cfg))
    np.testing.assert_allclose(rays.directions, directions(cfg), atol=1e-12)
    away = rng.uniform(0.5, cfg.lidar_range_m - 0.1, rays.shape)
    x, y, z = (away[..., None] * rays.directions).reshape(-1, 3).T
    np.testing.assert_allclose(rays.nearest_hits(x, y, z), cfg.lidar_range_m - away, atol=2e-6)


@pytest.mark.parametrize("name", ["NavRL's", "144 x 16, tilting", "one row, half around"])
def test_a_cloud_gives_the_nearest_point_of_each_thin_ray(name: str) -> None:
    cfg, rng = config(name), np.random.default_rng(1)
    sensor = describe_sensor(cfg)
    rays, points = Rays(sensor), rng.normal(size=(20_000, 3)) * [1.0, 1.0, 0.3]
    points *= (rng.uniform(0.1, 1.2 * cfg.lidar_range_m, len(points)) / np.linalg.norm(points, axis=1))[:, None]
    away = np.linalg.norm(points, axis=1)
    cosine = directions(cfg).reshape(-1, 3) @ (points / away[:, None]).T
    least = math.cos(math.radians(sensor["tolerance_deg"]))
    clear = (np.abs(cosine - least) > 1e-6).all(axis=0)  # of edges, where single precision may decide otherwise
    points, away, hit = points[clear], away[clear], cosine[:, clear] >= least
    hit &= (away >= cfg.lidar_min_range_m) & (away < cfg.lidar_range_m)
    expected = np.where(hit, cfg.lidar_range_m - away, 0.0).max(axis=1).reshape(rays.shape)
    assert (expected > 0).sum() > 12
    np.testing.assert_allclose(rays.nearest_hits(*points.T), expected, atol=5e-6)


def test_bins_take_every_point_inside_them() -> None:
    cfg, rng = config("non-repetitive"), np.random.default_rng(2)
    around, up = rng.uniform(0, math.tau, 5000), np.radians(rng.uniform(-6.9, 51.9, 5000))
    away = rng.uniform(1.0, 9.0, 5000)
    points = away * np.stack([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)])
    expected, wide, tall = np.zeros((90, 15)), math.tau / 90, np.radians(59.0) / 15
    h, v = np.round(around / wide).astype(int) % 90, ((up - np.radians(-7.0)) // tall).astype(int)
    np.maximum.at(expected, (h, v), 10.0 - away)
    found = Rays(describe_sensor(cfg)).nearest_hits(*points)
    assert (np.abs(found - expected) > 1e-5).mean() < 0.01  # points within 0.05 degrees of a bin's edge
    assert (expected > 0).mean() > 0.9


def test_the_number_that_grows_with_the_angle_does() -> None:
    angles = np.radians(np.linspace(-179.9, 179.9, 2000))
    turns = turn(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    assert (np.diff(turns) > 0).all()
    np.testing.assert_allclose(angle_of_turn(turns.astype(np.float64)), angles, atol=1e-5)


@pytest.mark.parametrize(
    ("point", "yaw", "ray", "away"),
    [
        ((2.0, 0.0, 1.0), 0.0, (0, 1), 2.0),  # ahead
        ((0.0, 2.0, 1.0), 0.0, (9, 1), 2.0),  # 90 degrees to the left
        ((0.0, -1.0, 1.0), 0.0, (27, 1), 1.0),
        ((0.0, 2.0, 1.0), 90.0, (0, 1), 2.0),  # ahead of a drone that looks to the left
        ((-2.0, 0.0, 1.0), 90.0, (9, 1), 2.0),
        ((2.0, 0.0, 1.0 + 2.0 * math.tan(math.radians(20))), 0.0, (0, 3), 2.0 / math.cos(math.radians(20))),  # above
        ((2.0, 0.0, 1.0 - 2.0 * math.tan(math.radians(10))), 0.0, (0, 0), 2.0 / math.cos(math.radians(10))),  # below
    ],
)
def test_a_point_hits_the_ray_that_looks_at_it(point: Any, yaw: float, ray: tuple[int, int], away: float) -> None:
    seen = observer().read(inputs(points_w=np.array([point]), quaternion_wxyz=yawed(yaw)))
    assert hit_of(seen) == (ray, pytest.approx(away, abs=1e-5))


def test_the_nearest_of_several_points_counts_and_those_that_are_not_finite_do_not() -> None:
    points = np.array([[3.0, 0, 1], [2.0, 0, 1], [np.nan, 0, 1], [np.inf, 0, 1], [9.0, 0, 1], [2.5, 0, 1]])
    seen = observer().read(inputs(points_w=points))
    assert hit_of(seen) == ((0, 1), pytest.approx(2.0, abs=1e-6))


def test_points_of_a_mounted_sensor_are_turned_and_shifted() -> None:
    backwards = Mount((0.0, 0.0, 0.0), yawed(180.0))
    seen = observer().read(inputs(points_b=np.array([[2.0, 0.0, 0.0]]), mount=backwards))
    assert hit_of(seen) == ((18, 1), pytest.approx(2.0, abs=1e-6))
    ahead = Mount((0.5, 0.0, 0.0))
    seen = observer().read(inputs(points_b=np.array([[1.5, 0.0, 0.0]]), mount=ahead, quaternion_wxyz=yawed(45.0)))
    assert hit_of(seen) == ((0, 1), pytest.approx(2.0, abs=1e-6))


def test_rays_of_the_yaw_frame_do_not_turn_with_pitch_and_those_of_the_body_do() -> None:
    pitch = math.cos(math.radians(5)), 0.0, math.sin(math.radians(5)), 0.0  # 10 degrees nose down
    seen = observer().read(inputs(points_w=np.array([[2.0, 0.0, 1.0]]), quaternion_wxyz=pitch))
    assert hit_of(seen)[0] == (0, 1)
    assert seen["attitude"] == pytest.approx([0.0, math.radians(10)], abs=1e-6)
    tilting = observer(dataclasses.replace(NavigationConfig(), lidar_tilts=True))
    seen = tilting.read(inputs(points_w=np.array([[2.0, 0.0, 1.0]]), quaternion_wxyz=pitch))
    assert hit_of(seen)[0] == (0, 2)  # 10 degrees above the body's x axis


def test_a_depth_image_hits_what_its_pixels_look_at() -> None:
    camera = Camera(fx=200.0, fy=200.0, cx=160.0, cy=120.0)
    depth = np.zeros((240, 320), np.float32)
    depth[119:122, 159:162] = 2.0  # ahead
    depth[0, 0] = np.nan
    assert hit_of(observer().read(inputs(depth=depth, camera=camera))) == ((0, 1), pytest.approx(2.0, abs=1e-3))
    left_up, twenty, ten = np.zeros((240, 320), np.float32), math.radians(20), math.radians(10)
    row, column = round(120 - 200 * math.tan(ten) / math.cos(twenty)), round(160 - 200 * math.tan(twenty))
    left_up[row - 1 : row + 2, column - 1 : column + 2] = 1.0
    assert hit_of(observer().read(inputs(depth=left_up, camera=camera)))[0] == (2, 2)  # 20 degrees left, 10 up


def test_a_depth_image_of_infinity_is_free_space() -> None:
    seen = observer().read(inputs(depth=np.full((4, 4), np.inf), camera=CAMERA))
    assert not seen["lidar"].any()


def test_a_wall_in_a_large_depth_image_is_seen_by_every_ray_that_looks_at_it() -> None:
    camera, wall = Camera(fx=430.0, fy=430.0, cx=424.0, cy=240.0), np.full((480, 848), 1.5, np.float32)
    seen = observer().read(inputs(depth=wall, camera=camera))["lidar"][0]
    rays = directions(NavigationConfig())
    ahead = rays[..., 0]
    inside = (ahead > 0) & (np.abs(rays[..., 1]) < 0.95 * ahead) & (np.abs(rays[..., 2]) < 0.5 * ahead)
    np.testing.assert_allclose(4.0 - seen[inside], 1.5 / ahead[inside], rtol=0.02)


def test_the_state_is_in_the_goal_frame() -> None:
    made = observer(start=(0, 0, 1), goal=(0, 10, 2))  # x of the goal frame is y of the world
    seen = made.read(inputs(position_w=(0, 4, 1), velocity_w=(0, 1.5, 0.5), quaternion_wxyz=yawed(90.0)))
    up = 1 / math.sqrt(37)
    np.testing.assert_allclose(seen["state"], [6 * up, 0, up, 6, 1, 1.5, 0, 0.5], atol=1e-6)
    np.testing.assert_allclose(seen["pose"], [1.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(made.to_world(np.array([1.0, 2.0, 3.0])), [-2, 1, 3], atol=1e-12)


def test_the_nearest_moving_obstacles_come_first_and_tall_ones_are_cylinders() -> None:
    movers = [
        ((3.0, 0.0, 2.0), (0.0, 1.0, 0.0), (0.5, 1.0)),  # a box
        ((0.0, -1.0, 5.0), (1.0, 0.0, 0.0), 0.25),  # a person, of any height
        ((9.0, 0.0, 1.0), (0.0, 0.0, 0.0), 0.5),  # too far
    ]
    rows = observer().read(inputs(movers=movers))["dynamic_obstacle"][0]
    np.testing.assert_allclose(rows[0], [0, -1, 0, 1, 0, 1, 0, 0, 0, 0], atol=1e-6)
    far = math.sqrt(10)
    np.testing.assert_allclose(rows[1], [3 / far, 0, 1 / far, 3, 1, 0, 1, 0, 1, 1], atol=1e-6)
    assert not rows[2:].any()
    table = np.array([[3.0, 0, 2, 0, 1, 0, 0.5, 1.0], [0, -1.0, 5, 1, 0, 0, 0.25, np.inf], [9, 0, 1, 0, 0, 0, 0.5, 3]])
    np.testing.assert_array_equal(observer().read(inputs(movers=table))["dynamic_obstacle"][0], rows)


CAMERA = Camera(9.0, 9.0, 2.0, 2.0)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a position that is not finite": ({"position_w": (0, np.nan, 1)}, "position_w has NaN or infinity"),
    "a velocity of two numbers": ({"velocity_w": (0, 1)}, "velocity_w must be 3 numbers"),
    "a quaternion of zeros": ({"quaternion_wxyz": (0, 0, 0, 0)}, "must be a unit quaternion in the order w, x, y, z"),
    "no surroundings": ({"points_w": None}, "got none of them"),
    "two surroundings": ({"points_b": np.zeros((0, 3)), "points_w": np.zeros((0, 3))}, "got points_w and points_b"),
    "points of two numbers": ({"points_w": np.zeros((5, 2))}, "points_w must be an array"),
    "a depth image without a camera": ({"depth": np.zeros((4, 4))}, "with `camera`"),
    "points of which none is finite": ({"points_w": np.full((5, 3), np.nan)}, "points_w has no finite point"),
    "integer points": ({"points_w": np.ones((5, 3), int)}, "floating-point numbers, m"),
    "rows of several lengths": ({"points_w": [[1.0, 2, 3], [1.0, 2]]}, "points_w must be an array of numbers"),
    "points that are text": ({"points_b": "abc"}, "points_b must be an array of numbers"),
    "a mount of another type": ({"points_b": np.ones((5, 3)), "mount": None}, "mount must be a Mount"),
    "a depth image of zeros": ({"depth": np.zeros((4, 4)), "camera": CAMERA}, "depth has no reading"),
    "negative depths": ({"depth": -np.ones((4, 4)), "camera": CAMERA}, "depth has no reading"),
    "an empty depth image": ({"depth": np.zeros((0, 4)), "camera": CAMERA}, "depth has no reading"),
    "a depth image in millimetres": ({"depth": np.ones((4, 4), np.uint16), "camera": CAMERA}, "by 0.001"),
    "a camera of zero width": ({"depth": np.ones((4, 4)), "camera": Camera(0.0, 9.0, 2.0, 2.0)}, "fx=0.0 .* above 0"),
    "a camera of NaN": ({"depth": np.ones((4, 4)), "camera": Camera(9.0, np.nan, 2.0, 2.0)}, "camera .* has NaN"),
    "a camera of None": ({"depth": np.ones((4, 4)), "camera": Camera(None, 9.0, 2.0, 2.0)}, "camera .* has NaN"),  # type: ignore[arg-type]
    "movers that are a number": ({"movers": 5}, "movers must be rows of 8 numbers"),
    "movers of seven numbers": ({"movers": np.zeros((2, 7))}, "movers must be rows of 8 numbers"),
    "a mover that is not finite": ({"movers": np.full((1, 8), np.nan)}, "movers has NaN"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_readings_that_cannot_be_used_are_refused(name: str) -> None:
    given, pattern = BAD[name]
    with pytest.raises(InputError, match=pattern):
        observer().read(inputs(**given))


def test_the_tolerance_of_a_ray_stays_within_its_spacing() -> None:
    assert describe_sensor(NavigationConfig())["tolerance_deg"] == 1.0
    dense = build_config(NavigationConfig, [], ["lidar_azimuths=720"])
    assert describe_sensor(dense)["tolerance_deg"] == pytest.approx(0.225)
