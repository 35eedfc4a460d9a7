"""Inputs that an adversarial review found: each of these once failed, crashed or misled."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.evaluation.tables import score_texts

ROOT = Path(__file__).parents[2]
TINY = ["env.num_envs=2", "ranks=1", "tensorboard=false", "ppo.rollout_steps=8", "total_frames=32"]
WORLD = """
import torch
from dataclasses import dataclass
from fledge.core.settings import setting
from fledge.core.specs import TensorSpec
from fledge.envs.torch_env import TorchEnv
from fledge.tasks.base import Task

@dataclass
class Config:
    num_envs: int = setting(2, at_least=1, resume="restart")

class Env(TorchEnv):
    max_steps = 5
    outcomes = {0: "running", 1: "lost", 2: "won"}
    observation_spec = {"NAME": TensorSpec((WIDTH,), torch.float32)}
    action_spec = TensorSpec((WIDTH,), torch.float32, -1.0, 1.0)

    def begin(self, mask):
        self.put("place", mask, self.normal(WIDTH))

    def observe(self):
        return {"NAME": self.state["place"]}

    def advance(self, action):
        self.state["place"] = self.state["place"] + 0.1 * action
        return -self.state["place"].norm(dim=-1), torch.full((self.num_envs,), OUTCOME, dtype=torch.uint8)

class World(Task):
    name, config, env, primary_metric = "world", Config, Env, "PRIMARY"
