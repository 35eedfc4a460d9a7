"""LiDAR distances, recomputed from a recording's map and poses, so that recordings need not store them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge.tasks.navigation.physics.terrain import CELL_M, CELLS, HALF_M, HEIGHT_STEP, SOLID
from fledge.tasks.navigation.view.world_scene import scene_world
from fledge.tasks.navigation.worlds.distance import chebyshev
from fledge.tasks.navigation.worlds.voxels import World
from fledge.tasks.view.stage import Crowd

WALK_M = 0.03  # smallest step along a beam
DRAWN = (32, 12)  # at most so many columns and rows of rays are shown


def shown_rays(rays: np.ndarray) -> np.ndarray:
    """Return the rays [H', V', 3] of a sensor [H, V, 3] that are shown: at most `DRAWN`, evenly chosen."""
    h, v = (-(-size // most) for size, most in zip(rays.shape[:2], DRAWN, strict=True))
    return rays[h // 2 :: h, v // 2 :: v]


def turned_rays(rays: np.ndarray, heading: np.ndarray, tilt: np.ndarray | None) -> np.ndarray:
    """Return a sensor's rays [H, V, 3] in the world's frame, [T, H, V, 3], by heading [T] and roll and pitch [T, 2], rad."""
    roll, pitch = np.zeros((2, len(heading))) if tilt is None else tilt.T.astype(np.float64)
    x, y, z = (rays[None, ..., k] for k in range(3))
    (cr, sr), (cp, sp), (cy, sy) = (
        (np.cos(a)[:, None, None], np.sin(a)[:, None, None]) for a in (roll, pitch, heading.astype(np.float64))
    )
    y, z = cr * y - sr * z, sr * y + cr * z
    x, z = cp * x + sp * z, -sp * x + cp * z
    return np.stack([cy * x - sy * y, sy * x + cy * y, z], axis=-1)


def cast_columns(
    cells: np.ndarray, pos: np.ndarray, ahead: np.ndarray, slope: np.ndarray, cosine: np.ndarray, reach: float
) -> np.ndarray:
    """Return distances [T, H, V] along beams to columns and ground, m, exact to `WALK_M`; at most `reach`.

    T are frames, H azimuths, V elevations. `ahead` has the beams' horizontal directions, [T, H, 2] unit vectors; `slope` and
    `cosine` are the tangents and cosines of the elevations, [V] or [T, H, V].
    """
    shape = (*ahead.shape[:2], slope.shape[-1])
    dx, dy = (np.broadcast_to(ahead[..., k, None], shape).ravel() for k in (0, 1))
    x, y, z = (np.broadcast_to(pos[:, k, None, None], shape).ravel() for k in (0, 1, 2))
    rise, level = np.broadcast_to(slope, shape).ravel(), np.broadcast_to(cosine, shape).ravel()
    end = reach * level
    with np.errstate(divide="ignore", invalid="ignore"):
        ground = np.where(rise < 0, z / -rise, np.inf)
        meets = (ground < end) & (np.abs(x + ground * dx) < HALF_M) & (np.abs(y + ground * dy) < HALF_M)
    end = np.where(meets, np.maximum(ground, 0.0), end)
    hit, along = meets.copy(), np.zeros(len(end))
    flying = np.arange(len(end))
    while len(flying):
        s = along[flying]
        ix = np.floor((x[flying] + s * dx[flying] + HALF_M) / CELL_M).astype(np.int64)
        iy = np.floor((y[flying] + s * dy[flying] + HALF_M) / CELL_M).astype(np.int64)
        inside = (ix >= 0) & (iy >= 0) & (ix < CELLS) & (iy < CELLS)
        value = np.where(inside, cells[np.clip(ix, 0, CELLS - 1), np.clip(iy, 0, CELLS - 1)], 0).astype(np.int64)
        height = (value - SOLID) * HEIGHT_STEP
        struck = (value >= SOLID) & (z[flying] + s * rise[flying] < height)
        end[flying[struck]], hit[flying[struck]] = s[struck], True
        free = np.where(value < SOLID, (value - 1) * CELL_M, 0.0)
        along[flying] = s + np.maximum(free, WALK_M)
        flying = flying[~struck & inside & (along[flying] < end[flying])]
    return np.where(hit, np.minimum(end / level, reach), reach).reshape(shape)


def cast_world(world: World, pos: np.ndarray, ahead: np.ndarray, up: np.ndarray, reach: float) -> np.ndarray:
    """Return distances [T, H, V] along beams to the solid voxels of a world, m, exact to `WALK_M`; at most `reach`.

    Arguments are those of `cast_crowd`.
    """
    up = np.broadcast_to(up, (*ahead.shape[:2], up.shape[-1]))
    flat = np.cos(up)[..., None] * ahead[:, :, None]
    ray = np.concatenate([flat, np.sin(up)[..., None]], axis=-1).reshape(-1, 3)
    around = np.stack([pos.min(axis=0) - reach, pos.max(axis=0) + reach])  # beams end within it
    low, high = np.clip((around - world.origin) // world.cell_m + [[0], [1]], 0, world.solid.shape).astype(int)
    solid = world.solid[tuple(slice(a, b) for a, b in zip(low, high, strict=True))]
    start = np.broadcast_to(pos[:, None, None], (*up.shape, 3)).reshape(-1, 3) - world.origin - low * world.cell_m
    free = np.maximum((chebyshev(solid).astype(np.float32) - 1) * world.cell_m, WALK_M)
    distance, along = np.full(len(ray), reach), np.zeros(len(ray))
    flying = np.arange(len(ray))
    while len(flying):
        index = np.floor((start[flying] + along[flying, None] * ray[flying]) / world.cell_m).astype(np.int64)
        inside = ((index >= 0) & (index < solid.shape)).all(axis=1)
        flying, at = flying[inside], tuple(index[inside].T)
        struck = solid[at]
        distance[flying[struck]] = along[flying[struck]]
        along[flying] += free[at]
        flying = flying[~struck & (along[flying] < reach)]
    return distance.reshape(up.shape)


def cast_scene(
    scene: Mapping[str, Any], pos: np.ndarray, ahead: np.ndarray, up: np.ndarray, reach: float
) -> np.ndarray:
    """Return distances [T, H, V] along beams to the columns or voxels of a recording's scene; arguments as of `cast_crowd`."""
    if (world := scene_world(scene)) is not None:
        return cast_world(world, pos, ahead, up, reach)
    return cast_columns(scene["cells"].reshape(CELLS, CELLS), pos, ahead, np.tan(up), np.cos(up), reach)


