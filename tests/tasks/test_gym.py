"""Gymnasium envs as tasks: train, resume, evaluate, report and export by the command line, as for our own."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.storage import CheckpointHistory
from fledge.tasks.gym.task import GymTask, read_options

SMALL = ["tensorboard=false", "env.num_envs=4", "seed=1"]
OFF_POLICY = ["replay.warm_up=64", "replay.batch=32", "replay.segment=4", "policy.hidden=[16]", "log_interval=1"]
CASES = {
    "ppo": ["gym:CartPole-v1", "ppo.rollout_steps=16", "ppo.epochs=1", "total_frames=256"],
    "dqn": ["gym:CartPole-v1", "algo=dqn", "replay.steps=8", "total_frames=256", *OFF_POLICY],
    "sac": ["gym:Pendulum-v1", "algo=sac", "replay.steps=8", "total_frames=256", "sac.critic_hidden=[16]", *OFF_POLICY],
    "td3": ["gym:Pendulum-v1", "algo=td3", "replay.steps=8", "total_frames=256", "td3.critic_hidden=[16]", *OFF_POLICY],
}


def run(*words: str) -> str:
    result = CliRunner().invoke(main, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("algo", CASES)
def test_a_run_is_trained_resumed_exactly_evaluated_and_exported(algo: str, tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    words = [*CASES[algo], *SMALL]
    run("train", *words, "save_interval=2", "--folder", str(whole))
    run("train", *words, "save_interval=2", "max_minutes=0.0000001", "--folder", str(halves))  # stops at once
    first, _ = CheckpointHistory(halves / "checkpoints").load_latest()
    assert first["frames"] < 256
    run("train", "--resume", str(halves), "max_minutes=0")
    a, _ = CheckpointHistory(whole / "checkpoints").load_latest()
    b, _ = CheckpointHistory(halves / "checkpoints").load_latest()
    assert a["frames"] == b["frames"] == 256
    assert all((a["model"][name] == b["model"][name]).all() for name in a["model"])
    figures = json.loads(run("eval", str(whole), "--episodes", "3", "--json"))
    assert figures["episodes"] == 3
    assert figures["return_ci95"][0] <= figures["mean_return"] <= figures["return_ci95"][1]
    exported = json.loads(run("export", str(whole), str(tmp_path / "policy.onnx"), "--json"))
    assert exported["inputs"] == ["obs"]
    assert exported["max_difference"] <= 1e-5


def test_a_report_shows_curves_figures_and_episodes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run("train", *CASES["ppo"], *SMALL, "--folder", str(folder))
    run("report", str(folder), "--episodes", "4")
    page = (folder / "report.html").read_text()
    assert page.count("<img") == 2  # curves, and recorded episodes
    assert "gym:CartPole-v1" in page


def test_options_reach_the_env_and_nonsense_is_refused() -> None:
    task = GymTask("Pendulum-v1")
    env = task.make_env(task.config(num_envs=1, options="{g: 3.5}"))
    assert env.envs[0].unwrapped.g == 3.5
    env.close()
    with pytest.raises(ConfigError, match=r"is not a mapping: write {name: value}"):
        read_options("3")
    with pytest.raises(ConfigError, match="gym:Pendulum-v1 cannot be made"):
        task.make_env(task.config(options="{nonsense: 1}"))
