"""Voxels that the triangles of a mesh overlap."""

from __future__ import annotations

import numpy as np
import warp as wp

from fledge.core.errors import InputError
from fledge.tasks.navigation.worlds.kernels import shared
from fledge.tasks.navigation.worlds.kernels.overlap import overlapped_cells

MAX_TESTS = 2_000_000_000  # pairs of a triangle and a column of voxels, about a minute
MAX_PAIRS = 200_000_000  # pairs of a triangle and a voxel that it overlaps, 2.4 GB while they are sorted


def cells_of_triangles(
    triangles: np.ndarray, origin: np.ndarray, shape: tuple[int, int, int], cell_m: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return for every voxel the triangles that overlap it, as the compressed rows of a sparse matrix.

    Triangle ids[first[v]], ..., ids[first[v + 1] - 1] overlap voxel v, in ascending order. Voxels count as closed boxes,
    larger by a thousandth: no overlap is lost by rounding.

    Args:
        triangles: [T, 3, 3] m.
        origin: [3] m, lower corner of voxel (0, 0, 0).
        shape: Numbers of voxels X, Y, Z.
        cell_m: Side of a voxel, m.

    Returns:
        first [X * Y * Z + 1] int32, by flat voxel index (x * Y + y) * Z + z, and ids [n] int32.

    Raises:
        InputError: There are too many pairs of a triangle and a voxel.
    """
    voxels = shape[0] * shape[1] * shape[2]
    inside = (np.asarray(triangles, np.float64).reshape(-1, 3, 3) - np.asarray(origin, np.float64)) / cell_m
    base = np.clip(np.floor(inside.min(axis=1)), -(2**30), 2**30)
    corners = (inside - base[:, None]).astype(np.float32)
    normals = plane_normals(corners)
    _check_work(corners, normals)
    place = np.zeros(len(corners), np.int64)
    args = [
        shared(corners, wp.vec3),
        shared(normals, wp.vec3),
        shared(base.astype(np.int32), wp.vec3i),
        wp.vec3i(*(int(size) for size in shape)),
    ]
    places, none = shared(place, wp.int64), shared(np.zeros(0, np.int32), wp.int32)
    wp.launch(overlapped_cells, len(corners), [*args, 0, places, none, none], device="cpu")
    total = int(place.sum())
    if total > MAX_PAIRS:
        raise InputError(f"The triangles overlap voxels {total:,} times, at most {MAX_PAIRS:,} fit: use larger voxels.")
    place[:] = np.cumsum(place) - place
    cells, ids = np.empty(total, np.int32), np.empty(total, np.int32)
    out = [shared(cells, wp.int32), shared(ids, wp.int32)]
    wp.launch(overlapped_cells, len(corners), [*args, 1, places, *out], device="cpu")
    first = np.zeros(voxels + 1, np.int32)
    np.cumsum(np.bincount(cells, minlength=voxels), out=first[1:])
    return first, ids[np.argsort(cells, kind="stable")]


def plane_normals(corners: np.ndarray) -> np.ndarray:
    """Return a vector at right angles to each triangle of `corners` [T, 3, 3], also if the triangle has no area."""
    edges = corners[:, [1, 2, 0]].astype(np.float64) - corners
    normals = np.cross(edges[:, 0], edges[:, 1])
    size = np.abs(edges).max(axis=(1, 2))
    flat = np.abs(normals).max(axis=1) <= 1e-9 * size * size
    if flat.any():
        longest = edges[flat][np.arange(flat.sum()), (edges[flat] ** 2).sum(axis=2).argmax(axis=1)]
        beside = np.eye(3)[np.abs(longest).argmin(axis=1)]
        normals[flat] = np.cross(longest, beside)
    normals[~normals.any(axis=1)] = (0.0, 0.0, 1.0)
    return (normals / np.abs(normals).max(axis=1, keepdims=True)).astype(np.float32)


def _check_work(corners: np.ndarray, normals: np.ndarray) -> None:
    """Raise InputError if comparing triangles and voxels would take very long."""
    extent = corners.max(axis=1).astype(np.float64) - corners.min(axis=1) + 2.0
    extent[np.arange(len(extent)), np.abs(normals).argmax(axis=1)] = 1.0
    if (tests := extent.prod(axis=1).sum()) > MAX_TESTS:
        raise InputError(
            f"The triangles are too many or too large: comparing them with voxels takes {tests:.1e} steps, at most "
            f"{MAX_TESTS:.0e} are allowed. Use larger voxels, or simplify the mesh."
        )
