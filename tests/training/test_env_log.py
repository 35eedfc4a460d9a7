"""Scalars that an env reports with `log_scalar` reach the run's metrics as means over envs, steps and ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fledge.app.runs.chart_list import lay_out
from fledge.envs.wrapper import EnvWrapper
from fledge.storage import load_checkpoint
from fledge.tasks.base import Task
from fledge.tasks.registry import find_task
from fledge.training.config import make_config
from fledge.training.loop import train
from fledge.training.ranks import Ranks

WORLD = """
from dataclasses import dataclass
import torch
from fledge.core.settings import setting
from fledge.core.specs import TensorSpec
from fledge.envs.torch_env import TorchEnv
from fledge.tasks.base import Task

LOGS = {logs}

@dataclass
class Config:
    num_envs: int = setting(8, at_least=1, resume="restart")

class Env(TorchEnv):
    max_steps = 5
    observation_spec = property(lambda self: {{"x": TensorSpec((2,), torch.float32)}})
    action_spec = property(lambda self: TensorSpec((2,), torch.float32, -1.0, 1.0))

    def begin(self, mask):
        self.put("x", mask, self.normal(2))

    def observe(self):
        return {{"x": self.state["x"]}}

    def advance(self, action):
        self.state["x"] = self.state["x"] + 0.1 * action
        if LOGS:
            who = self.env_offset + torch.arange(self.num_envs)
            self.log_scalar("who", who)  # an integer tensor
            self.log_scalar("odd", who.float(), where=who % 2 == 1)
            self.log_scalar("one", 1.0)
            self.log_scalar("x", self.state["x"])
            self.log_scalar("never", who.float(), where=who < 0)
            if self.env_offset:
                self.log_scalar("second_rank", 3.0)
        return -self.state["x"].norm(dim=-1), torch.zeros(self.num_envs, dtype=torch.uint8)

task = Task("logging", Config, Env)
"""
WORDS = ["ppo.rollout_steps=4", "ppo.minibatch=16", "policy.hidden=[8]", "total_frames=96", "save_interval=1"]
WORDS += ["keep_checkpoints=9"]
REPLAY = ["replay.steps=4", "replay.segment=2", "replay.warm_up=8", "replay.batch=8", "replay.updates=1"]
REPLAY += ["sac.critic_hidden=[8]"]
WAYS = [["collect.mode=sync"], ["collect.mode=pipelined"], ["collect.mode=halves"], ["collect.compression_level=1"]]
WAYS += [["algo=sac", *REPLAY]]


@pytest.fixture
def logging(tmp_path: Path) -> Task:
    (tmp_path / "world.py").write_text(WORLD.format(logs=True))
    return find_task(str(tmp_path / "world.py"))


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("words", WAYS)
def test_means_are_of_each_iteration_and_go_on_after_a_resume(words: list[str], logging: Task, tmp_path: Path) -> None:
    train(make_config(logging, "", [*WORDS, *words]), tmp_path / "whole", Ranks(), task=logging)
    whole = rows(tmp_path / "whole")
    assert [row["env/who"] for row in whole] == [3.5] * 3
    assert [row["env/odd"] for row in whole] == [4.0] * 3
    assert [row["env/one"] for row in whole] == [1.0] * 3
    assert len({row["env/x"] for row in whole}) == 3
    assert "env/never" not in whole[0]
    train(make_config(logging, "", [*WORDS, *words, "max_minutes=1e-9"]), tmp_path / "cut", Ranks(), task=logging)
    assert len(rows(tmp_path / "cut")) == 1
    train(make_config(logging, "", [*WORDS, *words]), tmp_path / "cut", Ranks(), resume=True, task=logging)
    logged = [{k: v for k, v in row.items() if k.startswith("env/")} for row in rows(tmp_path / "cut")]
    assert logged == [{k: v for k, v in row.items() if k.startswith("env/")} for row in whole]


@pytest.mark.slow
def test_ranks_are_averaged_whatever_each_of_them_logs(logging: Task, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    line = [sys.executable, "-m", "fledge", "train", logging.reference, "--preset", "", *WORDS, "ranks=2", "threads=1"]
    done = subprocess.run([*line, "--folder", str(folder)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    for row in rows(folder):
        assert row["env/who"] == 3.5
        assert row["env/odd"] == 4.0
        assert row["env/second_rank"] == 3.0


def test_logging_changes_no_weights_and_nothing_logged_adds_no_metrics(logging: Task, tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text(WORLD.format(logs=False))
    silent = find_task(str(tmp_path / "silent.py"))
    for name, task in (("loud", logging), ("quiet", silent)):
        train(make_config(task, "", WORDS), tmp_path / name, Ranks(), task=task)
    assert not any(name.startswith("env/") for row in rows(tmp_path / "quiet") for name in row)
    loud, quiet = (load_checkpoint(next((tmp_path / n).glob("checkpoints/*3.fledge"))) for n in ("loud", "quiet"))
    for name, value in loud["model"].items():
        assert torch.equal(value, quiet["model"][name])


def test_a_wrapper_adds_what_it_logs_to_what_the_env_logs(logging: Task) -> None:
    class Wrapper(EnvWrapper):
        def step(self, action, dt=None, out=None):  # type: ignore[no-untyped-def]
            self.log_scalar("one", 4.0)
            self.log_scalar("own", torch.ones(2, 3))
            return super().step(action, dt, out)

    env = Wrapper(logging.make_env(logging.config(num_envs=4)))
    env.reset()
    for _ in range(2):
        env.step(torch.zeros(4, 2))
    log = env.take_log()
    assert log["one"] == (10.0, 4)
    assert log["own"] == (12.0, 12)
    assert env.take_log() == {}
    assert env.unwrapped is env.env
    assert env.observation_spec == env.env.observation_spec
    env.close()


def test_the_browser_has_a_chart_of_each() -> None:
    charts = [
        chart for section in lay_out(["step", "return", "env/height"], "return", []) for chart in section["charts"]
    ]
    assert ["env/height"] in [[line["name"] for line in chart["lines"]] for chart in charts]
