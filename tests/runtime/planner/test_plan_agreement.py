"""The runtime's planner, in C and in NumPy, plans as the simulator does: the same numbers, bit for bit, over flights."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fledge.tasks.navigation.config import NavigationConfig
from fledge_runtime.planner import Planner
from tests.runtime.planner.flights import WALL_M, Agreement, compare, compare_alone, fly_to_the_gap, world

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
OTHER_DRONE: dict[str, Any] = {  # it answers later than usual, softer or stiffer
    "randomize.latency_min_steps": 4,
    "randomize.latency_steps": 10,
    "randomize.velocity_gain": 0.6,
}
GIVEN: dict[str, Any] = {
    "planner_gain": 1.5,
    "planner_damping": 0.0,
    "planner_lag_s": 0.3,
    "planner_climb_gain": 4.0,
    "planner_climb_lag_s": 0.1,
    "planner_delay_s": 0.13,
}
IDENTIFIED: dict[str, Any] = {"planner_identify": True, **OTHER_DRONE}
ALL: dict[str, Any] = {**IDENTIFIED, "planner_hasten": True, "planner_depth_cost": 200.0, "planner_guard": True}
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
    "response given, guarded": partial(world, planner_guard=True, **GIVEN, **OTHER_DRONE),
    "depth cost": partial(world, planner_depth_cost=200.0),
    "identified": partial(world, **IDENTIFIED),
    "identified, hastened": partial(world, planner_hasten=True, **IDENTIFIED),
    "all settings": partial(world, **ALL),
    "all settings, response given": partial(world, **ALL, **GIVEN),
    "fledge-scan, all settings": partial(world, "perception/typical", policy="fledge-scan", **ALL),
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


@pytest.mark.parametrize("name", ["planner.identify", "planner.hasten", "planner.depth_cost"])
def test_a_planner_that_ignores_a_setting_plans_otherwise(name: str, library: ctypes.CDLL) -> None:
    cfg = WORLDS["all settings"](num_envs=8)
    found = compare(cfg, 250, lambda settings: Planner({**settings, name: 0}, "c", library))
    assert found.commands_apart > (0 if name == "planner.depth_cost" else 100)  # collisions are rare


@pytest.mark.parametrize("engine", ["c", "numpy"])
@pytest.mark.parametrize("name", ["crossing", "all settings", "fledge-scan, all settings"])
def test_a_planner_alone_commands_bit_for_bit_as_the_scripted_policy(
    name: str, engine: str, library: ctypes.CDLL
) -> None:
    drones, steps = (8, 60) if engine == "c" else (2, 35)
    cfg = WORLDS[name](num_envs=drones, max_episode_steps=100, plan=False)
    found = compare_alone(cfg, steps, lambda settings: Planner(settings, engine, library if engine == "c" else None))
    assert_equal(found)
    assert found.ended >= drones


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
@pytest.mark.parametrize("name", ["lost movers, late scans", "fledge-scan, tracked", "all settings"])
def test_over_whole_flights_no_plan_of_numpy_differs(name: str) -> None:
    found = compare(WORLDS[name](num_envs=2), 500, lambda settings: Planner(settings, "numpy"), noise=0.05)
    assert_equal(found)
