"""Distances from the voxels of a world to its solid ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import warp as wp

from fledge.tasks.navigation.worlds.kernels import shared
from fledge.tasks.navigation.worlds.kernels.grids import sweep_chessboard

FAR = 255


def chebyshev(solid: np.ndarray) -> np.ndarray:
    """Return the Chebyshev distance in voxels to the nearest solid voxel, [X, Y, Z] uint8: 0 in solid ones, at most 255."""
    padded = np.full([size + 2 for size in solid.shape], FAR, np.uint8)
    inner = padded[1:-1, 1:-1, 1:-1]
    inner[solid] = 0
    flat = shared(padded.reshape(-1), wp.uint8)
    for step in (1, -1):
        wp.launch(sweep_chessboard, 1, [step, *padded.shape, flat], device="cpu")
    return inner.copy()


def has_clearance(solid: np.ndarray, cell_m: float, clearance_m: float) -> np.ndarray:
    """Return where a voxel's centre is at least `clearance_m` from every solid voxel (exact, Euclidean), [X, Y, Z] bool.

    Outside of the grid counts as solid.
    """
    # 4 * squared distance in voxels from a centre to a box that is k voxels away along each axis: (2 |k| - 1)^2 summed
    wanted = (2.0 * clearance_m / cell_m - 1e-6) ** 2
    reach = min(math.ceil(clearance_m / cell_m), max(solid.shape))
    far = np.uint32(min(math.ceil(wanted), 2**30))
    kind: Any = np.uint16 if 2 * int(far) < 2**16 else np.uint32
    nearest = np.where(solid, 0, far).astype(kind)
    for axis in range(3):
        before = np.moveaxis(nearest, axis, 0)
        after = before.copy()
        for k in range(1, min(reach, len(before)) + 1):
            if (step := (2 * k - 1) ** 2) >= far:
                break
            np.minimum(after[k:], before[:-k] + kind(step), out=after[k:])
            np.minimum(after[:-k], before[k:] + kind(step), out=after[:-k])
            for border in (after[k - 1 : k], after[len(after) - k :][:1]):  # k voxels from beyond the grid
                np.minimum(border, kind(step), out=border)
        nearest = np.moveaxis(after, 0, axis)
    return np.ascontiguousarray((nearest >= far) & ~solid)
