"""Numbers that no env can have are refused in one sentence that names the setting and the allowed values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fledge
from fledge.core.errors import ConfigError, InputError, MemoryBudgetError
from fledge.core.settings import check_settings, rule_of, walk
from fledge.tasks.registry import find_task

TASKS = ("navigation", "aircombat")


def numeric(task: str) -> Iterator[tuple[str, Any, Any]]:
    for key, field, value in walk(find_task(task).config()):
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int | float) and not isinstance(first, bool):
            yield key, field, value


def changed(config: Any, key: str, value: Any) -> Any:
    name, _, rest = key.partition(".")
    return dataclasses.replace(config, **{name: changed(getattr(config, name), rest, value) if rest else value})


@pytest.mark.parametrize("task", TASKS)
def test_every_number_has_limits_that_a_kernel_can_hold(task: str) -> None:
    found = list(numeric(task))
    assert len(found) > 20
    for key, field, value in found:
        for bad in (math.nan, math.inf, -math.inf, -(10.0**12), 10.0**12):
            if math.isfinite(bad) and isinstance(value, int):
                bad = int(bad)
            config = changed(find_task(task).config(), key, [bad] if isinstance(value, list) else bad)
            with pytest.raises(ConfigError, match=rf"^env\.{key} is .*, but must be .+\.$"):
                check_settings(config, "env.")
        assert rule_of(field).limits(), key


@pytest.mark.parametrize(
    ("task", "given", "sentence"),
    [
        (
            "navigation",
            {"speed_limit": math.nan},
            r"env\.speed_limit is nan, but must be finite and at most 1000 and greater",
        ),
        (
            "navigation",
            {"env.planner.ways_every": 10**12},
            r"env\.planner\.ways_every is 1000000000000, but must be 0 to",
        ),
        ("navigation", {"num_envs": 0}, r"env\.num_envs is 0, but must be 1 to"),
        (
            "aircombat",
            {"env.missile.burn_s": math.inf},
            r"env\.missile\.burn_s is inf, but must be finite and 0 to 1000",
        ),
        ("aircombat", {"decimation": 10000, "time_scale": 100.0, "max_episode_s": 1e5}, "must last at most 1000 s"),
        ("aircombat", {"min_range_m": 2e5, "max_range_m": 1e5}, r"must be at most env\.max_range_m, which is 100000"),
    ],
)
def test_make_env_says_what_is_allowed(task: str, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        fledge.make_env(task, **given)


def test_more_than_memory_holds_is_refused_with_what_to_change() -> None:
    small: dict[str, Any] = {"static_obstacles": 0, "moving_obstacles": 0, "num_maps": 1}
    with pytest.raises(MemoryBudgetError, match=r"raise env\.map_refresh_steps"):
        fledge.make_env("navigation", 2, **small, map_refresh_steps=1, max_episode_steps=10**8)
    with pytest.raises(MemoryBudgetError, match=r"lower env\.num_envs to at most"):
        fledge.make_env("navigation", 2**24, **small, grid_map=True, grid_size=1024)
    with pytest.raises(InputError, match="num_threads=1000000 must be at most 4096"):
        fledge.make_env("navigation", 2, **small, num_threads=10**6)


LARGEST = [
    {"speed_limit": 1000.0, "dt_s": 0.1},
    {"collision_radius_m": 10.0, "goal_radius_m": 1e-6},
    {"lidar_range_m": 100.0, "lidar_sees_movers": True, "plan": False},
    {"env.reward.height": 1e6, "env.reward.near": 1e6, "env.reward.near_m": 1000.0},
    {"env.planner.crash_cost": 1e6, "env.planner.mover_margin_m": 1000.0, "env.planner.mover_cost": 1e6},
    {"max_episode_steps": 10**8, "map_refresh_steps": 10**8, "starts": "crossing"},
]


@pytest.mark.parametrize("given", LARGEST, ids=lambda given: next(iter(given)))
def test_at_the_limits_observations_and_rewards_are_finite(given: dict[str, Any]) -> None:
    small: dict[str, Any] = {
        "num_maps": 1,
        "static_obstacles": 20,
        "moving_obstacles": 8,
        "plan": True,
        "nan_guard": True,
    }
    with fledge.make_env("navigation", 4, device="cpu", num_threads=1, **{**small, **given}) as env:
        env.reset()
        for t in range(8):
            out = env.step(torch.rand(4, 3, generator=torch.Generator().manual_seed(t)))
        assert out["reward"].isfinite().all()
        assert all(value.isfinite().all() for value in out["obs"].values())
