"""Boxes that cover the solid voxels of a world, for viewers."""

from __future__ import annotations

import numpy as np

from fledge.tasks.navigation.worlds.voxels import World

MAX_BOXES = 20_000


def cover_with_boxes(world: World, most: int = MAX_BOXES) -> np.ndarray:
    """Return boxes that cover the solid voxels, without a ceiling, [B, 6] float32, m: centre, then size along x, y, z.

    Voxels are joined into larger ones until there are at most `most` boxes.
    """
    solid, cell_m = world.solid[:, :, : ceiling_of(world.solid)], world.cell_m
    while len(corners := merge_voxels(solid)) > most:
        solid, cell_m = halve(solid), 2 * cell_m
    low = world.origin + corners[:, :3] * cell_m
    high = world.origin + corners[:, 3:] * cell_m
    high = np.minimum(high, world.bounds[1])
    return np.concatenate([(low + high) / 2, high - low], axis=1).astype(np.float32)


def merge_voxels(solid: np.ndarray) -> np.ndarray:
    """Return boxes that cover exactly the solid voxels, [B, 6] int64: lower corner and upper corner (not included).

    Voxels become runs along y; equal runs are joined along x, and then equal layers along z: few boxes also where obstacles
    stand on a ground.
    """
    none = np.int8(0)  # a plain 0 would make all of them int64
    edges = np.diff(solid.transpose(0, 2, 1).astype(np.int8), axis=2, prepend=none, append=none)
    x, z, y0 = np.nonzero(edges == 1)
    y1 = np.nonzero(edges == -1)[2]
    boxes = np.stack([x, y0, z, x + 1, y1, z + 1], axis=1)
    for axis in (0, 2):
        boxes = _join(boxes, axis)
    return boxes


def _join(boxes: np.ndarray, axis: int) -> np.ndarray:
    """Join boxes that follow each other along an axis and are equal along the others."""
    others = [k for k in range(6) if k % 3 != axis]
    boxes = boxes[np.lexsort([boxes[:, axis], *(boxes[:, k] for k in others)])]
    follows = (boxes[1:, others] == boxes[:-1, others]).all(axis=1) & (boxes[1:, axis] == boxes[:-1, axis + 3])
    first = np.flatnonzero(np.concatenate([[True], ~follows])[: len(boxes)])
    last = np.concatenate([first[1:], [len(boxes)]])[: len(first)] - 1
    joined = boxes[first]
    joined[:, axis + 3] = boxes[last, axis + 3]
    return joined


def halve(solid: np.ndarray) -> np.ndarray:
    """Return voxels of twice the side; each is solid if one of its eight is."""
    padded = np.pad(solid, [(0, size % 2) for size in solid.shape])
    x, y, z = (size // 2 for size in padded.shape)
    halved: np.ndarray = padded.reshape(x, 2, y, 2, z, 2).max(axis=(1, 3, 5))
    return halved


def ceiling_of(solid: np.ndarray) -> int:
    """Return the number of layers below the ceiling: the highest layers in the upper third that cover most of the area."""
    covered = solid.mean(axis=(0, 1)) > 0.5
    covered[: 2 * len(covered) // 3] = False
    if not covered.any():
        return len(covered)
    at = int(np.flatnonzero(covered)[-1])
    while covered[at - 1]:
        at -= 1
    return at
