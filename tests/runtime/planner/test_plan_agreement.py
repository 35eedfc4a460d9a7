"""The runtime's planner, in C and in NumPy, plans as the simulator does: the same numbers, bit for bit, over flights."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fledge.tasks.navigation.config import NavigationConfig
from fledge_runtime.planner import Planner
from tests.runtime.planner.flights import WALL_M, Agreement, compare, fly_to_the_gap, world

ODD: dict[str, Any] = {  # settings that nothing else here has
    "collision": "sphere",
    "speed_limit": 1.2,
    "planner_headings": 13,
    "planner_horizon_s": 2.5,
    "planner_step_s": 0.07,
    "planner_brief_s": 0.75,
    "planner_lag_s": 0.0,
    "planner_standing": False,
}
BARE: dict[str, Any] = {
    "collision": "beams",
    "planner_ways_every": 0,
    "planner_memory": False,
    "planner_brief_s": 0.0,
    "planner_climb": 0.0,
}
WORLDS: dict[str, Callable[..., NavigationConfig]] = {
    "crossing": world,
    "fledge-nav, guarded": partial(world, policy="fledge-nav"),
    "lost movers, late scans": partial(world, "perception/poor", planner_guard=True),
    "fledge-scan, tracked": partial(world, policy="fledge-scan"),
    "tracked, late": partial(world, "perception/typical", policy="fledge-scan"),
    "mid360, tracked": partial(world, "sensor/mid360", movers_from="lidar"),
    "depth camera": partial(world, "sensor/d435"),
    "ouster16, poor, guarded": partial(world, "sensor/ouster16", "perception/poor", planner_guard=True),
    "rooms": partial(world, world="rooms", starts="edges", walls=False, planner_guard=True),
    "odd settings": partial(world, **ODD),
    "bare settings": partial(world, **BARE),
}
QUICK = [name for name in WORLDS if name != "rooms"]  # whose maps take ten seconds to build


def assert_equal(found: Agreement) -> None:
    assert (found.unequal, found.rows_unequal, found.furthest) == (0, 0, 0.0)


@pytest.mark.parametrize("name", QUICK)
def test_the_c_library_plans_bit_for_bit_as_the_simulator(name: str, library: ctypes.CDLL) -> None:
    cfg = WORLDS[name](num_envs=8, max_episode_steps=160)  # 40 decisions: episodes end
    found = compare(cfg, 60, lambda settings: Planner(settings, "c", library))
    assert_equal(found)
    assert found.decisions == 480
    assert found.ended >= 4
    assert found.with_movers > 20


@pytest.mark.parametrize("name", QUICK)
def test_numpy_plans_bit_for_bit_as_the_simulator(name: str) -> None:
    cfg = WORLDS[name](num_envs=2, max_episode_steps=100)
    found = compare(cfg, 35, lambda settings: Planner(settings, "numpy"))
    assert_equal(found)
    assert found.ended >= 2


@pytest.mark.parametrize("engine", ["c", "numpy"])
def test_a_drone_stuck_at_a_narrow_gap_gets_impatient_in_the_same_decision(engine: str, library: ctypes.CDLL) -> None:
    found, at = fly_to_the_gap(180, lambda settings: Planner(settings, engine, library if engine == "c" else None))
    assert_equal(found)
    assert at[0] > WALL_M + 1.0  # it waited, and flew through


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_over_whole_flights_no_plan_of_the_c_library_differs(name: str, library: ctypes.CDLL) -> None:
    found = compare(WORLDS[name](num_envs=8), 600, lambda settings: Planner(settings, "c", library), noise=0.05)
    assert_equal(found)
    assert found.ended >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lost movers, late scans", "fledge-scan, tracked"])
def test_over_whole_flights_no_plan_of_numpy_differs(name: str) -> None:
    found = compare(WORLDS[name](num_envs=2), 500, lambda settings: Planner(settings, "numpy"), noise=0.05)
    assert_equal(found)
