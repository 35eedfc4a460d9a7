"""An evaluation counts every drone's episodes equally and gives honest intervals."""

import dataclasses
from typing import Any

import pytest
import torch

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError
from fledge.evaluation.episodes import PolicyResult, wilson
from fledge.evaluation.episodes import evaluate as evaluate_in
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.pilots import GapPilot, StraightPilot
from fledge.tasks.navigation.task import NavigationTask
from fledge.tasks.view.base import TaskView

EMPTY = NavigationConfig(num_envs=16, static_obstacles=0, moving_obstacles=0, num_maps=1, decimation=5)
FOREST = NavigationConfig(num_envs=32, num_maps=2, decimation=5, moving_obstacles=0)

SHORT = dataclasses.replace(FOREST, max_episode_steps=400)


def evaluate(agent: BaseAgent, cfg: NavigationConfig, episodes: int, seed: int = 1, **options: Any) -> PolicyResult:
    return evaluate_in(agent, NavigationTask(), cfg, episodes, seed, **options)


def test_the_straight_pilot_crosses_empty_space() -> None:
    result = evaluate(StraightPilot(), EMPTY, 48)
    assert result.rate("success") + result.rate("timeout") == pytest.approx(1.0)
    assert result.rate("success") > 0.9
    assert 1.5 < result.figures["mean_speed"] < 1.9


def test_the_gap_pilot_beats_the_straight_one_in_a_forest() -> None:
    straight, gap = (evaluate(p, FOREST, 96).rate("success") for p in (StraightPilot(), GapPilot()))
    assert gap > straight


def test_exactly_the_asked_number_of_episodes_is_counted() -> None:
    for episodes in (1, 5, 33):
        result = evaluate(StraightPilot(), EMPTY, episodes)
        assert sum(result.counts.values()) == result.episodes == episodes


def test_quick_crashes_are_not_over_counted() -> None:
    """A policy that crashes half of the drones at once: with quotas its rate is one half, not more."""

    class HalfDive(BaseAgent):
        observes = ("state",)

        def act(self, obs: dict[str, torch.Tensor], deterministic: bool = True) -> torch.Tensor:
            action = StraightPilot().act(obs)
            action[: len(action) // 2, 2] = 0.0  # dive
            return action

    result = evaluate(HalfDive(), EMPTY, 64)
    assert result.rate("out_of_bounds") == pytest.approx(0.5)


def test_the_same_seed_gives_the_same_figures_and_another_does_not() -> None:
    a, b, c = (evaluate(GapPilot(), SHORT, 40, seed=s).returns.mean() for s in (1, 1, 2))
    assert a == b != c


def test_wilson_interval_by_hand() -> None:
    low, high = wilson(8, 10)
    assert low == pytest.approx(0.4902, abs=1e-3)
    assert high == pytest.approx(0.9433, abs=1e-3)
    assert wilson(10, 10)[1] == pytest.approx(1.0)
    assert wilson(0, 10)[0] == pytest.approx(0.0)


def test_recorded_flights_begin_at_their_start_and_have_their_map() -> None:
    result = evaluate(StraightPilot(), FOREST, 32, record=8)
    assert len(result.trajectories) == 8
    for track in result.trajectories:
        assert track.frames["pos"][0] == pytest.approx(track.scene["start"])
        assert track.scene["cells"].shape == (250000,)
        assert track.outcome in NavigationTask.metrics.labels


def test_recording_changes_no_figure() -> None:
    plain, recorded = (evaluate(GapPilot(), SHORT, 40, record=k) for k in (0, 5))
    assert plain.counts == recorded.counts
    assert plain.returns.tolist() == recorded.returns.tolist()
    assert (len(plain.trajectories), len(recorded.trajectories)) == (0, 5)


def test_the_headline_is_the_rate_of_success_with_its_interval() -> None:
    result = evaluate(GapPilot(), SHORT, 40)
    assert result.score == result.rate("success") == result.as_dict()["success"]
    assert result.score_ci95 == wilson(result.counts["success"], 40)


def test_no_episode_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        evaluate(StraightPilot(), EMPTY, 0)


def test_a_task_that_shows_nothing_is_recorded_by_its_observations() -> None:
    class Bare(NavigationTask):
        view = TaskView()

    result = evaluate_in(StraightPilot(), Bare(), SHORT, 8, record=2)
    frames = result.trajectories[0].frames
    assert frames["state"].shape[1:] == (8,)
    assert "lidar" not in frames  # 144 numbers are no curve
