"""The contract of navigation policies says what the env does: shapes, geometry, rates, and what an action means."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from fledge.tasks.navigation.config import ActionForm, NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.task import NavigationTask

TASK = NavigationTask()


def test_every_column_has_a_name_and_a_unit() -> None:
    seen = TASK.contract(NavigationConfig())["observation"]
    assert len(seen["state"]["columns"]) == seen["state"]["shape"][-1]
    assert len(seen["dynamic_obstacle"]["columns"]) == seen["dynamic_obstacle"]["shape"][-1]
    for column in (*seen["state"]["columns"], *seen["dynamic_obstacle"]["columns"]):
        assert column["name"]
        assert column["unit"]


def test_it_follows_the_settings_and_is_plain_json() -> None:
    cfg = NavigationConfig(
        decimation=5, speed_limit=1.5, lidar_azimuths=18, lidar_elevations_deg=[0.0, 5.0], lidar_sees_movers=True
    )
    contract = TASK.contract(cfg)
    assert json.loads(json.dumps(contract, allow_nan=False)) == contract
    assert contract["decision_s"] == pytest.approx(0.08)
    assert contract["speed_limit_m_s"] == 1.5
    lidar = contract["observation"]["lidar"]
    assert lidar["shape"] == [1, 18, 2]
    assert lidar["azimuths_deg"] == [20.0 * h for h in range(18)]
    assert lidar["elevations_deg"] == [0.0, 5.0]
    assert "moving obstacles" in lidar["sees"]


def test_headings_and_the_grid_are_told_too() -> None:
    cfg = NavigationConfig(action_form=ActionForm.headings, num_headings=8, grid_map=True, grid_size=16)
    contract = TASK.contract(cfg)
    assert contract["action"]["action"]["num_values"] == 8
    assert "num_values" in contract["action"]["action"]["doc"]
    assert contract["observation"]["grid_map"]["cell_m"] == cfg.grid_resolution_m


def test_an_action_is_the_velocity_in_the_goal_frame_that_it_says() -> None:
    env = NavigationEnv(NavigationConfig(num_envs=4, static_obstacles=0, moving_obstacles=0, num_maps=1), seed=3)
    env.reset()
    limit = TASK.contract(env.cfg)["speed_limit_m_s"]
    wanted = torch.tensor([0.9, -0.5, 0.2])  # m/s, goal frame
    for _ in range(150):
        env.step(((wanted / limit + 1.0) / 2.0).expand(4, 3))
    to_goal = (env.state["goal"] - env.state["start"]).numpy()
    along = np.arctan2(to_goal[:, 1], to_goal[:, 0])
    vel = env.state["vel"].numpy()
    flown = np.stack(
        [
            np.cos(along) * vel[:, 0] + np.sin(along) * vel[:, 1],
            -np.sin(along) * vel[:, 0] + np.cos(along) * vel[:, 1],
            vel[:, 2],
        ],
        axis=-1,
    )
    env.close()
    assert np.abs(flown - 0.916 * wanted.numpy()).max() < 0.05  # drag: 1.83 of 2 m/s
    assert math.isclose(TASK.contract(env.cfg)["decision_s"], env.decision_s)
