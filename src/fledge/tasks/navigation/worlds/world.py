"""Worlds for navigation: load one from a file, make one by a generator, save it."""

from __future__ import annotations

import os
from pathlib import Path

from fledge.core.errors import ConfigError, StorageError, did_you_mean
from fledge.core.paths import check_readable, os_error_message
from fledge.tasks.navigation.worlds.build import build_world
from fledge.tasks.navigation.worlds.content import ReadOptions
from fledge.tasks.navigation.worlds.fworld import SUFFIX, read_fworld, write_fworld
from fledge.tasks.navigation.worlds.generators import GENERATORS, SCENES
from fledge.tasks.navigation.worlds.generators.canvas import Draws
from fledge.tasks.navigation.worlds.readers import read_file
from fledge.tasks.navigation.worlds.voxels import MAX_BYTES, World

__all__ = ["GENERATORS", "MADE", "SCENES", "World", "load_world", "make_world", "save_world"]

MADE = (*GENERATORS, *SCENES)  # names that `make_world` knows


def load_world(
    path: str | os.PathLike[str],
    *,
    cell_m: float | None = None,
    scale: float | None = None,
    up: str = "auto",
    height_m: float = 3.0,
    floor: str = "auto",
    max_bytes: int = MAX_BYTES,
) -> World:
    """Return the world in a file: a point cloud, a mesh, voxels, a map, a Gazebo world, or a .fworld.

    What is guessed or changed is in `world.notes`.

        world = load_world("room.ply", up="z")
        print(world.bounds, *world.notes, sep="\\n")

    Args:
        path: The file; the ending of its name chooses the reader.
        cell_m: Side of a voxel, m; by default what the file says, else 0.1.
        scale: Metres per unit of the file; metres per voxel or pixel of an array or an image. By default guessed.
        up: Axis of the file that points up: "z", "y" or "auto".
        height_m: Height of the walls of a ROS map, and of the brightest pixel of a height map, m.
        floor: "add" a solid layer at the lower bound, "none", or "auto": add it if most of the area has no ground.
        max_bytes: Largest size of the voxels, a byte each.

    Raises:
        FledgeError: The file cannot be read, or its world would be too large.
    """
    options = ReadOptions(cell_m, scale, up, height_m, floor, max_bytes)
    path = check_readable(Path(path))
    if path.is_dir():
        raise ConfigError(f"{path} is a folder. Pass a file with a world.")
    try:
        if path.suffix.lower() == SUFFIX:
            if options != ReadOptions(max_bytes=max_bytes):
                raise ConfigError(
                    f"{path} is a finished world, so cell_m, scale, up, height_m and floor do not apply to it."
                )
            return read_fworld(path, max_bytes)
        notes: list[str] = []
        return build_world(path.stem, read_file(path, options, notes), options, notes)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(os_error_message(error)) from error


def save_world(world: World, path: str | os.PathLike[str]) -> None:
    """Write a world as a .fworld file, atomically; `load_world` reads it."""
    write_fworld(world, path)


def make_world(generator: str, seed: int, index: int) -> World:
    """Return world number `index` of a generator, a pure function of the arguments; `MADE` has their names.

    Of a benchmark's scene, that is the one with the seed `seed + index`.

    world = make_world("rooms", seed=0, index=3)
    """
    if generator not in MADE:
        known = ", ".join(MADE)
        raise ConfigError(f"{generator!r} is not a generator; choose one of {known}.{did_you_mean(generator, MADE)}")
    if not 0 <= index < 2**32:
        raise ConfigError(f"index is {index}, but must be 0 to {2**32 - 1}.")
    if generator in SCENES:
        return SCENES[generator](seed + index)
    return GENERATORS[generator](Draws(generator, seed, index))
