"""A room with a pillar, as voxels and as triangles, from which tests make files of every kind."""

import itertools
from pathlib import Path

import numpy as np

SHAPE = (30, 24, 25)


def room() -> np.ndarray:
    """Return a room of 3.0 x 2.4 x 2.5 m at 0.1 m: floor, four walls and a pillar of 0.3 x 0.2 m, no ceiling."""
    solid = np.zeros(SHAPE, bool)
    solid[:, :, 0] = True
    solid[[0, -1]] = True
    solid[:, [0, -1]] = True
    solid[10:13, 8:10] = True
    return solid


def centres(solid: np.ndarray, origin: tuple[float, float, float] = (0.0, 0.0, 0.0), cell_m: float = 0.1) -> np.ndarray:
    """Return the centre of each solid voxel, [N, 3] float64."""
    return (np.argwhere(solid) + 0.5) * cell_m + origin


def box(low: tuple[float, float, float], high: tuple[float, float, float]) -> np.ndarray:
    """Return the 12 triangles of a box, [12, 3, 3]."""
    found = []
    for axis, side in itertools.product(range(3), (0, 1)):
        u, v = (axis + 1) % 3, (axis + 2) % 3
        corners = np.zeros((4, 3))
        corners[:, axis] = (low, high)[side][axis]
        corners[:, u] = [low[u], high[u], high[u], low[u]]
        corners[:, v] = [low[v], low[v], high[v], high[v]]
        found += [corners[[0, 1, 2]], corners[[0, 2, 3]]]
    return np.array(found)


def room_triangles() -> np.ndarray:
    """Return a closed room of 3.0 x 2.4 x 2.5 m with its corner at the origin, and a pillar, [24, 3, 3]."""
    return np.concatenate([box((0, 0, 0), (3.0, 2.4, 2.5)), box((1.02, 0.82, 0.0), (1.28, 0.98, 2.5))])


def room_of_triangles() -> np.ndarray:
    """Return the voxels that `room_triangles` overlap, if the voxels' lower corner is (-0.05, -0.05, -0.05)."""
    solid = np.zeros((31, 25, 26), bool)
    solid[[0, -1]] = True
    solid[:, [0, -1]] = True
    solid[:, :, [0, -1]] = True
    pillar = np.zeros_like(solid)
    pillar[10:14, 8:11] = True  # x from 1.02 to 1.28 lies in voxels 10 to 13, y from 0.82 to 0.98 in voxels 8 to 10
    pillar[11:13, 9] = False  # its inside
    return solid | pillar


def write_octomap(path: Path, solid: np.ndarray, cell_m: float) -> Path:
    """Write voxels as a binary OctoMap with their lower corner at the origin; solid blocks are single leaves."""
    depth = int(max(solid.shape) - 1).bit_length()
    cube = np.zeros([2**depth] * 3, bool)
    cube[tuple(slice(n) for n in solid.shape)] = solid
    nodes = [3 << 14, *[3] * (15 - depth)]  # from the root, whose middle is the origin, down to the cube

    def descend(block: np.ndarray) -> None:
        half = len(block) // 2
        parts = [
            block[x : x + half, y : y + half, z : z + half] for z in (0, half) for y in (0, half) for x in (0, half)
        ]
        kinds = [2 if part.all() else 3 if part.any() else 1 for part in parts]
        nodes.append(sum(kind << 2 * k for k, kind in enumerate(kinds)))
        for part, kind in zip(parts, kinds, strict=True):
            if kind == 3:
                descend(part)

    descend(cube)
    head = f"# Octomap OcTree binary file\nid OcTree\nsize {len(nodes) + 1}\nres {cell_m}\ndata\n"
    path.write_bytes(head.encode() + np.array(nodes, "<u2").tobytes())
    return path
