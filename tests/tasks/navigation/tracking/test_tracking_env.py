"""An env whose movers come from its LiDAR keeps the contract of an env, and `dynamic_obstacle` holds no truth."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fledge.core.errors import ConfigError
from fledge.core.settings import check_settings
from fledge.envs.checker import check_tensor_env
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.sensing.observations import MoversFrom

CFG = NavigationConfig(
    6, num_maps=2, decimation=6, lidar_azimuths=90, lidar_elevations_deg=[-10.0, 0.0, 10.0], lidar_range_m=6.0,
    lidar_sees_movers=True, movers_from=MoversFrom.lidar, plan=True, max_episode_steps=60,
)  # fmt: skip


def test_the_env_keeps_its_contract() -> None:
    def make(num_envs: int, seed: int) -> NavigationEnv:
        return NavigationEnv(dataclasses.replace(CFG, num_envs=num_envs), seed=seed, num_threads=2)

    check_tensor_env(make, steps=14, num_envs=4)


def test_tracks_do_not_change_the_flight_but_what_is_observed() -> None:
    ours = NavigationEnv(CFG, seed=3, num_threads=1)
    truth = NavigationEnv(dataclasses.replace(CFG, movers_from=MoversFrom.detector), seed=3, num_threads=1)
    a, b = ours.reset(), truth.reset()
    assert not a["obs", "dynamic_obstacle"].any()  # nothing is known to move in the first scan
    for _ in range(8):
        action = torch.full((6, 3), 0.6)
        a, b = ours.step(action), truth.step(action)
        for name in ("reward", "terminated", "truncated"):
            assert torch.equal(a[name], b[name])
    assert torch.equal(a["obs", "state"], b["obs", "state"])
    assert not torch.equal(a["obs", "dynamic_obstacle"], b["obs", "dynamic_obstacle"])


def test_movers_from_lidar_need_a_lidar_that_sees_them() -> None:
    with pytest.raises(ConfigError, match="lidar_sees_movers=true"):
        check_settings(dataclasses.replace(CFG, lidar_sees_movers=False), "env.")
