"""OctoMap's binary trees, .bt. Free and unknown space both count as free."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import warp as wp

from fledge.core.errors import FormatError
from fledge.tasks.navigation.worlds.content import Grid, ReadOptions
from fledge.tasks.navigation.worlds.kernels import shared
from fledge.tasks.navigation.worlds.kernels.decode import DEPTH, decode_octree
from fledge.tasks.navigation.worlds.readers.limits import check_count
from fledge.tasks.navigation.worlds.voxels import grid_shape

MAX_LEAVES = 200_000_000


def read_octomap(path: Path, options: ReadOptions, notes: list[str]) -> Grid:
    """Read an OctoMap .bt file: occupied leaves are solid."""
    with open(path, "rb") as stream:
        head = stream.read(4096)
        begin = re.search(rb"^data[ \t]*\r?\n", head, re.MULTILINE)
        resolution = re.search(rb"^res[ \t]+([0-9.eE+-]+)", head, re.MULTILINE)
        if not head.startswith(b"# Octomap OcTree binary file") or begin is None or resolution is None:
            raise FormatError(
                f"{path} is not a binary OctoMap: save it with writeBinary or octomap_saver (.bt), not as a full map (.ot)."
            )
        stream.seek(begin.end())
        data = np.fromfile(stream, np.uint8)
    cell_m = float(resolution[1])
    stack, found = shared(np.zeros((DEPTH, 5), np.int32), wp.int32), np.zeros(2, np.int64)
    leaves = np.zeros((0, 4), np.int32)
    for _ in range(2):  # count, then list
        wp.launch(
            decode_octree,
            1,
            [shared(data, wp.uint8), stack, shared(leaves, wp.int32), shared(found, wp.int64)],
            device="cpu",
        )
        if found[1] < 0:
            raise FormatError(f"{path}: the tree ends too early or is too deep: it is truncated or damaged.")
        leaves = (
            np.zeros((check_count(path, int(found[0]), "occupied leaves", MAX_LEAVES), 4), np.int32)
            if not len(leaves)
            else leaves
        )
    if not len(leaves):
        raise FormatError(f"{path} has no occupied voxel: check the file.")
    low = leaves[:, :3].min(axis=0)
    high = (leaves[:, :3] + leaves[:, 3:]).max(axis=0)
    solid = np.zeros(grid_shape((high - low) * cell_m, cell_m, options.max_bytes), bool)
    for side in np.unique(leaves[:, 3]):
        corner = leaves[leaves[:, 3] == side, :3] - low
        if side == 1:
            solid[tuple(corner.T)] = True
        else:
            for x, y, z in corner.tolist():
                solid[x : x + side, y : y + side, z : z + side] = True
    return Grid(solid, cell_m, (low - 2 ** (DEPTH - 1)) * cell_m)
