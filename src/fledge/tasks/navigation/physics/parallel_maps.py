"""Drawing maps on a GPU: what `terrain.rasterise` and `columns.sort_columns` do in one thread per map, in many.

The distance to the nearest column is found in two passes, since it is a maximum of distances along x and along y:

    along y    rows[ix, iy] = distance to the nearest column in the same row, a thread per row
    along x    grid[ix, iy] = min over jx of max(|ix - jx|, rows[jx, iy]), a thread per line of equal iy

Both passes and the sort give exactly the bytes of the serial kernels, which stay faster on the CPU. Slots below 0 are skipped.
"""

from typing import Any

import warp as wp

from fledge.tasks.navigation.physics.columns import BUCKETS, Columns, bucket_of, edge_m, sort_columns
from fledge.tasks.navigation.physics.terrain import CELLS, DISTANCE_CAP, HEIGHT_STEP, RING_CELLS, SOLID, rasterise

SORTERS = 512  # threads per map that sort its columns
AT_ONCE = 64  # maps that are drawn together: 16 MB of `rows`


def launch_drawing(
    slots: Any, boxes: Any, heights: Any, grid: Any, columns: Any, rows: Any | None, device: str
) -> None:
    """Launch the kernels that write grids and sorted columns of some slots: in parallel with the buffer `rows`, else serially.

    Args:
        slots: Warp array of int32; with `rows`, entries below 0 are skipped.
        rows: [up to AT_ONCE, CELLS * CELLS] uint8, overwritten; None on the CPU.
    """
    given: Any = [boxes.shape[1], boxes, heights]
    if rows is None:
        wp.launch(rasterise, len(slots), [slots, *given, grid], device=device)
        wp.launch(sort_columns, len(slots), [slots, *given, columns], device=device)
        return
    for first in range(0, len(slots), len(rows)):
        count = min(len(rows), len(slots) - first)
        wp.launch(draw_rows, count * CELLS, [first, slots, *given, rows], device=device)
        wp.launch(spread_rows, count * CELLS, [first, slots, rows, grid], device=device)
    wp.launch(sort_columns_in_parallel, len(slots) * SORTERS, [slots, *given, columns], device=device)


@wp.kernel(enable_backward=False)
def draw_rows(
    first: int,
    slots: wp.array(dtype=wp.int32),
    num_boxes: int,
    boxes: wp.array2d(dtype=wp.vec4i),
    heights: wp.array2d(dtype=wp.float32),
    rows: wp.array2d(dtype=wp.uint8),
):
    """Write columns, and distances along y, of maps to `rows`, [maps, CELLS * CELLS], from slots[first] on.

    CELLS threads per map.
    """
    n = wp.tid() / CELLS
    ix = wp.tid() % CELLS
    slot = slots[first + n]
    if slot < 0:
        return
    begin = ix * CELLS
    for c in range(begin, begin + CELLS):
        rows[n, c] = wp.uint8(0)
    for b in range(num_boxes):
        box = boxes[slot, b]
        if ix >= box[0] + RING_CELLS and ix < box[2] + RING_CELLS:
            top = wp.uint8(SOLID + int(wp.round(heights[slot, b] / HEIGHT_STEP)))
            for c in range(begin + box[1] + RING_CELLS, begin + box[3] + RING_CELLS):
                rows[n, c] = wp.max(rows[n, c], top)  # of overlapping boxes the taller one counts
    for p in range(2):
        away = int(DISTANCE_CAP)
        for k in range(CELLS):
            c = wp.where(p == 0, begin + k, begin + CELLS - 1 - k)
            value = int(rows[n, c])
            away = wp.min(away + 1, DISTANCE_CAP)
            if value >= SOLID:
                away = 0
            else:
                away = wp.where(p == 0, away, wp.min(away, value))
                rows[n, c] = wp.uint8(away)


@wp.kernel(enable_backward=False)
def spread_rows(
    first: int, slots: wp.array(dtype=wp.int32), rows: wp.array2d(dtype=wp.uint8), grid: wp.array2d(dtype=wp.uint8)
):
    """Write the grids of maps from their `rows`, from slots[first] on; CELLS threads per map."""
    n = wp.tid() / CELLS
    iy = wp.tid() % CELLS
    slot = slots[first + n]
    if slot < 0:
        return
    for ix in range(CELLS):
        c = ix * CELLS + iy
        best = int(rows[n, c])
        if best < SOLID:
            k = int(1)
            while k < best:
                if ix >= k:
                    best = wp.min(best, wp.max(k, row_distance(rows[n, c - k * CELLS])))
                if ix + k < CELLS:
                    best = wp.min(best, wp.max(k, row_distance(rows[n, c + k * CELLS])))
                k = k + 1
        grid[slot, c] = wp.uint8(best)


@wp.func
def row_distance(value: wp.uint8) -> int:
    """Return the distance in a cell of `rows`: 0 if it is a column."""
    return wp.where(int(value) >= SOLID, 0, int(value))


@wp.kernel(enable_backward=False)
def sort_columns_in_parallel(
    slots: wp.array(dtype=wp.int32),
    num_boxes: int,
    boxes: wp.array2d(dtype=wp.vec4i),
    heights: wp.array2d(dtype=wp.float32),
    columns: Columns,
):
    """Sort the boxes of maps into buckets; SORTERS threads per map, each for every SORTERS-th bucket and box."""
    slot = slots[wp.tid() / SORTERS]
    if slot < 0:
        return
    lane = wp.tid() % SORTERS
    for bucket in range(lane, BUCKETS + 1, SORTERS):
        before = int(0)
        for o in range(num_boxes):
            other = bucket_of(boxes[slot, o])
            if other >= 0 and other < bucket:
                before = before + 1
        columns.first[slot, bucket] = before
    for b in range(lane, num_boxes, SORTERS):
        box = boxes[slot, b]
        bucket = bucket_of(box)
        if bucket >= 0:
            at = int(0)
            for o in range(num_boxes):
                other = bucket_of(boxes[slot, o])
                if other >= 0 and (other < bucket or (other == bucket and o < b)):
                    at = at + 1
            columns.edges[slot, at] = wp.vec4(edge_m(box[0]), edge_m(box[1]), edge_m(box[2]), edge_m(box[3]))
            columns.tops[slot, at] = wp.round(heights[slot, b] / HEIGHT_STEP) * HEIGHT_STEP
