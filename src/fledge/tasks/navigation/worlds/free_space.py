"""Free space of a world: where a body with some clearance fits, and which of it is connected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import warp as wp

from fledge.core.errors import InputError
from fledge.tasks.navigation.worlds.distance import has_clearance
from fledge.tasks.navigation.worlds.kernels import shared
from fledge.tasks.navigation.worlds.kernels.grids import label_parts
from fledge.tasks.navigation.worlds.voxels import World


@dataclass
class FreeSpace:
    """Voxels whose centre has a clearance, and the largest connected part of them."""

    clear: np.ndarray  # [X, Y, Z] bool: the centre has the clearance
    inside: np.ndarray  # [X, Y, Z] bool: belongs to the largest part; parts are connected through faces
    clearance_m: float


def find_free_space(world: World, clearance_m: float) -> FreeSpace:
    """Return the space in which a body of radius `clearance_m` fits; unknown counts as free, outside of the bounds as solid.

    Raises:
        InputError: Nothing is free, or the body fits nowhere.
    """
    if not 0.0 < clearance_m < 1000.0:
        raise InputError(f"clearance_m is {clearance_m:g}, but must be above 0 and below 1000.")
    if world.solid.all():
        raise InputError(
            f"{world.name} is solid everywhere: check the file, its scale, and which of its values mean solid."
        )
    clear = has_clearance(world.solid, world.cell_m, clearance_m)
    if not clear.any():
        size = " x ".join(f"{length:.1f}" for length in world.bounds[1] - world.bounds[0])
        raise InputError(
            f"{world.name} ({size} m) has no point that is {clearance_m:g} m away from everything: check its scale and "
            "its up axis."
        )
    return FreeSpace(clear, largest_part(clear), clearance_m)


def parts_of(inside: np.ndarray) -> np.ndarray:
    """Return the lowest flat index of each voxel's connected part (6 neighbours), [X, Y, Z] int32; -1 where not inside."""
    flat = shared(inside.reshape(-1).view(np.uint8), wp.uint8)
    parts = np.empty(inside.size, np.int32)
    wp.launch(label_parts, 1, [*inside.shape, flat, shared(parts, wp.int32)], device="cpu")
    return parts.reshape(inside.shape)


def largest_part(inside: np.ndarray) -> np.ndarray:
    """Return the largest connected part, [X, Y, Z] bool; of several equal ones, the first; nothing if nothing is inside."""
    if not inside.any():
        return np.zeros_like(inside)
    parts = parts_of(inside)
    sizes = np.bincount(parts.reshape(-1) + 1, minlength=2)
    sizes[0] = 0
    return parts == int(sizes.argmax()) - 1


def height_above_ground(solid: np.ndarray) -> np.ndarray:
    """Return the number of voxels between each voxel and the solid one below it, or the lower bound, [X, Y, Z] int32.

    0 right above a solid voxel; -1 in solid ones.
    """
    levels = np.arange(solid.shape[2], dtype=np.int32)
    below = np.maximum.accumulate(np.where(solid, levels, np.int32(-1)), axis=2)
    return levels - below - 1
