"""Worlds for navigation: load one from a file, make one by a generator, save it."""

from __future__ import annotations

import os
from typing import Any

from fledge.tasks.navigation.worlds.fworld import read_fworld, write_fworld
from fledge.tasks.navigation.worlds.voxels import World

__all__ = ["World", "load_world", "save_world"]


def save_world(world: World, path: str | os.PathLike[str]) -> None:
    """Write a world as a .fworld file, atomically; `load_world` reads it."""
    write_fworld(world, path)


def load_world(path: str | os.PathLike[str], **options: Any) -> World:
    """Return the world in a file."""
    return read_fworld(path, **options)
