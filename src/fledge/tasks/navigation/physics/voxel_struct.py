"""Voxel worlds of an env, as kernels read them."""

import warp as wp


@wp.struct
class Voxels:
    """W worlds with routes through them. Shapes: B bricks, C voxels of the largest world, K map slots, R routes per world,
    E entries of lists of boxes (`near_boxes`)."""

    triangles: int  # 1 if a world has triangles
    world: wp.array(dtype=wp.int32)  # [K] number of the slot's world
    cells: wp.array2d(dtype=wp.uint8)  # [W, 64 B] distance to the nearest solid voxel, in voxels, brick by brick
    bricks: wp.array2d(dtype=wp.uint8)  # [W, B] least of `cells` in each brick of 4 x 4 x 4 voxels
    size: wp.array(dtype=wp.vec3i)  # [W] voxels along x, y, z
    corner: wp.array(dtype=wp.vec3)  # [W] m: lower corner of voxel (0, 0, 0)
    cell_m: wp.array(dtype=wp.float32)  # [W] side of a voxel
    list_first: wp.array2d(
        dtype=wp.int32
    )  # [W, C + 1] first entry of `lists` that belongs to voxel (x * Y + y) * Z + z
    lists: wp.array(dtype=wp.int32)  # numbers of triangles, voxel by voxel
    vertices: wp.array(dtype=wp.vec3)  # [3 T] m: corners of all worlds' triangles
    near: wp.array2d(
        dtype=wp.vec2i
    )  # [W, buckets] first entry of a bucket's list, and the one after the last; -1: no list
    near_shape: wp.array(dtype=wp.vec2i)  # [W] buckets along x, y
    near_m: wp.array(dtype=wp.float32)  # [W] side of a bucket
    box_low: wp.array(dtype=wp.vec3)  # [E] m
    box_high: wp.array(dtype=wp.vec3)  # [E] m
    box_faces: wp.array(dtype=wp.int32)  # [E] 0: solid; else bits of the faces that a hollow box has
    start: wp.array2d(dtype=wp.vec3)  # [W, R] m
    goal: wp.array2d(dtype=wp.vec3)  # [W, R] m
    length: wp.array2d(dtype=wp.float32)  # [W, R] m: shortest path from start to goal
