"""Distances to solid voxels, against brute force."""

import itertools

import numpy as np
import pytest

from fledge.tasks.navigation.worlds.distance import chebyshev, has_clearance


@pytest.mark.parametrize(
    ("shape", "share"), [((9, 7, 5), 0.02), ((5, 1, 12), 0.1), ((1, 1, 1), 0.0), ((12, 11, 10), 0.003)]
)
def test_chebyshev_is_the_largest_of_the_three_offsets_to_the_nearest_solid_voxel(
    shape: tuple[int, ...], share: float
) -> None:
    solid = np.random.default_rng(1).random(shape) < share
    index = np.stack(np.indices(shape), axis=-1)
    expected = np.full(shape, 255)
    for voxel in np.argwhere(solid):
        expected = np.minimum(expected, np.abs(index - voxel).max(axis=-1))
    found = chebyshev(solid)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)


def test_chebyshev_stops_at_255() -> None:
    solid = np.zeros((400, 1, 2), bool)
    solid[0, 0, 0] = True
    np.testing.assert_array_equal(chebyshev(solid)[:, 0, 1], np.concatenate([[1], np.minimum(np.arange(1, 400), 255)]))


@pytest.mark.parametrize("clearance_m", [0.04, 0.1, 0.3, 0.45, 5.0])
@pytest.mark.parametrize("shape", [(13, 11, 9), (3, 30, 2), (40, 1, 40)])
def test_clearance_is_the_distance_from_a_centre_to_the_nearest_solid_box(
    shape: tuple[int, ...], clearance_m: float
) -> None:
    solid = np.random.default_rng(2).random(shape) < 0.01
    padded = np.pad(solid, 1, constant_values=True)  # outside counts as solid
    boxes = np.argwhere(padded) - 1
    expected = np.zeros(shape, bool)
    for voxel in itertools.product(*map(range, shape)):
        gap = np.maximum(np.abs(boxes - voxel) - 0.5, 0.0) * 0.1
        expected[voxel] = not solid[voxel] and np.sqrt((gap**2).sum(axis=1)).min() >= clearance_m - 1e-6
    np.testing.assert_array_equal(has_clearance(solid, 0.1, clearance_m), expected)
