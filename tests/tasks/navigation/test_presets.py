"""Every preset of the navigation task is a config that flies, and says what its name promises."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fledge.core.overrides import from_plain
from fledge.core.settings import check_settings
from fledge.tasks.navigation.config import NavigationConfig, RewardKind
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.task import NavigationTask

TASK = NavigationTask()
PRESETS = {path.stem: path for path in sorted((TASK.presets.folder / "env").glob("*.yaml"))}


def load(name: str) -> NavigationConfig:
    return from_plain(NavigationConfig, TASK.presets.load("env", name))


def test_the_presets_ship_and_the_task_knows_them() -> None:
    assert set(PRESETS) >= {"default", "navrl", "static", "empty"}
    assert TASK.presets.names("env") == sorted(PRESETS)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_is_valid_and_flies(name: str) -> None:
    cfg = load(name)
    check_settings(cfg, "env.")
    env = NavigationEnv(dataclasses.replace(cfg, num_envs=8, num_maps=2), seed=1, num_threads=2)
    env.reset()
    for t in range(5):
        spec = env.action_spec
        if spec.num_values is None:
            action = torch.rand(8, *spec.shape, generator=torch.Generator().manual_seed(t))
        else:
            action = torch.arange(8) % spec.num_values
        result = env.step(action)
    assert (env.state["step"] == 5 * cfg.decimation).any()
    assert torch.isfinite(result["reward"]).all()
    for key, value in result["obs"].items():
        assert torch.isfinite(value).all(), key
    env.close()


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_begins_with_a_line_that_says_what_it_is_for(name: str) -> None:
    first = PRESETS[name].read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")


def test_navrl_is_navrls_task() -> None:
    cfg = load("navrl")
    assert (cfg.static_obstacles, cfg.moving_obstacles, cfg.dt_s, cfg.decimation) == (350, 80, 0.016, 1)
    assert cfg.max_episode_steps == 2200
    assert not cfg.success_ends_episode
    assert not cfg.lidar_sees_movers
    assert cfg.reward.kind is RewardKind.navrl
    assert cfg.reward.height == 8.0


def test_static_has_no_movers_and_empty_has_nothing() -> None:
    static, empty = load("static"), load("empty")
    assert static.moving_obstacles == 0 < static.static_obstacles
    env = NavigationEnv(dataclasses.replace(empty, num_envs=8, num_maps=1), seed=1, num_threads=1)
    obs = env.reset()["obs"]
    assert not obs["dynamic_obstacle"].any()
    assert not obs["lidar"][..., 1:].any()  # only beams that look down end anywhere: on the ground
    env.close()
