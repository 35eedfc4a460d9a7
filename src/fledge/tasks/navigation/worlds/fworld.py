"""The .fworld file: a world as a Fledge checkpoint (docs/reference/checkpoint_format.md), with its voxels as bits.

Sizes are checked before anything is allocated, contents against their checksums; nothing is unpickled.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from fledge.core.errors import FledgeError, FormatError
from fledge.storage.checkpoint import stage_now
from fledge.storage.disk.durable import durable_file
from fledge.storage.format.reader import CheckpointFile, check_opens
from fledge.storage.format.writer import write_native
from fledge.tasks.navigation.worlds.voxels import MAX_BYTES, MAX_TRIANGLES, World, grid_shape

SUFFIX = ".fworld"
KIND, VERSION = "fledge-world", 1


def write_fworld(world: World, path: str | os.PathLike[str]) -> None:
    """Write a world to a file, atomically and durably."""
    state: dict[str, Any] = {
        "name": world.name,
        "cell_m": world.cell_m,
        "origin": world.origin,
        "shape": list(world.solid.shape),
        "bits": np.packbits(world.solid.reshape(-1)),
        "triangles": world.triangles,
        "notes": list(world.notes),
    }
    node, leaves = stage_now(state)
    with durable_file(path, verify=check_opens) as stream:
        write_native(stream, node, leaves, metadata={"kind": KIND, "version": VERSION})


def read_fworld(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> World:
    """Read a world from a .fworld file.

    Raises:
        FormatError: The file is damaged, was altered, or is not a world.
        MemoryBudgetError: Its voxels take more than `max_bytes`.
    """
    with CheckpointFile(Path(path)) as file:
        if file.metadata.get("kind") != KIND:
            raise FormatError(
                f"{path} is a Fledge file, but not a world: write one with `fledge world FILE --out x{SUFFIX}`."
            )
        if file.metadata.get("version") != VERSION:
            raise FormatError(
                f"{path} has version {file.metadata.get('version')!s:.20} of the format of worlds; update Fledge."
            )
        for entry in file.entries:
            if entry.nbytes > max(max_bytes // 8 + 8, 36 * MAX_TRIANGLES):
                raise FormatError(f"{path}: {entry.name!r} is larger than a world may be: the file was altered.")
        state = file.state()
    try:
        return _world_in(state, max_bytes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, FledgeError) and not isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} has no valid world ({error}): the file was altered.") from error


def _world_in(state: Any, max_bytes: int) -> World:
    shape, bits, notes, triangles = state["shape"], state["bits"], state["notes"], state["triangles"]
    if len(shape) != 3 or not all(type(size) is int and 1 <= size < 2**31 for size in shape):
        raise ValueError(f"shape {shape!s:.60}")
    grid_shape(np.array(shape, np.float64) * state["cell_m"], state["cell_m"], max_bytes)
    count = math.prod(shape)
    if bits.dtype != np.uint8 or bits.shape != (-(-count // 8),):
        raise ValueError(f"{bits.size} bytes for {count} voxels")
    if not isinstance(state["name"], str) or not all(isinstance(note, str) for note in notes):
        raise ValueError("a name or note that is not text")
    if triangles is not None and (triangles.dtype != np.float32 or len(triangles) > MAX_TRIANGLES):
        raise ValueError(f"{len(triangles)} triangles of {triangles.dtype}")
    solid = np.unpackbits(bits, count=count).view(bool).reshape(shape)
    return World(state["name"], solid, state["origin"], state["cell_m"], triangles, list(notes))
