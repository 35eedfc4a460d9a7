"""The parallel kernels that draw maps on a GPU, run on the CPU: the same bytes as the serial ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import warp as wp

from fledge.tasks.navigation.physics.columns import BUCKETS, Columns
from fledge.tasks.navigation.physics.parallel_maps import launch_drawing
from fledge.tasks.navigation.physics.structs import allocate
from fledge.tasks.navigation.physics.terrain import CELLS, WALL_HEIGHT
from tests.tasks.navigation.physics.test_terrain import build

WALLS = [[-50, -3, 450, 0], [-50, 400, 450, 403]]


def forests(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [K, B, 4] and heights [K, B] of forests with walls, and of boxes anywhere: overlapping, empty, at the edges."""
    placed, tops, _ = build([(k, 9) for k in range(count)], seed=5, num_boxes=120)
    walls = np.broadcast_to(WALLS, (count, 2, 4))
    drawn = np.random.default_rng(1)
    corner = drawn.integers(-50, 440, (count, 122, 2))
    anywhere = np.concatenate([corner, np.minimum(corner + drawn.integers(0, 20, corner.shape), 450)], 2)
    heights = drawn.integers(0, 120, (count, 122)) * 0.05
    boxes = np.concatenate([np.concatenate([placed, walls], 1), anywhere])
    return boxes, np.concatenate([np.concatenate([tops, np.full((count, 2), WALL_HEIGHT)], 1), heights])


def draw(boxes: np.ndarray, heights: np.ndarray, parallel: bool, slots: list[int]) -> dict[str, torch.Tensor]:
    k, n = heights.shape
    index = wp.array(np.array(slots, np.int32), device="cpu")
    placed = wp.array(np.ascontiguousarray(boxes, np.int32).reshape(k, n, 4), dtype=wp.vec4i, device="cpu")
    tops = wp.array(np.ascontiguousarray(heights, np.float32), device="cpu")
    columns, tensors = allocate(Columns, {2: (k, n), "first": (k, BUCKETS + 1)}, torch.device("cpu"))
    tensors["grid"] = torch.zeros((k, CELLS * CELLS), dtype=torch.uint8)
    rows = wp.zeros((2, CELLS * CELLS), dtype=wp.uint8, device="cpu") if parallel else None  # fewer than maps
    launch_drawing(index, placed, tops, wp.from_torch(tensors["grid"]), columns, rows, "cpu")
    return tensors


def test_grids_and_buckets_are_those_of_the_serial_kernels_bit_for_bit() -> None:
    boxes, heights = forests(3)
    serial, parallel = (draw(boxes, heights, mode, list(range(len(boxes)))) for mode in (False, True))
    assert serial["grid"].unique().numel() > 30
    for name, tensor in serial.items():
        assert torch.equal(tensor, parallel[name]), name


@pytest.mark.parametrize("boxes", [0, 1])
def test_a_map_with_no_box_or_one_is_drawn(boxes: int) -> None:
    given = np.array([[[8, 16, 11, 23]]])[:, :boxes], np.full((1, boxes), 2.0)
    serial, parallel = (draw(*given, mode, [0]) for mode in (False, True))
    assert torch.equal(serial["grid"], parallel["grid"])
    assert torch.equal(serial["first"], parallel["first"])


def test_slots_below_zero_are_skipped_and_others_keep_their_place() -> None:
    boxes, heights = forests(1)
    whole, part = draw(boxes, heights, True, [0, 1]), draw(boxes, heights, True, [-1, 1])
    for name, tensor in part.items():
        assert not tensor[0].any()
        assert torch.equal(tensor[1], whole[name][1]), name
