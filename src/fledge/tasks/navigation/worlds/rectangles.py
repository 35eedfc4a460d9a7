"""Rectangles along the axes in a mesh, and the boxes that they enclose: buildings, shelves, crates."""

from __future__ import annotations

import numpy as np

MOST_RECTANGLES = 100_000  # above which none are joined to boxes; LiDAR lists so many nowhere


def boxes_of_triangles(triangles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the boxes that a mesh's rectangles form, and the triangles that are left.

    Two triangles are a rectangle if they are its halves, to the last bit. Rectangles become faces of a box where at least its
    four upright faces are there, and else flat boxes.

    Returns:
        Corners of the boxes [B, 2, 3] float32, m; their faces [B] int32, bits x0, x1, y0, y1, z0, z1; other triangles
        [T, 3, 3].
    """
    low, high = triangles.min(axis=1), triangles.max(axis=1)
    at_low, at_high = triangles == low[:, None], triangles == high[:, None]
    flat = low == high
    corner = (at_low | at_high).all(axis=(1, 2)) & (flat.sum(axis=1) == 1)
    side = np.where(flat[:, None], 0, at_high).astype(np.int64) @ np.array([1, 2, 4])  # [T, 3] number of each corner
    # The corners of a half are three different ones of four. The missing one tells which half it is.
    side.sort(axis=1)
    corner &= (side[:, 0] != side[:, 1]) & (side[:, 1] != side[:, 2])
    full = 7 - flat.astype(np.int64) @ np.array([1, 2, 4])  # sum of the numbers of two opposite corners
    missing = 2 * full - side.sum(axis=1)
    half = np.flatnonzero(corner)
    keys = np.concatenate([low, high], axis=1)[half]
    order = np.lexsort([missing[half], *keys.T])
    half, keys = half[order], keys[order]
    twins = (keys[1:] == keys[:-1]).all(axis=1) & (missing[half[1:]] + missing[half[:-1]] == full[half[1:]])
    first = np.flatnonzero(twins)
    first = first[np.diff(first, prepend=-2) > 1]  # of three halves in a row, only two are a rectangle
    rest = np.ones(len(triangles), bool)
    rest[half[first]] = rest[half[first + 1]] = False
    corners, faces = _enclose(np.stack([low, high], axis=1)[half[first]], flat[half[first]].argmax(axis=1))
    return corners, faces, triangles[rest]


def _enclose(corners: np.ndarray, across: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the boxes of rectangles [R, 2, 3], which are flat along the axes `across`, and their faces."""
    flat = np.array([3, 12, 48], np.int32)[across]
    if len(corners) > MOST_RECTANGLES:
        return corners, flat
    number = {tuple(key): k for k, key in enumerate(corners.reshape(-1, 6).tolist())}
    walls = np.flatnonzero(across == 0)
    walls = walls[np.lexsort([corners[walls, 0, 0], *corners[walls, :, 1:].reshape(-1, 4).T])]
    used, found, faces = np.zeros(len(corners), bool), [], []
    for a, b in zip(walls[:-1].tolist(), walls[1:].tolist(), strict=True):
        low, high = corners[a, 0], corners[b, 1]
        if used[a] or (corners[a, :, 1:] != corners[b, :, 1:]).any() or low[0] == high[0]:
            continue
        sides = []
        for axis in range(3):
            for end in (low, high):
                face = np.stack([low, high])
                face[:, axis] = end[axis]
                sides.append(number.get(tuple(face.reshape(-1).tolist())))
        there = [k for k in sides if k is not None]
        if None not in sides[:4] and not used[there].any():
            used[there] = True
            found.append(np.stack([low, high]))
            faces.append(sum(1 << k for k, side in enumerate(sides) if side is not None))
    boxes = np.array(found, np.float32).reshape(-1, 2, 3)
    return np.concatenate([boxes, corners[~used]]), np.concatenate([np.array(faces, np.int32), flat[~used]])
