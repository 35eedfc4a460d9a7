"""The World: a static world of voxels, and the limits that every source of one keeps to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fledge.core.errors import InputError, MemoryBudgetError

if TYPE_CHECKING:
    from fledge.tasks.navigation.worlds.scene import Scene

CELL_M = 0.1  # side of a voxel, unless told otherwise
CELL_LIMITS_M = (0.01, 10.0)
MAX_BYTES = 2**28  # of the voxels, a byte each: 1,000 x 1,000 x 26 m at 0.1 m
MAX_TRIANGLES = 4_000_000


@dataclass
class World:
    """A static world of voxels; z is up, units are metres."""

    name: str
    solid: (
        np.ndarray
    )  # [X, Y, Z] bool, C order; voxel (i, j, k) covers origin + cell_m * [i, i+1) x [j, j+1) x [k, k+1)
    origin: np.ndarray  # [3] float64, m: lower corner of voxel (0, 0, 0)
    cell_m: float = CELL_M  # side of a voxel, m
    triangles: np.ndarray | None = None
    """[T, 3, 3] float32, m: exact surface of a mesh; every voxel that a triangle overlaps is solid. None: only voxels."""
    notes: list[str] = field(default_factory=list)
    """Guesses and changes made when the world was read, one sentence each."""
    scene: Scene | None = None
    """Start, goal and movers of a benchmark's world; a .fworld file does not keep them."""

    def __post_init__(self) -> None:
        self.solid = np.ascontiguousarray(self.solid, dtype=bool)
        self.origin = np.asarray(self.origin, np.float64)
        self.cell_m = float(self.cell_m)
        if self.solid.ndim != 3 or 0 in self.solid.shape:
            raise InputError(
                f"solid of a world must have the shape [X, Y, Z] with sizes from 1 up, got {self.solid.shape}."
            )
        if self.origin.shape != (3,) or not np.isfinite(self.origin).all():
            raise InputError(f"origin of a world must be three finite numbers, got {self.origin.tolist()}.")
        check_cell(self.cell_m)
        if self.triangles is not None:
            self.triangles = np.ascontiguousarray(self.triangles, np.float32)
            if self.triangles.ndim != 3 or self.triangles.shape[1:] != (3, 3) or not np.isfinite(self.triangles).all():
                raise InputError("triangles of a world must be finite numbers of the shape [T, 3, 3].")

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper corner of the voxels, [3] float64 each, m."""
        return self.origin.copy(), self.origin + self.cell_m * np.array(self.solid.shape)


def check_cell(cell_m: float) -> None:
    """Raise InputError if voxels cannot have this side."""
    low, high = CELL_LIMITS_M
    if not low <= cell_m <= high:
        raise InputError(f"The side of a voxel is {cell_m:g} m, but must be {low:g} to {high:g} m.")


def grid_shape(size_m: np.ndarray, cell_m: float, max_bytes: int = MAX_BYTES) -> tuple[int, int, int]:
    """Return the number of voxels along x, y, z that cover a size, at least 1 each.

    Raises:
        MemoryBudgetError: The voxels would take more than `max_bytes`.
    """
    check_cell(cell_m)
    counts = np.maximum(np.ceil(np.asarray(size_m, np.float64) / cell_m - 1e-6), 1.0)
    if not counts.prod() <= min(max_bytes, 2**31 - 1):
        size = " x ".join(f"{length:,.6g}" for length in size_m)
        fits = cell_m * (counts.prod() / max_bytes) ** (1 / 3)
        fix = f"or use voxels of {math.ceil(100 * fits) / 100:g} m" if fits < CELL_LIMITS_M[1] else "or crop the file"
        raise MemoryBudgetError(
            f"{size} m take {counts.prod():,.3g} voxels of {cell_m:g} m, but at most {max_bytes:,} are allowed: check the "
            f"scale, {fix}."
        )
    x, y, z = (int(count) for count in counts)
    return x, y, z
