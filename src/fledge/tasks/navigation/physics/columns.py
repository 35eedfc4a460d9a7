"""Columns of every map as boxes in square buckets, so that the boxes near a drone are found at once.

They are the boxes that `terrain.rasterise` draws: footprints of whole cells, heights in steps of HEIGHT_STEP. So the boxes and
the grid are the same world. A box is in the bucket of its corner (x0, y0). Boxes longer than LONG_M, such as walls, are in
the last bucket, which every search includes. Empty boxes are left out.
"""

import warp as wp

from fledge.tasks.navigation.physics.terrain import CELL_M, CELLS, HALF_M, HEIGHT_STEP, INV_CELL, RING_CELLS

BUCKET_CELLS = 25
LONG_CELLS = 12
LONG_M = LONG_CELLS * CELL_M
SIDE = CELLS // BUCKET_CELLS  # buckets along x and along y
BUCKETS = SIDE * SIDE + 1
INV_BUCKET = INV_CELL / BUCKET_CELLS


@wp.struct
class Columns:
    """Boxes of K maps, up to B on each, in the order of their buckets."""

    edges: wp.array2d(dtype=wp.vec4)  # [K, B] footprints x0, y0, x1, y1, m, world
    tops: wp.array2d(dtype=wp.float32)  # [K, B] heights, m
    first: wp.array2d(dtype=wp.int32)  # [K, BUCKETS + 1] first box of each bucket, then the number of boxes


@wp.func
def bucket_of(box: wp.vec4i) -> int:
    """Return the bucket of a footprint in inner cells; -1 if the footprint is empty."""
    if box[2] <= box[0] or box[3] <= box[1]:
        return -1
    if wp.max(box[2] - box[0], box[3] - box[1]) > LONG_CELLS:
        return BUCKETS - 1
    return (box[0] + RING_CELLS) / BUCKET_CELLS * SIDE + (box[1] + RING_CELLS) / BUCKET_CELLS


@wp.func
def bucket_at(x: float) -> int:
    """Return the row of buckets, 0 to SIDE - 1, at a coordinate in m; the nearest one off the map."""
    return wp.clamp(int(wp.floor((x + HALF_M) * INV_BUCKET)), 0, SIDE - 1)


@wp.func
def edge_m(cell: int) -> float:
    """Return the coordinate at which an inner cell begins, m, rounded as in the walks over the grid."""
    return float(cell + RING_CELLS) * CELL_M - HALF_M


@wp.kernel(enable_backward=False)
def sort_columns(
    slots: wp.array(dtype=wp.int32),
    num_boxes: int,
    boxes: wp.array2d(dtype=wp.vec4i),
    heights: wp.array2d(dtype=wp.float32),
    columns: Columns,
):
    """Sort the boxes of maps into buckets by counting, one thread per map."""
    slot = slots[wp.tid()]
    if slot < 0:
        return
    for k in range(BUCKETS + 1):
        columns.first[slot, k] = 0
    for b in range(num_boxes):
        bucket = bucket_of(boxes[slot, b])
        if bucket >= 0:
            columns.first[slot, bucket] = columns.first[slot, bucket] + 1
    for k in range(1, BUCKETS + 1):  # now `first` is where each bucket ends
        columns.first[slot, k] = columns.first[slot, k] + columns.first[slot, k - 1]
    for n in range(num_boxes):
        b = num_boxes - 1 - n
        box = boxes[slot, b]
        bucket = bucket_of(box)
        if bucket >= 0:
            at = columns.first[slot, bucket] - 1
            columns.first[slot, bucket] = at
            columns.edges[slot, at] = wp.vec4(edge_m(box[0]), edge_m(box[1]), edge_m(box[2]), edge_m(box[3]))
            columns.tops[slot, at] = wp.round(heights[slot, b] / HEIGHT_STEP) * HEIGHT_STEP
