"""`fledge train ... reward=FILE.py:NAME`: learns by it, goes on with it bit for bit, and never runs it unasked."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from fledge.cli import main
from fledge.core.errors import ConfigError
from fledge.storage import CheckpointHistory
from fledge.training.config import make_config
from fledge.training.ranks import Ranks
from fledge.training.run import TrainingState

SMALL = ["env.num_envs=8", "env.num_maps=2", "env.static_obstacles=20", "env.moving_obstacles=0", "ranks=1"]
SMALL += ["env.max_episode_steps=100", "ppo.rollout_steps=8", "ppo.minibatch=32", "policy.hidden=[16]"]
SMALL += ["tensorboard=false", "save_interval=2"]
CODE = """
import torch
from fledge import reached

class Climb:
    def __init__(self):
        self.state = {}

    def reset(self, env, mask):
        best = self.state.get("best", torch.zeros(env.num_envs))
        self.state["best"] = best.masked_fill(mask, -9.0)

    def __call__(self, env, action, out):
        height = -reached(out)["state"][:, 4]
        gain = (height - self.state["best"]).clamp(min=0.0)
        self.state["best"] = self.state["best"] + gain
        return gain
"""


AIM = """
import torch

class Steady:
    def __init__(self):
        self.state = {}

    def reset(self, env, mask):
        self.state["aim"] = self.state.get("aim", torch.zeros(env.num_envs)).masked_fill(mask, 0.0)

    def __call__(self, env, action, out):
        aim = action["aim"].squeeze(-1)
        moved, self.state["aim"] = (aim - self.state["aim"]).abs(), aim.clone()
        return out["reward"] - moved
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    path = tmp_path / "my_rewards.py"
    path.write_text(CODE)
    return f"{path}:Climb"


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state, _ = CheckpointHistory(folder / "checkpoints").load_latest()
    return state["model"]


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "aim.py").write_text(AIM)
    reward = f"reward={tmp_path / 'aim.py'}:Steady"
    task = "tests.reference.toy_worlds:task"
    words = ["train", task, "env.num_envs=8", "ranks=1", "ppo.rollout_steps=5", "ppo.minibatch=20", "total_frames=240"]
    words += ["tensorboard=false", "save_interval=3"]

    def run(folder: Path, *more: str) -> dict[str, torch.Tensor]:
        done = call(*words, *more, "--folder", str(folder), "--json")
        assert done.exit_code == 0, done.output
        return weights(folder)

    straight = run(tmp_path / "straight", reward)
    for file in sorted((tmp_path / "straight" / "checkpoints").glob("*.fledge"))[1:]:
        file.unlink()  # as if it had stopped after the first save
    again = call("train", task, "--resume", str(tmp_path / "straight"), reward)
    assert again.exit_code == 0, again.output
    assert "Resumed at iteration 3/6; continues bit for bit." in again.output.replace("\n", " ")
    assert all(torch.equal(value, straight[name]) for name, value in weights(tmp_path / "straight").items())
    other = run(tmp_path / "other")
    assert any(not torch.equal(value, straight[name]) for name, value in other.items())


@pytest.mark.parametrize("mode", ["sync", "pipelined", "halves"])
def test_every_way_to_collect_pays_it_and_goes_on(mode: str, code: str) -> None:
    def running() -> TrainingState:
        return TrainingState(make_config("navigation", "", [*SMALL, f"collect.mode={mode}", f"reward={code}"]), Ranks())

    def paid(run: TrainingState) -> torch.Tensor:
        rollouts = []
        for _ in range(2):
            rollouts.append(run.collect()["reward"].clone())
            run.learn(run.collector.latest)
        return torch.stack(rollouts)

    run, other = running(), running()
    paid(run)
    state = copy.deepcopy(run.state_dict())
    ours = paid(run)
    assert other.load_state_dict(state) == "bit for bit"
    assert torch.equal(paid(other), ours)
    assert (ours >= 0).all()  # the env's own reward has costs
    assert (ours > 0).any()
    run.close()
    other.close()


def test_off_policy_learners_learn_by_it(code: str) -> None:
    words = ["algo=sac", "replay.warm_up=8", "replay.size=2000", "replay.batch=16", "total_frames=999999"]
    run = TrainingState(make_config("navigation", "", [*SMALL, *words, f"reward={code}"]), Ranks())
    rollout = run.collect()
    assert (rollout["reward"] >= 0).all()
    run.learn(rollout)
    run.close()


def test_a_run_is_flown_without_its_reward_and_continued_only_with_it(tmp_path: Path, code: str) -> None:
    folder = tmp_path / "run"
    assert call("train", *SMALL, "total_frames=64", f"reward={code}", "--folder", str(folder)).exit_code == 0
    assert f"reward: {code}" in (folder / "config.yaml").read_text()
    Path(code.partition(":")[0]).rename(tmp_path / "elsewhere.py")
    assert call("eval", str(folder), "--episodes", "8", "env.max_episode_steps=50", "--json").exit_code == 0
    refused = call("train", "--resume", str(folder), "total_frames=128")
    assert refused.exit_code == 2
    assert "its file no longer exists, so add reward=PATH/FILE.py:Climb with its new path" in refused.output
    moved = call("train", "--resume", str(folder), "total_frames=128", f"reward={tmp_path / 'elsewhere.py'}:Climb")
    assert "continues with changed total_frames." in moved.output  # the same reward in another place


def test_a_preset_cannot_name_code(tmp_path: Path, code: str) -> None:
    preset = tmp_path / "theirs.yaml"
    preset.write_text(f"reward: {code}\n")
    with pytest.raises(ConfigError, match="is not run unless you name it"):
        make_config("navigation", str(preset))


def test_a_relative_file_is_remembered_from_any_folder(
    tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_config("navigation", "", ["reward=my_rewards.py:Climb"]).reward == code


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("reward=gone.py:pay", "There is no file"),
        ("reward=pay", "is not a reference"),
        ("reward=json:__doc__", "must be callable"),
    ],
)
def test_what_is_no_reward_is_refused_before_anything_starts(word: str, sentence: str, tmp_path: Path) -> None:
    done = call("train", *SMALL, word, "--folder", str(tmp_path / "run"))
    assert done.exit_code == 2
    assert sentence in done.output
    assert not (tmp_path / "run").exists()


DUEL = """
import torch
from fledge import BaseReward

class Closer(BaseReward):
    def compute(self, obs_before, obs_after, action, done, info):
        return obs_before["state"][:, 0] - obs_after["state"][:, 0]
"""
DUELS = [
    "env.num_envs=4",
    "env.spacetime=false",
    "opponent=random",
    "ranks=1",
    "ppo.rollout_steps=8",
    "ppo.minibatch=16",
]
DUELS += ["policy.hidden=[16]", "tensorboard=false", "total_frames=64"]


def test_a_duels_own_kind_of_reward_is_named_in_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DUEL)
    words, run = [f"reward={tmp_path}/mine.py:Closer"], str(tmp_path / "run")
    done = CliRunner().invoke(main, ["train", "aircombat", *DUELS, *words, "--folder", run, "--json"])
    assert done.exit_code == 0, done.output
    unnamed = CliRunner().invoke(main, ["train", "--resume", run, "total_frames=96"])
    assert unnamed.exit_code == 2
    assert "not run unless you name it" in unnamed.output
    named = CliRunner().invoke(main, ["train", "--resume", run, "total_frames=96", *words])
    assert named.exit_code == 0, named.output
    judged = CliRunner().invoke(main, ["eval", run, "random", "--episodes", "2", "--json"])
    assert judged.exit_code == 0, judged.output
