"""`--help-config`: every setting, its value here, and where it comes from."""

import itertools
from pathlib import Path

import pytest

from tests.cli.policy_files import call, write_policy


def test_help_config_lists_every_setting_with_its_meaning() -> None:
    lines = call("train", "--help-config").output.splitlines()
    keys = [line.split("=")[0] for line in lines if not line.startswith(" ")]
    assert {"env.num_envs", "ppo.lr", "env.reward.crash", "save_interval", "wandb.mode"} <= set(keys)
    undocumented = [a for a, b in itertools.pairwise(lines) if not a.startswith(" ") and b.startswith("     (")]
    assert not undocumented


def settings(*words: str) -> dict[str, str]:
    """Lines of --help-config, each with the one below it."""
    done = call(*words, "--help-config")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    return dict(zip(lines[::2], lines[1::2], strict=True))


@pytest.mark.parametrize("command", ["train", "advise"])
def test_help_config_shows_the_limits_of_a_setting(command: str) -> None:
    shown = settings(command)
    assert shown["ppo.clip=0.2"].endswith("(a number, greater than 0)")
    assert shown["ppo.gamma=0.99"].endswith("(a number, 0 to 1)")
    assert shown["env.num_envs=1024"].endswith("(a whole number or auto, 1 to 16777216)")
    assert shown["env.inside_share=0.3  # preset fast; default 0.5"].endswith("(a number, 0 to 1)")
    assert shown["replay.layout=chunk"].endswith("(text, frame or chunk or episode)")
    assert shown["collect.mode=sync"].endswith("(one of sync or pipelined or halves)")


def test_help_config_shows_what_a_training_would_use_and_where_it_comes_from() -> None:
    shown = settings("train", "navigation", "--preset", "navrl", "ppo.lr=1e-3", "env_dyn.num_obstacles=9")
    assert "ppo.lr=0.001  # given here; default 0.0007" in shown
    assert "env.moving_obstacles=9  # given here; default 80" in shown
    assert "ppo.clip=0.1  # preset navrl; default 0.2" in shown
    assert "policy.kind=navrl  # preset navrl; default features" in shown
    assert "ppo.gamma=0.99" in shown
    assert "algo=dqn  # preset dqn; default ppo" in settings("train", "algo=dqn")


def test_help_config_of_a_run_shows_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: navigation\nppo:\n  lr: 0.125\n")
    shown = settings("train", "--resume", str(tmp_path), "save_interval=7")
    assert f"ppo.lr=0.125  # run {tmp_path}; default 0.0007" in shown
    assert "save_interval=7  # given here; default 50" in shown


def test_help_config_of_an_evaluation_lists_the_world_alone(tmp_path: Path) -> None:
    plain = settings("eval")
    assert all(key.startswith("env.") for key in plain)
    assert "env.decimation=3  # preset default; default 1" in plain
    path = str(write_policy("features", tmp_path / "p.fledge"))
    own = settings("eval", path, "env.speed_limit=1")
    assert f"env.decimation=5  # env of {path}; default 1" in own
    assert "env.speed_limit=1.0  # given here; default 2.0" in own
    named = settings("eval", path, "--env", "navrl")  # a trained policy keeps its decision rate
    assert f"env.decimation=5  # env of {path}; default 1" in named
    assert "env.starts=crossing  # preset crossing; default edges" in settings("eval", path, "--env", "crossing")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "gym:CartPole-v1", "--help-config"],
        ["train", "--help-config", "gym:CartPole-v1"],
        ["train", "--preset", "ppo", "gym:CartPole-v1", "--help-config"],
        ["--debug", "train", "gym:CartPole-v1", "--help-config"],
        ["eval", "--task", "gym:CartPole-v1", "--help-config"],
        ["advise", "gym:CartPole-v1", "--help-config"],
    ],
)
def test_help_config_is_about_the_task_that_was_named(words: list[str]) -> None:
    done = call(*words)
    assert done.exit_code == 0, done.output
    keys = {line.split("=")[0] for line in done.output.splitlines()[::2]}
    assert "env.options" in keys
    assert ("ppo.lr" in keys) == ("eval" not in words)
    assert "env.static_obstacles" not in keys


@pytest.mark.parametrize(
    "words",
    [
        ["train", "ppo.lrr=1"],
        ["train", "--preset", "none"],
        ["eval", "ppo.lr=3"],
        ["eval", "nobody"],
        ["advise", "chess"],
    ],
)
def test_help_config_of_something_wrong_says_so(words: list[str]) -> None:
    done = call(*words, "--help-config")
    assert done.exit_code == 2
    assert done.output.startswith("fledge: ")
