"""Turn the content of a file into a world: unit, axes, crop, voxels, floor and headroom."""

from __future__ import annotations

import math

import numpy as np

from fledge.core.errors import FormatError, InputError
from fledge.tasks.navigation.worlds import guesses
from fledge.tasks.navigation.worlds.content import Content, Grid, Points, ReadOptions, Surface
from fledge.tasks.navigation.worlds.triangles import cells_of_triangles
from fledge.tasks.navigation.worlds.voxels import MAX_TRIANGLES, World, grid_shape

CHUNK = 2_000_000  # points that are converted at once


def build_world(name: str, content: Content, options: ReadOptions, notes: list[str]) -> World:
    """Return the world of a file's content.

    Args:
        name: Name of the world.
        content: Points, triangles or voxels.
        options: The user's options.
        notes: Sentences so far; the world keeps them, with those of the guesses made here.

    Raises:
        FormatError: There is nothing in the file.
        MemoryBudgetError: The world has too many voxels.
    """
    if isinstance(content, Points):
        world = _of_points(name, content, options, notes)
    elif isinstance(content, Surface):
        world = _of_triangles(name, content, options, notes)
    else:
        world = _of_grid(name, content, options, notes)
    return _with_floor(world, options)


def _of_points(name: str, content: Points, options: ReadOptions, notes: list[str]) -> World:
    xyz = content.xyz[:, :3]
    if xyz.dtype.kind != "f":
        xyz = xyz.astype(np.float64)
    lacking = len(xyz) - sum(int(np.isfinite(part).all(axis=1).sum()) for part in _chunks(xyz))
    if lacking:
        xyz = xyz[np.isfinite(xyz).all(axis=1)]
        notes.append(f"{lacking:,} points without finite coordinates are left out.")
    if not len(xyz):
        raise FormatError(f"{name} has no points: check the file.")
    if np.abs(xyz).max() > 1e12:
        raise FormatError(f"{name} has coordinates above 1e12: the file is damaged or of another kind.")
    typical = guesses.typical_range(xyz)
    y_up = guesses.guess_up(options.up, content.y_up, typical[1] - typical[0], notes)
    if y_up:
        xyz = guesses.turn_up(xyz)
        typical = guesses.typical_range(xyz)
    scale = options.scale or (1.0 if content.metres else guesses.guess_scale(typical[1] - typical[0], notes))
    low, high, cropped = guesses.crop_range(xyz.min(axis=0), xyz.max(axis=0), typical)
    if cropped:
        everything = len(xyz)
        xyz = xyz[((xyz >= low) & (xyz <= high)).all(axis=1)]
        low, high = xyz.min(axis=0), xyz.max(axis=0)
        size = " x ".join(f"{length:.1f}" for length in (high - low) * scale)
        notes.append(
            f"{everything - len(xyz):,} of {everything:,} points lie far outside and are left out; the rest is {size} m."
        )
    low, high = low * float(scale), high * float(scale)
    shift = guesses.guess_shift(low, high, notes)
    cell_m = options.cell
    first = np.floor((low + shift) / cell_m + 1e-6)
    last = np.floor((high + shift) / cell_m + 1e-6)
    shape = grid_shape((last - first + 1) * cell_m, cell_m, options.max_bytes)
    solid = np.zeros(shape, bool)
    flat = solid.reshape(-1)
    for part in _chunks(xyz):
        index = (np.floor((part * scale + shift) / cell_m + 1e-6) - first).astype(np.int64)
        flat[(index[:, 0] * shape[1] + index[:, 1]) * shape[2] + index[:, 2]] = True
    return World(name, solid, first * cell_m, cell_m, None, notes)


def _chunks(xyz: np.ndarray) -> list[np.ndarray]:
    return [xyz[at : at + CHUNK] for at in range(0, len(xyz), CHUNK)]


def _of_triangles(name: str, content: Surface, options: ReadOptions, notes: list[str]) -> World:
    triangles = np.asarray(content.triangles, np.float64).reshape(-1, 3, 3)
    good = np.isfinite(triangles).all(axis=(1, 2))
    if lacking := int((~good).sum()):
        triangles = triangles[good]
        notes.append(f"{lacking:,} triangles without finite coordinates are left out.")
    if not len(triangles):
        raise FormatError(f"{name} has no triangles: check the file.")
    if np.abs(triangles).max() > 1e12:
        raise FormatError(f"{name} has coordinates above 1e12: the file is damaged or of another kind.")
    if guesses.guess_up(options.up, content.y_up, np.ptp(triangles.reshape(-1, 3), axis=0), notes):
        triangles = guesses.turn_up(triangles)
    size = np.ptp(triangles.reshape(-1, 3), axis=0)
    triangles *= options.scale or (1.0 if content.metres else guesses.guess_scale(size, notes))
    low, high = triangles.min(axis=(0, 1)), triangles.max(axis=(0, 1))
    shift = guesses.guess_shift(low, high, notes)
    surface = (triangles + shift).astype(np.float32)
    low, high = surface.min(axis=(0, 1)).astype(np.float64), surface.max(axis=(0, 1)).astype(np.float64)
    cell_m = options.cell
    origin = low - 0.5 * cell_m  # a flat floor, ceiling or wall at the bounds lies in the middle of its voxels
    shape = grid_shape(high - low + cell_m, cell_m, options.max_bytes)
    first, _ = cells_of_triangles(surface, origin, shape, cell_m)
    solid = (first[1:] > first[:-1]).reshape(shape)
    kept: np.ndarray | None = surface
    if len(surface) > MAX_TRIANGLES:
        kept = None
        notes.append(f"The mesh has {len(surface):,} triangles, more than {MAX_TRIANGLES:,}: only its voxels are kept.")
    return World(name, solid, origin, cell_m, kept, notes)


