"""Voxels that triangles overlap, against a brute-force separating-axis test in float64."""

import itertools

import numpy as np
import pytest

from fledge.core.errors import InputError
from fledge.tasks.navigation.worlds import triangles as module
from fledge.tasks.navigation.worlds.triangles import cells_of_triangles

SHAPE, CELL_M, ORIGIN = (9, 8, 7), 0.5, np.array([-1.0, 2.0, 0.25])


def overlaps(triangle: np.ndarray, lows: np.ndarray) -> np.ndarray:
    """Return by how much a triangle and each voxel overlap along the axis that separates them best, m; negative: apart.

    `lows` [C, 3] are the lowest corners of the voxels.
    """
    edges = np.roll(triangle, -1, axis=0) - triangle
    axes = [*np.eye(3), np.cross(edges[0], edges[1]), *(np.cross(a, b) for a in np.eye(3) for b in edges)]
    corners = lows[:, None] + CELL_M * np.array(list(itertools.product((0.0, 1.0), repeat=3)))
    depths = []
    for axis in axes:
        if (size := np.linalg.norm(axis)) > 1e-12:
            t, b = triangle @ axis / size, corners @ axis / size
            depths.append(np.minimum(t.max() - b.min(axis=1), b.max(axis=1) - t.min()))
    return np.min(depths, axis=0)


def shapes() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    high = ORIGIN + CELL_M * np.array(SHAPE)
    big = rng.uniform(ORIGIN - 1.0, high + 1.0, (40, 3, 3))
    small = rng.uniform(ORIGIN, high, (60, 1, 3)) + rng.normal(0, 0.1, (60, 3, 3))
    flat = rng.uniform(ORIGIN, high, (20, 3, 3))
    flat[:, :, 2] = flat[:, :1, 2]
    line = rng.uniform(ORIGIN, high, (20, 3, 3))
    line[:, 2] = line[:, 0] + 0.3 * (line[:, 1] - line[:, 0])
    point = np.repeat(rng.uniform(ORIGIN, high, (10, 1, 3)), 3, axis=1)
    aligned = ORIGIN + CELL_M * rng.integers(0, 7, (30, 3, 3))
    return {"big": big, "small": small, "flat": flat, "line": line, "point": point, "aligned": aligned}


@pytest.mark.parametrize("kind", shapes())
def test_a_voxel_lists_the_triangles_that_overlap_it(kind: str) -> None:
    triangles = shapes()[kind].astype(np.float32)
    first, ids = cells_of_triangles(triangles, ORIGIN, SHAPE, CELL_M)
    assert first.dtype == ids.dtype == np.int32
    assert first.shape == (np.prod(SHAPE) + 1,)
    assert first[0] == 0
    assert first[-1] == len(ids)
    lows = ORIGIN + CELL_M * np.array(list(np.ndindex(*SHAPE)))
    depths = np.array([overlaps(t.astype(np.float64), lows) for t in triangles])
    for flat, depth in enumerate(depths.T):
        row = ids[first[flat] : first[flat + 1]].tolist()
        assert row == sorted(set(row))
        assert set(np.flatnonzero(depth >= 0.0)) <= set(row), "an overlap is lost"
        assert set(row) <= set(np.flatnonzero(depth >= -3e-3 * CELL_M)), "a triangle is listed far from its voxels"


def test_no_triangles_give_no_cells() -> None:
    first, ids = cells_of_triangles(np.zeros((0, 3, 3), np.float32), ORIGIN, SHAPE, CELL_M)
    assert not first.any()
    assert not len(ids)


def test_too_much_work_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    big = shapes()["big"]
    monkeypatch.setattr(module, "MAX_PAIRS", 10)
    with pytest.raises(InputError, match="at most 10 fit: use larger voxels"):
        cells_of_triangles(big, ORIGIN, SHAPE, CELL_M)
    with pytest.raises(InputError, match="simplify the mesh"):
        cells_of_triangles(np.array([[[0, 0, 0], [1e6, 0, 0], [0, 1e6, 0]]]), ORIGIN, SHAPE, CELL_M)
