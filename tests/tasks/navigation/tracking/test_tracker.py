"""The tracker finds movers in LiDAR scans, takes no column for one, and agrees with a plain reference."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from tests.tasks.navigation.tracking.scene import STEP_S, Moment, fly

COLUMNS = [(-14.0, 1.0, 0.3), (-12.0, -2.0, 0.3), (-16.0, -3.0, 0.4)]


def ahead(t: float) -> tuple[float, ...]:
    return (-20.0 + 1.5 * t, 0.0, 1.5)


def hover(t: float) -> tuple[float, ...]:
    return (-20.0, 0.0, 1.5)


def passing(t: float) -> tuple[float, ...]:
    return (-17.0, 2.5 - t)


def crossing(t: float) -> tuple[float, ...]:
    return (-18.0 + 0.3 * t, -2.5 + t)


def beside(t: float) -> tuple[float, ...]:
    return (-16.5 + 0.3 * t, 2.0 - 0.6 * t)


SCENES = {
    "one passes": (hover, [(passing, 0.25)], [], 40),
    "two cross": (hover, [(passing, 0.25), (crossing, 0.25)], [], 40),
    "among columns": (ahead, [(beside, 0.5)], COLUMNS, 30),
    "behind a column": (hover, [(passing, 0.25)], [(-18.5, 0.3, 0.2)], 45),
    "columns alone": (ahead, [], COLUMNS, 60),
}


@functools.cache
def flight(name: str) -> list[Moment]:
    return list(fly(*SCENES[name]))


@pytest.mark.parametrize("name", SCENES)
def test_the_kernel_agrees_with_the_reference(name: str) -> None:
    moments = flight(name)
    same = [m for m in moments if len(m.pos) == len(m.reference_pos)]
    assert len(same) >= 0.95 * len(moments)  # float32 may put a hit into the next cell
    for m in same:
        np.testing.assert_allclose(m.pos, m.reference_pos, atol=0.02)
        np.testing.assert_allclose(m.vel, m.reference_vel, atol=0.1)


@pytest.mark.parametrize("name", ["one passes", "two cross", "among columns"])
def test_tracks_follow_the_movers(name: str) -> None:
    moments, found, errors = flight(name), 0, []
    for before, m in itertools.pairwise(moments):
        if len(m.pos):
            away = np.linalg.norm(m.pos[:, None] - m.movers[None], axis=2)
            assert away.min(axis=1).max() < 0.4  # no track without a mover
            found += int((away.min(axis=0) < 0.3).sum())
            truth = (m.movers - before.movers) / STEP_S
            errors += list(np.linalg.norm(m.vel - truth[away.argmin(axis=1)], axis=1))
    assert found > 0.6 * sum(len(m.movers) for m in moments)
    assert np.median(errors) < 0.3


def test_a_column_never_counts_as_a_mover() -> None:
    assert all(len(m.pos) == 0 for m in flight("columns alone"))


def test_a_mover_is_predicted_while_a_column_hides_it() -> None:
    hidden = [
        m for m in flight("behind a column") if abs(np.arctan2(m.movers[0, 1], 3.0) - np.arctan2(0.3, 1.5)) < 0.05
    ]
    assert hidden
    assert all(len(m.pos) == 1 and np.linalg.norm(m.pos[0] - m.movers[0]) < 0.5 for m in hidden)
