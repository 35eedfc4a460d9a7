"""Rays and contacts in worlds of voxels against brute force: every solid voxel or triangle, float64, written apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import warp as wp

from fledge.tasks.navigation.config import Collision, NavigationConfig
from fledge.tasks.navigation.physics.structs import Params, make_params
from fledge.tasks.navigation.physics.voxel_struct import Voxels
from fledge.tasks.navigation.physics.voxel_worlds import pack
from fledge.tasks.navigation.physics.voxels import cast_four_voxels, cast_voxels, touches_voxels
from fledge.tasks.navigation.worlds.routes import Routes
from fledge.tasks.navigation.worlds.triangles import cells_of_triangles
from fledge.tasks.navigation.worlds.voxels import World
from fledge.tasks.navigation.worlds.world import load_world
from tests.tasks.navigation.worlds.rooms import box

trimesh = pytest.importorskip("trimesh")
CELL, RANGE = 0.1, 4.0
SHAPE = (40, 36, 24)
ORIGIN = np.array([-2.0, -1.8, -0.1])


@wp.kernel(enable_backward=False)
def cast(v: Voxels, origin: wp.array(dtype=wp.vec3), ray: wp.array(dtype=wp.vec3), out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = cast_voxels(v, 0, origin[i], ray[i], 4.0)


@wp.kernel(enable_backward=False)
def cast_four(
    v: Voxels, origin: wp.array(dtype=wp.vec3), ray: wp.array(dtype=wp.vec3), out: wp.array(dtype=wp.float32)
):
    """Cast rays 4 i to 4 i + 3, which have the same origin and azimuth, together."""
    i = 4 * wp.tid()
    slope = wp.vec4()
    cosine = wp.vec4()
    for k in range(4):
        cosine[k] = wp.sqrt(ray[i + k][0] * ray[i + k][0] + ray[i + k][1] * ray[i + k][1])
        slope[k] = ray[i + k][2] / cosine[k]
    d = cast_four_voxels(v, 0, origin[i], ray[i][0] / cosine[0], ray[i][1] / cosine[0], slope, cosine, 4.0)
    for k in range(4):
        out[i + k] = d[k]


@wp.kernel(enable_backward=False)
def touch(
    p: Params, v: Voxels, was: wp.array(dtype=wp.vec3), pos: wp.array(dtype=wp.vec3), out: wp.array(dtype=wp.int32)
):
    i = wp.tid()
    out[i] = wp.where(touches_voxels(p, v, 0, was[i], pos[i]), 1, 0)


def launch(kernel: Any, out: np.ndarray, *args: Any) -> np.ndarray:
    given = [wp.array(a, dtype=wp.vec3, device="cpu") if isinstance(a, np.ndarray) else a for a in args]
    result = wp.array(out, device="cpu")
    wp.launch(kernel, len(out) // (4 if kernel is cast_four else 1), [*given, result], device="cpu")
    return result.numpy()


def packed(world: World) -> Any:
    none = Routes(np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32), np.zeros(1, np.float32), [])
    return pack([world], [none], np.zeros(1, np.int32), torch.device("cpu"), RANGE)


@pytest.fixture(scope="module")
def blocks() -> World:
    """Some hundred solid voxels in clumps, with a floor."""
    generator = np.random.default_rng(1)
    solid = np.zeros(SHAPE, bool)
    solid[:, :, 0] = True
    for low in generator.integers(0, np.array(SHAPE) - 4, (25, 3)):
        high = low + generator.integers(1, 5, 3)
        solid[low[0] : high[0], low[1] : high[1], low[2] : high[2]] = True
    return World("blocks", solid, ORIGIN, CELL)


@pytest.fixture(scope="module")
def soup() -> World:
    """Random triangles of many sizes, of which none encloses anything: no inside, no order."""
    generator = np.random.default_rng(2)
    centre = generator.uniform(ORIGIN + 0.4, ORIGIN + CELL * np.array(SHAPE) - 0.4, (60, 1, 3))
    size = generator.choice([0.05, 0.3, 0.8], (60, 1, 1))
    triangles = (centre + size * generator.uniform(-1, 1, (60, 3, 3))).astype(np.float32)
    first, _ = cells_of_triangles(triangles, ORIGIN, SHAPE, CELL)
    return World("soup", (np.diff(first) > 0).reshape(SHAPE), ORIGIN, CELL, triangles)


def rays(world: World, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Origins in free voxels and unit rays, some of them along the axes."""
    generator = np.random.default_rng(3)
    free = np.argwhere(~world.solid)
    voxel = free[generator.integers(0, len(free), count)]
    origin = world.origin + CELL * (voxel + generator.uniform(0.05, 0.95, (count, 3)))
    ray = generator.normal(size=(count, 3))
    ray[: count // 10] = np.eye(3)[generator.integers(0, 3, count // 10)] * generator.choice([-1, 1], (count // 10, 1))
    return origin, ray / np.linalg.norm(ray, axis=1, keepdims=True)


def beams(world: World, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Like `rays`, but each four have the same origin and azimuth: some level, most within 30 degrees, some steep."""
    generator = np.random.default_rng(8)
    origin, ray = rays(world, count)
    origin = origin[: count // 4].repeat(4, axis=0)
    azimuth = np.arctan2(ray[: count // 4, 1], ray[: count // 4, 0]).repeat(4)
    up = np.radians(generator.choice([0.0, 30.0, 85.0], count, p=[0.1, 0.8, 0.1]) * generator.uniform(-1, 1, count))
    return origin, np.stack([np.cos(up) * np.cos(azimuth), np.cos(up) * np.sin(azimuth), np.sin(up)], axis=1)


CASTERS = pytest.mark.parametrize(("kernel", "draw"), [(cast, rays), (cast_four, beams)], ids=["one", "four"])


def ray_boxes(origin: np.ndarray, ray: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Distance of each ray to the nearest of all boxes, by slabs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        t0 = (low - origin[:, None]) / ray[:, None]
        t1 = (high - origin[:, None]) / ray[:, None]
    outside = (ray[:, None] == 0) & ((origin[:, None] < low) | (origin[:, None] > high))
    enter = np.where(ray[:, None] == 0, -np.inf, np.minimum(t0, t1)).max(axis=2)
    leave = np.where(ray[:, None] == 0, np.inf, np.maximum(t0, t1)).min(axis=2)
    hit = (enter <= leave) & (leave >= 0) & ~outside.any(axis=2)
    return np.where(hit, np.maximum(enter, 0), np.inf).min(axis=1)


def ray_triangles(origin: np.ndarray, ray: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """Distance of each ray to the nearest of all triangles: the plane first, then the sides by signs of volumes."""
    a, b, c = np.moveaxis(triangles.astype(np.float64), 1, 0)
    normal = np.cross(b - a, c - a)
    t = ((a - origin[:, None]) * normal).sum(-1) / (ray[:, None] * normal).sum(-1)
    at = origin[:, None] + t[..., None] * ray[:, None]
    sides = [(np.cross(v - u, at - u) * normal).sum(-1) for u, v in ((a, b), (b, c), (c, a))]
    return np.where((np.min(sides, axis=0) >= 0) & (t >= 0), t, np.inf).min(axis=1)


@CASTERS
def test_a_ray_ends_at_the_first_solid_voxel(blocks: World, kernel: Any, draw: Any) -> None:
    origin, ray = draw(blocks, 4000)
    struct, _kept = packed(blocks)
    found = launch(kernel, np.zeros(len(origin), np.float32), struct, origin, ray)
    low = blocks.origin + CELL * np.argwhere(blocks.solid)
    expected = np.concatenate(
        [ray_boxes(o, r, low, low + CELL) for o, r in zip(origin[:, None], ray[:, None], strict=True)]
    )
    hit = expected < RANGE
    assert hit.sum() > 500
    wrong = np.abs(found - np.where(hit, expected, RANGE)) > 1e-3
    assert wrong.mean() < 0.001  # rays along an edge may pass on either side of it


@CASTERS
def test_a_ray_in_a_mesh_ends_at_the_first_triangle(soup: World, kernel: Any, draw: Any) -> None:
    origin, ray = draw(soup, 4000)
    struct, _kept = packed(soup)
    found = launch(kernel, np.zeros(len(origin), np.float32), struct, origin, ray)
    expected = ray_triangles(origin, ray, soup.triangles)
    inside = np.abs(origin + expected[:, None].clip(max=9) * ray - soup.origin - CELL * np.array(SHAPE) / 2)
    hit = (expected < RANGE) & (inside < CELL * np.array(SHAPE) / 2).all(axis=1)
    assert hit.sum() > 500
    wrong = np.abs(found - np.where(hit, expected, RANGE)) > 1e-3
    assert wrong.mean() < 0.001


def hits_by_plucker(origin: np.ndarray, ray: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """Distance of each ray to the nearest of all triangles, float64: it passes all three edges on the same side."""
    if len(origin) > 500:  # in parts, to save memory
        parts = [hits_by_plucker(*np.split(np.hstack([origin, ray])[k : k + 500], 2, axis=1), triangles)
                 for k in range(0, len(origin), 500)]  # fmt: skip
        return np.concatenate(parts)
    a, b, c = np.moveaxis(triangles, 1, 0)
    line = np.hstack([np.cross(origin, ray), ray])
    sides = np.stack([line @ np.hstack([v - u, np.cross(u, v)]).T for u, v in ((a, b), (b, c), (c, a))])
    inside = (sides >= 0).all(axis=0) | (sides <= 0).all(axis=0)
    normal = np.cross(b - a, c - a)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = ((a * normal).sum(axis=1) - origin @ normal.T) / (ray @ normal.T)
    return np.where(inside & (t >= 0), t, np.inf).min(axis=1)


def hits_by_trimesh(origin: np.ndarray, ray: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """The same by trimesh's own ray caster."""
    pytest.importorskip("rtree")
    mesh = trimesh.Trimesh(triangles.reshape(-1, 3), np.arange(3 * len(triangles)).reshape(-1, 3), process=False)
    at, which, _ = mesh.ray.intersects_location(origin, ray, multiple_hits=False)
    found = np.full(len(origin), np.inf)
    found[which] = np.linalg.norm(at - origin[which], axis=1)
    return found


@pytest.fixture(scope="module")
def landscape() -> np.ndarray:
    """Hills of 8 x 8 m between walls and below a ceiling, with spheres and two rings, [T, 3, 3] float64, m."""
    x, y = np.meshgrid(np.linspace(0, 8, 25), np.linspace(0, 8, 25), indexing="ij")
    hills = np.stack([x, y, 0.5 + 0.4 * np.sin(1.3 * x) * np.cos(0.9 * y)], axis=-1)
    low, right, far, both = hills[:-1, :-1], hills[1:, :-1], hills[:-1, 1:], hills[1:, 1:]
    quads = np.stack([np.stack([low, right, both], axis=2), np.stack([low, both, far], axis=2)])
    parts = [quads.reshape(-1, 3, 3), box((0.0, 0.0, 0.0), (8.0, 8.0, 3.6))]
    for radius, centre in ((0.5, (2.0, 2.0, 2.0)), (0.9, (5.5, 3.0, 1.8)), (0.15, (4.0, 6.0, 1.5))):
        parts.append(trimesh.creation.icosphere(subdivisions=3, radius=radius).triangles + np.array(centre))
    ring = trimesh.creation.torus(0.8, 0.2, major_sections=24, minor_sections=12).triangles
    parts += [ring + np.array([2.0, 5.5, 2.5]), ring[..., [2, 0, 1]] + np.array([6.5, 6.0, 2.2])]
    return np.concatenate(parts)


@pytest.mark.parametrize("caster", [hits_by_plucker, hits_by_trimesh])
def test_rays_in_a_mesh_file_end_within_a_centimetre_of_the_files_surface(
    landscape: np.ndarray, tmp_path: Path, caster: Any
) -> None:
    assert len(landscape) > 5000
    mesh = trimesh.Trimesh(landscape.reshape(-1, 3), np.arange(3 * len(landscape)).reshape(-1, 3), process=False)
    mesh.export(tmp_path / "landscape.stl")
    world = load_world(tmp_path / "landscape.stl", scale=1.0, up="z", floor="none")
    origin, ray = (values.astype(np.float32).astype(np.float64) for values in rays(world, 6000))
    struct, _kept = packed(world)
    found = launch(cast, np.zeros(len(origin), np.float32), struct, origin, ray)
    expected = np.minimum(caster(origin, ray, landscape), RANGE)
    assert (expected < RANGE).sum() > 5000
    assert (np.abs(found - expected) < 0.01).mean() >= 0.999


def params(collision: Collision) -> Any:
    return make_params(NavigationConfig(collision=collision))


def paths(world: World, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Paths of up to 0.3 m."""
    generator = np.random.default_rng(4)
    low, high = world.bounds
    was = generator.uniform(low + 0.5, high - 0.5, (count, 3))
    return was, was + generator.uniform(-0.17, 0.17, (count, 3))


def box_gaps(collision: Collision, at: np.ndarray, low: np.ndarray) -> float:
    beyond = np.maximum(np.maximum(low - at[:, None], at[:, None] - low - CELL), 0)
    flat = np.hypot(beyond[..., 0], beyond[..., 1])
    if collision is Collision.sphere:
        return float(np.hypot(flat, beyond[..., 2]).min() - 0.3)
    return float(np.maximum(flat - 0.3, beyond[..., 2] - 0.1).min())


@pytest.mark.parametrize("collision", [Collision.cylinder, Collision.sphere])
def test_a_body_touches_the_solid_voxels_on_its_path(blocks: World, collision: Collision) -> None:
    was, pos = paths(blocks, 300)
    struct, _kept = packed(blocks)
    found = launch(touch, np.zeros(len(was), np.int32), params(collision), struct, was, pos)
    low = blocks.origin + CELL * np.argwhere(blocks.solid)
    gaps = np.array(
        [
            box_gaps(collision, a + np.linspace(0, 1, 60)[:, None] * (b - a), low)
            for a, b in zip(was.astype(np.float32).astype(float), pos.astype(np.float32).astype(float), strict=True)
        ]
    )
    sure = np.abs(gaps) > 3e-3
    assert (gaps[sure] <= 0).sum() > 50
    assert (gaps[sure] > 0).sum() > 50
    np.testing.assert_array_equal(found[sure] == 1, gaps[sure] <= 0)


@pytest.mark.parametrize("collision", [Collision.cylinder, Collision.sphere])
def test_a_body_touches_the_triangles_on_its_path(soup: World, collision: Collision) -> None:
    """Each triangle is 5,000 points here, so a gap is known to 2 cm."""
    was, pos = paths(soup, 100)
    struct, _kept = packed(soup)
    found = launch(touch, np.zeros(len(was), np.int32), params(collision), struct, was, pos)
    u, v = np.meshgrid(np.linspace(0, 1, 101), np.linspace(0, 1, 101))
    keep = u + v <= 1
    u, v = u[keep][:, None], v[keep][:, None]
    cloud = np.concatenate([a + u * (b - a) + v * (c - a) for a, b, c in soup.triangles.astype(float)])
    gaps = []
    for a, b in zip(was, pos, strict=True):
        near = cloud[np.abs(cloud - (a + b) / 2).max(axis=1) < 0.6]
        away = near - (a + np.linspace(0, 1, 8)[:, None, None] * (b - a))
        flat = np.hypot(away[..., 0], away[..., 1])
        full = flat - 0.3 if collision is Collision.cylinder else np.hypot(flat, away[..., 2]) - 0.3
        if collision is Collision.cylinder:
            full = np.maximum(full, np.abs(away[..., 2]) - 0.1)
        gaps.append(full.min(initial=9.0))
    gaps = np.array(gaps)
    sure = np.abs(gaps) > 0.02
    assert (gaps[sure] <= 0).sum() > 15
    assert (gaps[sure] > 0).sum() > 15
    np.testing.assert_array_equal(found[sure] == 1, gaps[sure] <= 0)
