"""Recordings, pictures and metrics of a scene, which is wider than the forest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.overrides import from_plain
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.task import NavigationTask
from fledge.tasks.view.trajectory import Trajectory

TASK = NavigationTask()
HOVER = torch.full((2, 3), 0.5)


@pytest.fixture
def env() -> Iterator[NavigationEnv]:
    cfg: Any = from_plain(NavigationConfig, {**TASK.presets.load("env", "sando"), "num_envs": 2, "decimation": 3})
    env = NavigationEnv(cfg, num_threads=1)
    env.reset()
    yield env
    env.close()


def test_a_recording_has_boxes_and_cubes_where_they_are_far_from_the_start(env: NavigationEnv) -> None:
    env.state["pos"][1] = torch.tensor([90.0, 0.0, 5.5])
    scene = TASK.view.scene(env, [1])[0]
    frames = TASK.view.snapshot(env, [1])
    track = Trajectory(dict(frames), scene, "timeout")
    crowd = TASK.view.crowd(track)
    assert crowd is not None
    there = crowd.ids[0] >= 0
    true = env.bank.tensors["trail"][-1, int(env.state["slot"][1])].numpy()[crowd.ids[0][there]]
    assert there.sum() == 12
    assert true[:, 0].min() > 40.0
    np.testing.assert_allclose(crowd.pos[0][there], true, atol=0.006)
    assert (crowd.sizes[crowd.ids[0][there]] == np.float32(0.8)).all()
    stage = TASK.view.stage(scene)
    assert len(stage.boxes) == 35
    assert np.asarray(stage.bounds)[1, 0] == 110.0
    figure = TASK.view.draw([track])
    assert figure.axes[0].get_xlim()[1] >= 110.0


def test_flights_that_leave_the_width_of_a_scene_count_as_flying_round(env: NavigationEnv) -> None:
    metrics = TASK.metrics.episode_metrics()
    metrics.begin(env)
    counted = torch.ones(2, dtype=torch.bool)
    for y in (0.0, 7.0, 0.0):
        env.state["pos"][1] = torch.tensor([20.0, y, 2.0])
        metrics.before_step({}, HOVER, counted)
        metrics.after_step(torch.zeros(2, dtype=torch.uint8), counted)
    metrics.after_step(torch.full((2,), 5, dtype=torch.uint8), counted)
    figures = metrics.figures()
    assert (figures["round_share"], figures["inside_success"]) == (0.5, 0.0)
    for y, outcome in (
        (0.0, 0),
        (0.0, 1),
        (7.0, 0),
        (0.0, 1),
    ):  # both arrive twice, the second drone once by a way round
        env.state["pos"][1] = torch.tensor([20.0, y, 2.0])
        metrics.before_step({}, HOVER, counted)
        metrics.after_step(torch.full((2,), outcome, dtype=torch.uint8), counted)
    figures = metrics.figures()
    assert (figures["round_share"], figures["inside_success"]) == (pytest.approx(2 / 6), 0.5)
    assert figures["outside_share"] == pytest.approx(2 / 14)


def test_evaluation_gives_every_drone_of_a_scene_its_own_world() -> None:
    cfg = from_plain(NavigationConfig, TASK.presets.load("env", "sando"))
    assert TASK.evaluation(cfg).num_maps == TASK.evaluation(cfg).num_envs
