"""Forests: shares and shapes of the spec, the rules of placing replayed, the distance field by brute force."""

import numpy as np
import pytest
import warp as wp

from fledge.core.random import Purpose, split_seed, uniform
from fledge.tasks.navigation.physics.terrain import (
    CELLS,
    DISTANCE_CAP,
    HEIGHT_STEP,
    RING_CELLS,
    SOLID,
    place_boxes,
    rasterise,
)

BOXES = 350
Forest = tuple[np.ndarray, np.ndarray, np.ndarray]


def rasterised(boxes: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """[K, CELLS, CELLS] grids of given boxes."""
    k, n = heights.shape
    grid = wp.zeros((k, CELLS * CELLS), dtype=wp.uint8, device="cpu")
    slots = wp.array(np.arange(k, dtype=np.int32), device="cpu")
    columns = wp.array(np.ascontiguousarray(boxes, dtype=np.int32), dtype=wp.vec4i, device="cpu")
    tops = wp.array(np.ascontiguousarray(heights, dtype=np.float32), device="cpu")
    wp.launch(rasterise, k, [slots, n, columns, tops, grid], device="cpu")
    return grid.numpy().reshape(k, CELLS, CELLS)


def build(keys: list[tuple[int, int]], seed: int = 0, slots: list[int] | None = None, num_boxes: int = BOXES) -> Forest:
    """Boxes [K, B, 4], heights [K, B] and grids [K, CELLS, CELLS] of maps with these keys, built in these slots."""
    slots = list(range(len(keys))) if slots is None else slots
    size = max(slots) + 1
    table = np.zeros((size, 2), dtype=np.uint32)
    table[slots] = keys
    boxes = wp.zeros((size, num_boxes), dtype=wp.vec4i, device="cpu")
    heights = wp.zeros((size, num_boxes), dtype=wp.float32, device="cpu")
    index = wp.array(np.array(slots, dtype=np.int32), device="cpu")
    key_array = wp.array(table, dtype=wp.vec2ui, device="cpu")
    args = [index, key_array, num_boxes, wp.vec2ui(*split_seed(seed)), boxes, heights]
    wp.launch(place_boxes, len(slots), args, device="cpu")
    placed, tops = boxes.numpy()[slots], heights.numpy()[slots]
    return placed, tops, rasterised(placed, tops)


@pytest.fixture(scope="module")
def forest() -> Forest:
    return build([(k, 9) for k in range(24)], seed=3)


def test_about_five_percent_of_cells_and_seven_percent_of_vertices_are_solid(forest: Forest) -> None:
    boxes, _, grid = forest
    inner = grid[:, RING_CELLS:-RING_CELLS, RING_CELLS:-RING_CELLS]
    assert inner.shape[1:] == (400, 400)
    vertices = np.zeros((len(boxes), 401, 401), dtype=bool)
    for k, boxes_k in enumerate(boxes):
        for x0, y0, x1, y1 in boxes_k:
            vertices[k, x0 : x1 + 1, y0 : y1 + 1] = True
    assert (inner >= SOLID).mean() == pytest.approx(0.052, abs=0.002)
    assert vertices.mean() == pytest.approx(0.074, abs=0.002)


def test_the_ring_around_the_forest_is_bare(forest: Forest) -> None:
    grid = forest[2].copy()
    grid[:, RING_CELLS:-RING_CELLS, RING_CELLS:-RING_CELLS] = 0
    assert (grid < SOLID).all()


def test_heights_fall_into_the_four_bands_with_their_probabilities(forest: Forest) -> None:
    # heights are rounded to 0.05 m, so a band's edge belongs to both neighbours: count by the band's inside
    heights = forest[1].ravel()
    n = heights.size
    for low, high, share in ((1.0, 1.5, 0.10), (1.5, 2.0, 0.15), (2.0, 4.0, 0.20), (4.0, 6.0, 0.55)):
        width = (high - low) / HEIGHT_STEP
        inside = ((heights > low + 0.01) & (heights < high - 0.01)).mean()
        expected = share * (width - 1) / width
        assert inside == pytest.approx(expected, abs=4 * np.sqrt(expected / n)), (low, high)
    assert heights.min() >= 1.0 - 1e-6
    assert heights.max() <= 6.0 + 1e-6
    np.testing.assert_allclose(heights / HEIGHT_STEP, np.round(heights / HEIGHT_STEP), atol=1e-4)


def test_heights_are_uniform_inside_a_band(forest: Forest) -> None:
    tall = forest[1][forest[1] > 4.01]
    counts, _ = np.histogram(tall, bins=4, range=(4.0, 6.0))
    assert np.abs(counts / len(tall) - 0.25).max() < 0.03


def test_footprints_have_three_or_seven_cells_a_side_equally_often(forest: Forest) -> None:
    boxes = forest[0]
    for low, high in ((0, 2), (1, 3)):
        sides = boxes[..., high] - boxes[..., low]
        assert set(np.unique(sides)) == {3, 7}
        assert (sides == 7).mean() == pytest.approx(0.5, abs=0.03)


def test_footprints_start_on_the_forty_centimetre_raster_or_end_at_the_border(forest: Forest) -> None:
    boxes = forest[0]
    assert boxes.min() >= 0
    assert boxes.max() == 400
    for low, high in ((0, 2), (1, 3)):
        assert ((boxes[..., low] % 4 == 0) | (boxes[..., high] == 400)).all()
        assert len(np.unique(boxes[..., low] // 4)) == 100  # every row of the raster is used


def test_a_box_is_redrawn_up_to_three_times_while_its_gap_to_an_earlier_one_is_bad(forest: Forest) -> None:
    """The rule replayed in plain Python for one map: gaps of 0.2 to 1.0 m are bad."""

    def candidate(draw: int) -> tuple[int, int, int, int]:
        u = uniform([5, 9, int(Purpose.BOX), draw], 3)
        w, d = (8 if u[k] >= 0.5 else 4 for k in (2, 3))
        x, y = min(int(u[0] * 101) * 4, 401 - w), min(int(u[1] * 101) * 4, 401 - d)
        return x, y, x + w - 1, y + d - 1

    def is_bad(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        dx, dy = max(b[0] - a[2], a[0] - b[2], 0), max(b[1] - a[3], a[1] - b[3], 0)
        return 2 <= np.hypot(dx, dy) <= 10

    placed: list[tuple[int, int, int, int]] = []
    redrawn = 0
    for b in range(BOXES):
        box = candidate(b * 256)
        for attempt in range(1, 4):
            if not any(is_bad(box, other) for other in placed):
                break
            box = candidate(b * 256 + attempt)
            redrawn += 1
        placed.append(box)
    assert redrawn > 50
    assert forest[0][5].tolist() == [list(box) for box in placed]


def test_overlapping_boxes_show_the_taller_one_whatever_their_order() -> None:
    boxes = np.array([[[100, 100, 107, 107], [104, 104, 111, 111]]] * 2)
    heights = np.array([[1.5, 3.0], [3.0, 1.5]])
    low_first, high_first = rasterised(boxes, heights)
    shared = (RING_CELLS + 105, RING_CELLS + 105)
    assert low_first[shared] == high_first[shared] == SOLID + 60
    assert low_first[RING_CELLS + 101, RING_CELLS + 101] == SOLID + 30
    assert high_first[RING_CELLS + 101, RING_CELLS + 101] == SOLID + 60


def test_a_boxs_cells_are_those_between_its_corners() -> None:
    grid = rasterised(np.array([[[8, 16, 11, 23]]]), np.array([[2.0]]))[0]
    solid = np.argwhere(grid >= SOLID)
    assert solid.min(0).tolist() == [RING_CELLS + 8, RING_CELLS + 16]
    assert solid.max(0).tolist() == [RING_CELLS + 10, RING_CELLS + 22]
    assert len(solid) == 3 * 7
    assert set(grid[grid >= SOLID]) == {SOLID + 40}


@pytest.mark.parametrize("which", [0, 11])
def test_free_cells_hold_the_chebyshev_distance_to_the_nearest_column(forest: Forest, which: int) -> None:
    boxes, _, grid = (part[which] for part in forest)
    check_distances(boxes, grid)


def test_the_distance_field_is_right_and_capped_on_a_nearly_empty_map() -> None:
    boxes, _, grid = build([(0, 1)], num_boxes=2)
    check_distances(boxes[0], grid[0])
    assert (grid[0] == DISTANCE_CAP).any()


def check_distances(boxes: np.ndarray, grid: np.ndarray) -> None:
    """Every free cell against the minimum over all boxes, one box at a time."""
    ix, iy = np.indices((CELLS, CELLS), dtype=np.int16)
    nearest = np.full((CELLS, CELLS), 10_000, dtype=np.int16)
    for x0, y0, x1, y1 in boxes + RING_CELLS:
        dx = np.maximum(x0 - ix, ix - (x1 - 1))
        dy = np.maximum(y0 - iy, iy - (y1 - 1))
        nearest = np.minimum(nearest, np.maximum(np.maximum(dx, dy), 0))
    np.testing.assert_array_equal(grid >= SOLID, nearest == 0)
    free = nearest > 0
    np.testing.assert_array_equal(grid[free], np.minimum(nearest, DISTANCE_CAP)[free])


def test_a_map_depends_on_seed_and_key_alone_not_on_slot_or_company() -> None:
    alone = build([(4, 7)], seed=11)
    crowded = build([(1, 7), (4, 7), (4, 8)], seed=11, slots=[5, 2, 0])
    for mine, theirs in zip(alone, crowded, strict=True):
        np.testing.assert_array_equal(mine[0], theirs[1])


def test_another_seed_or_either_key_word_gives_another_map() -> None:
    maps = [build([key], seed=seed)[0] for key, seed in (((4, 7), 11), ((4, 8), 11), ((5, 7), 11), ((4, 7), 12))]
    maps.append(build([(4, 7)], seed=11 + 2**32)[0])
    for a in range(len(maps)):
        for b in range(a):
            assert (maps[a] != maps[b]).any(axis=-1).mean() > 0.9, (a, b)
