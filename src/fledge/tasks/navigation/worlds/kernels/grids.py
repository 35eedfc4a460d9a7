"""Sweeps over a voxel grid: distances to solid voxels and connected parts. One thread each, in time linear in the voxels."""

import warp as wp


@wp.kernel
def sweep_chessboard(step: int, nx: int, ny: int, nz: int, distance: wp.array(dtype=wp.uint8)):
    """Sweep once, forth (`step` 1) or back (-1); a sweep in each direction gives the exact Chebyshev distance.

    Rosenfeld and Pfaltz, "Distance functions on digital pictures", 1968, in three dimensions. `distance` is padded: sizes
    include a border of one voxel with the value 255.
    """
    row = step * nz
    slab = step * ny * nz
    for a in range(1, nx - 1):
        x = wp.where(step > 0, a, nx - 1 - a)
        for b in range(1, ny - 1):
            y = wp.where(step > 0, b, ny - 1 - b)
            at = (x * ny + y) * nz + wp.where(step > 0, 1, nz - 2)
            # smallest value over the four rows that the sweep has passed, one voxel behind, beside and ahead
            behind = passed_rows(distance, at - step, row, slab)
            beside = passed_rows(distance, at, row, slab)
            last = int(distance[at - step])
            for _c in range(nz - 2):
                ahead = passed_rows(distance, at + step, row, slab)
                near = wp.min(wp.min(behind, beside), wp.min(ahead, last))
                last = wp.min(int(distance[at]), wp.min(near + 1, 255))
                distance[at] = wp.uint8(last)
                behind = beside
                beside = ahead
                at = at + step


@wp.func
def passed_rows(distance: wp.array(dtype=wp.uint8), at: int, row: int, slab: int) -> int:
    """Return the smallest value next to voxel `at` in the rows that a sweep has already passed."""
    here = wp.min(int(distance[at - row]), int(distance[at - slab]))
    return wp.min(here, wp.min(int(distance[at - slab - row]), int(distance[at - slab + row])))


@wp.func
def root_of(parent: wp.array(dtype=wp.int32), voxel: int) -> int:
    """Return the first voxel of a connected part, and shorten the way to it."""
    at = voxel
    while parent[at] != at:
        parent[at] = parent[parent[at]]
        at = parent[at]
    return at


@wp.func
def join(parent: wp.array(dtype=wp.int32), a: int, b: int):
    """Join the parts of two voxels; the lower root stays."""
    low = root_of(parent, a)
    high = root_of(parent, b)
    if low != high:
        parent[wp.max(low, high)] = wp.min(low, high)


@wp.kernel
def label_parts(nx: int, ny: int, nz: int, inside: wp.array(dtype=wp.uint8), parent: wp.array(dtype=wp.int32)):
    """Write for each voxel the lowest flat index of its connected part (6 neighbours); -1 where `inside` is 0."""
    for x in range(nx):
        for y in range(ny):
            row = (x * ny + y) * nz
            for z in range(nz):
                at = row + z
                parent[at] = -1
                if inside[at] != wp.uint8(0):
                    parent[at] = at
                    if z > 0 and inside[at - 1] != wp.uint8(0):
                        parent[at] = parent[at - 1]
                    if y > 0 and inside[at - nz] != wp.uint8(0):
                        join(parent, at, at - nz)
                    if x > 0 and inside[at - ny * nz] != wp.uint8(0):
                        join(parent, at, at - ny * nz)
    for at in range(nx * ny * nz):  # a parent is lower than its voxel, so it is final when the voxel is reached
        if parent[at] >= 0:
            parent[at] = parent[parent[at]]
