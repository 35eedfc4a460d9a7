"""An env whose movers come from its LiDAR keeps the contract of an env, and `dynamic_obstacle` holds no truth."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fledge.core.errors import ConfigError
from fledge.core.settings import check_settings
from fledge.envs.checker import check_tensor_env
from fledge.evaluation.env_config import eval_env
from fledge.tasks.navigation.config import NavigationConfig, Starts
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.planner.reader import PlanReader
from fledge.tasks.navigation.sensing.observations import MoversFrom
from fledge.tasks.policy_loader import load_policy

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


def test_a_reader_elsewhere_tracks_the_same_movers() -> None:
    cfg = dataclasses.replace(CFG, pose=True, max_episode_steps=400)
    env, reader = NavigationEnv(cfg, seed=5, num_threads=1), PlanReader(cfg, 6)
    out, flown, goes_on = env.reset(), None, torch.ones(6, dtype=torch.bool)
    tracked = 0
    for _ in range(40):
        obs = {name: value for name, value in out["obs"].items() if name not in ("plan", "dynamic_obstacle")}
        plan = reader.read(obs, flown)
        assert torch.equal(plan[goes_on], out["obs"]["plan"][goes_on])
        tracked += int((out["obs"]["dynamic_obstacle"][goes_on] != 0).any())
        flown = torch.full((6, 3), 0.5)
        out = env.step(flown)
        goes_on &= ~(out["terminated"] | out["truncated"])
    assert goes_on.any()
    assert tracked > 5


def places(rows: np.ndarray) -> np.ndarray:
    """Horizontal positions of the present rows of `dynamic_obstacle`, [n, 2], relative to the drone."""
    unit = rows[:, :2] / np.maximum(np.linalg.norm(rows[:, :2], axis=1, keepdims=True), 1e-6)
    return unit * rows[:, 3:4]


def test_movers_in_view_are_tracked_where_they_are() -> None:
    """Hover among columns and movers, and compare the tracks with a detector that does not see through columns."""
    cfg = dataclasses.replace(
        CFG, num_envs=16, num_maps=4, decimation=3, lidar_azimuths=144, static_obstacles=150, moving_obstacles=60,
        plan=False, max_episode_steps=4000, starts=Starts.mixed, inside_share=1.0,
    )  # fmt: skip
    ours = NavigationEnv(cfg, seed=3, num_threads=1)
    perception = dataclasses.replace(cfg.perception, occlusion=True)
    truth = NavigationEnv(
        dataclasses.replace(cfg, movers_from=MoversFrom.detector, perception=perception), seed=3, num_threads=1
    )
    ours.reset(), truth.reset()
    age, found, errors, speeds = np.zeros(16), [], [], []
    for _ in range(90):
        action = torch.full((16, 3), 0.5)
        a, b = ours.step(action), truth.step(action)
        age = np.where((a["terminated"] | a["truncated"]).numpy(), 0, age + 1)
        for drone in np.flatnonzero(age > 40):
            rows, true = (x["obs", "dynamic_obstacle"][drone, 0].numpy() for x in (a, b))
            rows, true = rows[rows[:, 3] > 0], true[true[:, 3] > 0]
            for place, row in zip(places(true), true, strict=True):
                if row[3] < 3.0 and row[9] == 0:
                    away = np.linalg.norm(places(rows) - place, axis=1) if len(rows) else np.array([9.0])
                    found.append(away.min() < 0.7)
                    if found[-1]:
                        errors.append(away.min())
                        speeds.append(np.linalg.norm(rows[away.argmin(), 5:7] - row[5:7]))
    assert len(found) > 300
    assert np.mean(found) > 0.8
    assert np.median(errors) < 0.12
    assert np.median(speeds) < 0.3


@pytest.mark.parametrize("preset", ["crossing", "sando"])
def test_fledge_scan_flies_by_its_own_scans_in_any_world(preset: str) -> None:
    policy = load_policy("fledge-scan")
    words = ["env.num_envs=4", "env.num_maps=2", "env.max_episode_steps=40"]
    if preset == "crossing":
        words += ["env.static_obstacles=40", "env.moving_obstacles=20"]
    flight = eval_env(policy, preset, words)
    assert flight.cfg.movers_from is MoversFrom.lidar
    env = NavigationEnv(flight.cfg, seed=1, num_threads=1)
    out, start = env.reset(), None
    for _ in range(8):
        start = out["obs", "state"][:, 3].clone() if start is None else start
        out = env.step(policy.act(out["obs"]))
    assert (out["obs", "state"][:, 3] < start).all()  # horizontal distances from the goal