def cast_crowd(crowd: Crowd, pos: np.ndarray, ahead: np.ndarray, up: np.ndarray, reach: float) -> np.ndarray:
    """Return distances [T, H, V] along beams to moving obstacles, m, at most `reach`; obstacles count as upright cylinders.

    T are frames, H azimuths, V elevations. `ahead` has the beams' horizontal directions, [T, H, 2] unit vectors; `up` are the
    elevations, [V] or [T, H, V] radians.
    """
    level = np.cos(up)
    nearest = np.full((*ahead.shape[:2], up.shape[-1]), reach)
    for k in range(crowd.ids.shape[1]):
        there = crowd.ids[:, k] >= 0
        size = crowd.sizes[np.maximum(crowd.ids[:, k], 0)]
        away = crowd.pos[:, k] - pos
        along = np.einsum("tha,ta->th", ahead, away[:, :2])
        aside = ahead[..., 0] * away[:, None, 1] - ahead[..., 1] * away[:, None, 0]
        room = (size[:, :1] / 2) ** 2 - aside**2
        entry = np.maximum(along - np.sqrt(np.maximum(room, 0.0)), 0.0)[..., None]  # [T, H, 1]
        tall = np.abs(entry * np.tan(up) - away[:, None, None, 2]) <= size[:, None, None, 2] / 2
        met = ((room > 0) & (along > 0) & there[:, None])[..., None] & tall
        nearest = np.where(met, np.minimum(nearest, entry / level), nearest)
    return nearest