"""


def write_world(path: Path, name: str = "place", width: int = 2, outcome: int = 0, primary_metric: str = "won") -> str:
    words = {"NAME": name, "WIDTH": str(width), "OUTCOME": str(outcome), "PRIMARY": primary_metric}
    text = WORLD
    for word, value in words.items():
        text = text.replace(word, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def refused(sentence: str, *words: str) -> None:
    result = call(*words)
    assert result.exit_code in (1, 2), result.output
    assert sentence in result.stderr
    assert "Traceback" not in result.output


def test_evaluate_stays_what_one_calls_however_often_it_is_asked_for() -> None:
    import fledge.evaluation.episodes

    assert callable(fledge.evaluate)
    assert callable(fledge.evaluate)
    with pytest.raises(ConfigError, match="needs at least 1"):
        fledge.evaluate("straight", episodes=0)


def test_a_table_of_returns_loses_no_digits() -> None:
    low = {"mean_return": -500.0, "return_ci95": [-500.0, -500.0]}
    assert score_texts(low, "return") == ("-500.0", "-500.0 to -500.0")
    assert score_texts({"success": 0.905, "success_ci95": [0.8, 0.95]}, "success") == (".905", ".800-.950")


def test_a_task_given_as_a_setting_is_honoured_and_two_are_refused(tmp_path: Path) -> None:
    result = call("train", "task=gym:CartPole-v1", *TINY, "--folder", str(tmp_path / "a"))
    assert result.exit_code == 0, result.output
    assert "task: gym:CartPole-v1" in (tmp_path / "a" / "config.yaml").read_text()
    refused("a run has only one task", "train", "navigation", "task=gym:CartPole-v1", "--folder", str(tmp_path / "b"))


def test_no_figure_is_made_up_before_an_episode_has_ended(tmp_path: Path) -> None:
    call("train", "gym:Pendulum-v1", *TINY, "--folder", str(tmp_path / "run"))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows
    assert not any("return_recent" in row or "return" in row for row in rows)


def test_resume_says_everything_that_changed_and_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert call("train", "gym:CartPole-v1", *TINY, "--folder", run).exit_code == 0
    assert "raise total_frames" in call("train", "--resume", run).stderr
    refused("cannot be used with resume", "train", "--resume", run, "--preset", "ppo")
    said = call("train", "--resume", run, "env.num_envs=4", "ppo.lr=0.001", "total_frames=96").stderr
    assert "another env.num_envs" in said
    assert "also changed" in said
    assert "ppo.lr" in said


def test_a_run_that_died_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "fledge.cli", "train", "gym:CartPole-v1", *TINY[:-1], "total_frames=100000000"]
    child = subprocess.Popen([*command, "--folder", str(run)], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            if (run / "metrics.jsonl").is_file() and (run / "metrics.jsonl").stat().st_size:
                break
            time.sleep(0.1)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    result = call("train", "--resume", str(run), "total_frames=32")
    assert result.exit_code == 0, result.output
    assert "begins from its start" in result.stderr
    assert (run / "checkpoints").is_dir()


def test_worlds_that_cannot_work_are_refused_before_training(tmp_path: Path) -> None:
    folder = ["--folder", str(tmp_path / "run")]
    refused(
        "has an observation named reward, a name that rollouts use",
        "train",
        write_world(tmp_path / "a.py", "reward"),
        *TINY,
        *folder,
    )
    refused(
        "primary_metric is 'glory'", "train", write_world(tmp_path / "b.py", primary_metric="glory"), *TINY, *folder
    )
    refused("An episode ended with outcome 7", "train", write_world(tmp_path / "c.py", outcome=7), *TINY, *folder)


def test_a_task_file_may_hold_a_class_alone_and_may_be_moved(tmp_path: Path) -> None:
    old, run = write_world(tmp_path / "old" / "world.py"), str(tmp_path / "run")
    assert call("train", old, *TINY, "--folder", run).exit_code == 0
    new = write_world(tmp_path / "new" / "renamed.py")
    assert call("eval", run, "--task", new, "--episodes", "2").exit_code == 0
    result = call("train", "--task", new, "--resume", run, "total_frames=64")
    assert result.exit_code == 0, result.output
    assert "with changed total_frames" in result.stderr


def test_another_world_under_the_same_name_is_told_by_its_specs(tmp_path: Path) -> None:
    old, run = write_world(tmp_path / "a" / "world.py"), str(tmp_path / "run")
    assert call("train", old, *TINY, "--folder", run).exit_code == 0
    other = write_world(tmp_path / "b" / "world.py", width=3)
    refused("use the env that it was trained in", "eval", run, "--task", other, "--episodes", "2")
    refused("the weights do not fit", "train", other, "--resume", run, "total_frames=64")


def test_options_of_a_gymnasium_env_are_typed_as_the_help_says(tmp_path: Path) -> None:
    result = call("train", "gym:Pendulum-v1", "env.options={g: 5.0}", *TINY, "--folder", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output


def test_weights_of_another_world_are_no_start(tmp_path: Path) -> None:
    assert call("train", "gym:Acrobot-v1", *TINY, "--folder", str(tmp_path / "a")).exit_code == 0
    words = [f"init_from={tmp_path / 'a'}", "--folder", str(tmp_path / "b")]
    refused("does not fit: its network has observation", "train", "gym:CartPole-v1", *TINY, *words)


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("num_envs: int", "every field needs a type"),
        ("num_envs: int = 2\n    x: dict = None", "every field needs a type"),
        ("num_envs: int = 2\n    x: float = setting(None)", "every field needs a type"),
    ],
)
def test_a_config_that_cannot_be_one_is_refused(field: str, sentence: str, tmp_path: Path) -> None:
    path = Path(write_world(tmp_path / "world.py"))
    path.write_text(path.read_text().replace('num_envs: int = setting(2, at_least=1, resume="restart")', field))
    refused(sentence, "train", str(path), *TINY, "--folder", str(tmp_path / "run"))


def test_a_task_file_that_ends_the_program_does_not_end_ours_silently(tmp_path: Path) -> None:
    (tmp_path / "quits.py").write_text("raise SystemExit(3)\n")
    refused("SystemExit", "train", str(tmp_path / "quits.py"))


def test_what_the_system_refuses_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused("file", "train", "gym:CartPole-v1", *TINY, "--folder", str(tmp_path / "file"))
    refused("must end in .png", "eval", "straight", "--picture", "x.jpgg")
    refused("must be 0 to 1024", "train", "gym:CartPole-v1", "threads=100000")
    refused("finite and greater than 0", "train", "navigation", "ppo.clip=inf")
