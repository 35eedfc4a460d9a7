"""Height maps as voxels."""

from __future__ import annotations

import numpy as np

from fledge.core.errors import FormatError
from fledge.tasks.navigation.worlds.build import resample
from fledge.tasks.navigation.worlds.content import Grid, ReadOptions
from fledge.tasks.navigation.worlds.voxels import grid_shape


def grid_of_heights(
    heights: np.ndarray, pixel_m: float, options: ReadOptions, notes: list[str], origin: np.ndarray
) -> Grid:
    """Return voxels that are solid from the lowest height up to the height of their column.

    Args:
        heights: [X, Y] m; NaN counts as the lowest.
        pixel_m: Distance of two heights, m.
        options: The user's options.
        notes: Sentences about the file.
        origin: [3] m: lower corner of the map; heights are relative to its z.
    """
    if not np.isfinite(heights).any():
        raise FormatError("The height map has no finite height: check the file.")
    lacking = ~np.isfinite(heights)
    low = float(heights[~lacking].min())
    if lacking.any():
        notes.append(f"{int(lacking.sum()):,} heights are missing and count as the lowest.")
        heights = np.where(lacking, low, heights)
    if np.abs(heights).max() > 1e6:
        raise FormatError(f"The height map has heights up to {np.abs(heights).max():.3g} m: check the file.")
    cell_m = options.cell
    size = [n * pixel_m for n in heights.shape]
    shape = grid_shape(np.array([*size, heights.max() - low + cell_m]), cell_m, options.max_bytes)
    for axis in range(2):
        heights = resample(heights, axis, pixel_m, cell_m)
    heights = heights[: shape[0], : shape[1]]
    tops = np.ceil((heights - low) / cell_m - 1e-6).astype(np.int64) + 1  # with a layer for the lowest ground itself
    solid = np.arange(shape[2]) < tops[:, :, None]
    notes.append(f"Heights of {low:g} to {heights.max():g} m at every {pixel_m:g} m are taken as ground.")
    x, y, z = (float(value) for value in origin)
    return Grid(solid, cell_m, np.array([x, y, z + low - cell_m]))
