"""Readings of the planner: movers that are no longer seen fly on, and late scans and detections are put where they belong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.perception.config import PerceptionConfig
from fledge.tasks.navigation.planner.config import PlannerConfig
from fledge.tasks.navigation.planner.pilot import PlannerBuffers
from fledge.tasks.navigation.planner.readings import FAR
from tests.tasks.navigation.planner.test_cost_to_go import look, observe

AT = (-20.0, 0.0)
DECISION_S = 0.064


def make(perception: PerceptionConfig | None = None, **planner: float) -> PlannerBuffers:
    env_cfg = NavigationConfig(pose=True, decimation=4, perception=perception or PerceptionConfig())
    return PlannerBuffers(PlannerConfig(**planner), env_cfg, 1, torch.device("cpu"))


def see(*movers: tuple[float, float, float, float], speed: float = 0.0) -> dict[str, torch.Tensor]:
    """Observe cylinders (x, y from the drone, their velocity) with a drone that flies at a speed, and a hit 2 m ahead."""
    lidar = np.zeros((36, 4))
    lidar[0, 1] = 4.0 - 2.0
    obs = observe(AT, lidar)
    obs["state"][0, 5] = speed
    for k, (x, y, vx, vy) in enumerate(movers):
        away = float(np.hypot(x, y))
        obs["dynamic_obstacle"][0, 0, k] = torch.tensor([x / away, y / away, 0, away, 0, vx, vy, 0, 1, 0])
    return obs


def places(buffers: PlannerBuffers) -> list[tuple[float, float]]:
    """Return x and y of the movers that the planner expects, from the drone."""
    rows = buffers.tensors["place"][0]
    return sorted((round(float(x) - AT[0], 4), round(float(y) - AT[1], 4)) for x, y, *_ in rows if x < FAR)


def test_a_mover_that_is_no_longer_seen_flies_on_for_a_while() -> None:
    buffers = make(coast_s=0.2)  # three decisions
    buffers.run(see((2.0, 1.0, -0.5, 0.25), (3.0, -1.0, 0.0, 0.0)), None)
    for n in (1, 2, 3):
        buffers.run(see((3.0, -1.0, 0.0, 0.0)), None)
        expected = (2.0 - 0.5 * n * DECISION_S, 1.0 + 0.25 * n * DECISION_S)
        found = places(buffers)
        assert len(found) == 2
        assert found[0] == pytest.approx(expected, abs=1e-3)
        assert found[1] == (3.0, -1.0)
    buffers.run(see((3.0, -1.0, 0.0, 0.0)), None)
    assert places(buffers) == [(3.0, -1.0)]


def test_a_mover_that_is_seen_again_is_not_there_twice_and_none_is_kept_if_rows_are_full_or_memory_is_off() -> None:
    buffers = make(coast_s=1.0)
    buffers.run(see((2.0, 1.0, -0.5, 0.0)), None)
    buffers.run(see(), None)
    buffers.run(see((1.9, 1.1, -0.5, 0.0)), None)
    assert places(buffers) == [(1.9, 1.1)]
    full = [(1.0 + 0.1 * k, -2.0, 0.0, 0.0) for k in range(5)]
    buffers.run(see(*full), None)
    assert len(places(buffers)) == 5
    assert (1.9, 1.1) not in places(buffers)
    without = make(coast_s=0.0)
    without.run(see((2.0, 1.0, -0.5, 0.0)), None)
    without.run(see(), None)
    assert places(without) == []


def test_a_new_episode_expects_no_movers_of_the_last_one() -> None:
    buffers = make(coast_s=1.0)
    buffers.run(see((2.0, 1.0, -0.5, 0.0)), None)
    buffers.tensors["fresh"].fill_(True)
    buffers.run(see(), None)
    assert places(buffers) == []


def test_late_detections_and_scans_are_moved_to_where_they_belong() -> None:
    late = PerceptionConfig(mover_delay_s=0.2, lidar_delay_s=0.2, vary=0.5)  # 0.15 s on average
    buffers = make(late)
    buffers.run(see((2.0, 1.0, -1.0, 0.0), speed=2.0), None)
    assert places(buffers) == [pytest.approx((1.85, 1.0), abs=1e-3)]
    # the hit 2 m ahead was seen from 0.3 m behind, so it is 1.7 m away
    rings, _ = look(buffers, np.array([[AT[0] + 1.7, 0.05], [AT[0] + 2.05, 0.05]]))
    assert rings[0] == 0
    assert rings[1] > 0
