"""The benchmarks of batch sizes check first, and report each choice beside the best size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import batching, noise_scale
from benchmarks.commands import main
from fledge.core.errors import InputError
from fledge.training.auto import ENVS, MINIBATCH
from fledge.training.config import make_config

TINY = ["ranks=1", "env.num_envs=8", "env.num_maps=1", "env.static_obstacles=10", "env.moving_obstacles=0"]
TINY += ["policy.hidden=[8]", "ppo.rollout_steps=16", "ppo.minibatch=32", "total_frames=25600"]


def test_choices_are_timed_beside_the_grid() -> None:
    result = batching.run(overrides=TINY, envs=(8, 16), minibatches=(32, 512), turns=1, choices=1)
    assert {(row[ENVS], row[MINIBATCH]) for row in result["sizes"]} >= {(8, 32), (16, 32)}
    assert all(row[MINIBATCH] <= 16 * row[ENVS] for row in result["sizes"])  # larger ones are left out
    chosen = result["choices"][0]
    assert 0 < chosen["of_best"]["median"] <= chosen["of_best_with_this_minibatch"]["median"] <= 1.0
    assert json.loads(json.dumps(result)) == result
    assert batching.render(result)


def test_a_choice_that_is_too_slow_fails() -> None:
    grid = [{ENVS: 8, MINIBATCH: 32}, {ENVS: 16, MINIBATCH: 32}]
    cfg = make_config("navigation", "", TINY)
    timed = [[[90.0, 80.0, 94.0], [100.0, 100.0, 100.0]]] * 2
    result = batching.summarize(cfg, 1, grid, timed, [grid[0]], [1.0])
    assert result["choices"][0]["of_best"]["median"] == 0.9
    assert not result["close"]
    assert batching.summarize(cfg, 1, grid, timed, [grid[1]], [1.0])["close"]


def test_nothing_is_timed_when_trials_change_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def disturb(run: batching.TrainingState, *rest: object) -> None:
        next(run.policy.parameters()).data += 1.0

    monkeypatch.setattr(batching, "run_trials", disturb)
    with pytest.raises(InputError, match="nothing was measured"):
        batching.run(overrides=TINY, envs=(8,), minibatches=(32,), turns=1, choices=1)


def test_learning_curves_have_a_value_for_each_iteration_and_can_be_drawn(tmp_path: Path) -> None:
    small = [*TINY[1:-1], "total_frames=640"]
    result = noise_scale.run(overrides=small, fixed=(32,), grow=(32,), seeds=1, picture=str(tmp_path / "curves.png"))
    assert [row["variant"] for row in result["runs"]] == ["32", "auto from 32"]
    assert all(len(row["frames"]) == len(row["value"]) == 5 for row in result["runs"])
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert noise_scale.render(result)


def test_a_grid_that_is_no_list_is_refused() -> None:
    result = CliRunner().invoke(main, ["batching", "--envs", "8;16"])
    assert result.exit_code == 2
    assert "must be lists" in result.output