def _of_grid(name: str, content: Grid, options: ReadOptions, notes: list[str]) -> World:
    grid_shape(np.array(content.solid.shape) * content.cell_m, content.cell_m, options.max_bytes)
    solid, cell_m = content.solid, content.cell_m
    if options.cell_m and not math.isclose(options.cell_m, cell_m, rel_tol=1e-6):
        grid_shape(np.array(solid.shape) * cell_m, options.cell_m, options.max_bytes)
        for axis in range(3):
            solid = resample(solid, axis, cell_m, options.cell_m)
        notes.append(
            f"The file has voxels of {cell_m:g} m; a voxel of {options.cell_m:g} m is solid if it touches a solid one."
        )
        cell_m = options.cell_m
    shift = guesses.guess_shift(content.origin, content.origin + np.array(solid.shape) * cell_m, notes)
    return World(name, solid, content.origin + shift, cell_m, None, notes)


def resample(values: np.ndarray, axis: int, old_m: float, new_m: float) -> np.ndarray:
    """Return an array with cells of `new_m` along an axis; each holds the largest value of the old cells that it overlaps."""
    count = max(1, math.ceil(values.shape[axis] * old_m / new_m - 1e-6))
    edges = np.arange(count + 1) * (new_m / old_m)
    first = np.minimum(np.floor(edges[:-1] + 1e-6).astype(np.int64), values.shape[axis] - 1)
    last = np.clip(np.ceil(edges[1:] - 1e-6).astype(np.int64), first + 1, values.shape[axis])
    if (last - first == 1).all():
        return np.take(values, first, axis=axis)
    padded = np.concatenate([values, np.take(values, [-1], axis=axis)], axis=axis)  # an index past the end is allowed
    return np.take(
        np.maximum.reduceat(padded, np.stack([first, last], axis=1).reshape(-1), axis=axis),
        np.arange(count) * 2,
        axis=axis,
    )


def _with_floor(world: World, options: ReadOptions) -> World:
    """Add what is missing below and on top: a floor, and room to fly."""
    solid, cell_m = world.solid, world.cell_m
    if options.floor == "add" or (options.floor == "auto" and guesses.lacks_ground(solid)):
        if (
            world.triangles is not None
        ):  # in the lowest layer, with its surface in the middle, as a mesh's own floor lies
            solid[:, :, 0] = True
            world.triangles = np.concatenate([world.triangles, _floor_triangles(world)])
        else:
            solid = np.concatenate([np.ones((*solid.shape[:2], 1), bool), solid], axis=2)
            world.origin[2] -= cell_m
        if options.floor == "auto":
            world.notes.append(
                "A floor is added at the lower bound, because most of the area has no ground; floor=none leaves it out."
            )
    if layers := guesses.missing_layers(solid, cell_m):
        height = solid.shape[2] * cell_m
        solid = np.concatenate([solid, np.zeros((*solid.shape[:2], layers), bool)], axis=2)
        world.notes.append(
            f"The file is only {height:.1f} m high: {layers * cell_m:.1f} m of free space are added on top."
        )
    if solid.size > options.max_bytes:
        raise InputError(
            f"{world.name} with floor and headroom takes {solid.size:,} voxels: use larger voxels, or raise max_bytes."
        )
    world.solid = np.ascontiguousarray(solid)
    return world


def _floor_triangles(world: World) -> np.ndarray:
    """Return two triangles that cover the lowest layer of voxels, in the middle of their height, [2, 3, 3] float32."""
    (x0, y0, z0), (x1, y1, _) = world.bounds
    z, rim = z0 + 0.5 * world.cell_m, 0.01 * world.cell_m
    x0, y0, x1, y1 = x0 + rim, y0 + rim, x1 - rim, y1 - rim  # inside the outermost voxels
    corners = np.array([[x0, y0, z], [x1, y0, z], [x1, y1, z], [x0, y1, z]])
    return corners[[[0, 1, 2], [0, 2, 3]]].astype(np.float32)
