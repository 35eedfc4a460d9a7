"""The folder of learn-on: whose policy it began with, two calls at once, and kills."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fledge
from fledge.core.errors import ConfigError, StorageError
from fledge.core.specs import TensorSpec
from fledge.envs.torch_env import TorchEnv
from fledge.storage import CheckpointHistory
from fledge.tasks.base import Task
from fledge.training.learn_on import api
from fledge.training.learn_on.folder import LearnOnFolder, read_folder
from fledge.training.learn_on.sources import split_commas
from fledge.training.run_lock import RunLock
from tests.reference.shifted_world import ShiftConfig

QUICK: dict[str, Any] = {
    "decisions": 1024,
    "num_envs": 64,
    "steps": 8,
    "episodes": 64,
    "lr": 3e-3,
    "kl_target": 3.0,
    "candidates": 1,
}
WORLD = "env:shift=0.3"


@dataclass
class RecallConfig(ShiftConfig):
    pass


class RecallEnv(TorchEnv):
    """Episodes of two decisions: the target is seen before the first, and the second must point at target + shift."""

    outcomes = {0: "running", 1: "missed", 2: "success"}
    observation_spec = {"seen": TensorSpec((2,), torch.float32, -1.0, 1.0)}
    action_spec = TensorSpec((1,), torch.float32, -2.0, 2.0)

    def begin(self, mask: Tensor) -> None:
        self.put("target", mask, self.uniform(1) * 2 - 1)
        self.put("second", mask, torch.zeros_like(self.uniform(1)))

    def observe(self) -> dict[str, Tensor]:
        second = self.state["second"]
        return {"seen": torch.cat([self.state["target"] * (1 - second), second], dim=-1)}

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        second = self.state["second"].squeeze(-1) > 0
        miss = (action - self.state["target"] - self.cfg.shift).abs().squeeze(-1)
        self.state["second"].fill_(1.0)
        ended = torch.where(miss < 0.3, 2, 1) * second
        return torch.where(second, 1.0 - miss, 0.0), ended.to(torch.uint8)


class RecallTask(Task):
    name, config, env, primary_metric = "recall", RecallConfig, RecallEnv, "success"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a policy that needs its memory; it archived its rollouts."""
    folder = tmp_path_factory.mktemp("base") / "run"
    settings: dict[str, Any] = {"ppo.rollout_steps": 8, "ppo.minibatch": 512, "ppo.lr": 5e-3, "policy.hidden": [32]}
    settings |= {"total_frames": 40_000, "ranks": 1, "threads": 1, "tensorboard": False, "rollout_save_interval": 5}
    settings |= {"policy.normalize": False, "policy.gru_size": 16, "seed": 1}
    fledge.train(RecallTask, folder=folder, progress=False, **settings)
    return folder


@pytest.fixture(scope="module")
def learned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `base` that has learned on."""
    run = tmp_path_factory.mktemp("learned") / "run"
    shutil.copytree(base, run)
    learn(run, tolerance=1)
    return run


def learn(run: str | Path, source: str | None = WORLD, folder: str | Path | None = None, **settings: Any) -> Any:
    return fledge.learn_on(run, source, folder, task=RecallTask, progress=False, **{**QUICK, **settings})


def change_weights(run: Path) -> None:
    """Train a run further, by one checkpoint."""
    history = CheckpointHistory(run / "checkpoints")
    state, entry = history.load_latest()
    for value in state["model"].values():
        value += 0.1
    history.save(state, entry.step + 1, metadata=entry.metadata)


def test_a_policy_with_memory_learns_on_from_worlds_and_from_archives(
    base: Path, learned: Path, tmp_path: Path
) -> None:
    assert fledge.load_policy(base, RecallTask).agent.hidden_size == 16
    before, after = LearnOnFolder(learned / "learn_on").rows
    assert before["old"] > 0.5, "without memory about 0.3 succeed"
    assert after["accepted"]
    assert after["new"] > before["new"]
    learn(base, str(base), tmp_path / "on")
    assert LearnOnFolder(tmp_path / "on").rows[1]["new_change"] is not None


def test_the_run_that_was_named_is_used_from_any_directory_and_after_renaming(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        shutil.copytree(learned, tmp_path / name / "runs" / "mine")
    shutil.rmtree(tmp_path / "here" / "runs" / "mine" / "learn_on")
    monkeypatch.chdir(tmp_path / "here")
    learn("runs/mine")
    change_weights(tmp_path / "there" / "runs" / "mine")
    monkeypatch.chdir(tmp_path / "there")  # runs/mine is another run here
    learn(tmp_path / "here" / "runs" / "mine")
    learn(tmp_path / "here" / "runs" / "mine" / "learn_on")
    (tmp_path / "here" / "runs" / "mine").rename(tmp_path / "here" / "runs" / "new")
    learn(tmp_path / "here" / "runs" / "new")
    assert read_folder(tmp_path / "here" / "runs" / "new").parent == str(tmp_path / "here" / "runs" / "new")


def test_a_folder_of_its_own_knows_its_run_from_any_directory(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(base, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    learn("run", folder="on")
    monkeypatch.chdir("/")
    learn(tmp_path / "on")
    assert read_folder(tmp_path / "on").parent == str(tmp_path / "run")


def test_a_run_that_was_trained_further_is_refused(learned: Path, tmp_path: Path) -> None:
    shutil.copytree(learned, tmp_path / "run")
    change_weights(tmp_path / "run")
    before = (tmp_path / "run" / "learn_on" / "learn_on.json").read_bytes()
    with pytest.raises(ConfigError, match=r"did not begin with the policy of .*trained further"):
        learn(tmp_path / "run", candidates=2)
    assert (tmp_path / "run" / "learn_on" / "learn_on.json").read_bytes() == before


def test_going_back_is_refused_while_a_call_runs_and_keeps_rows_of_others(learned: Path, tmp_path: Path) -> None:
    place = tmp_path / "on"
    shutil.copytree(learned / "learn_on", place)
    folder = LearnOnFolder(place)
    with RunLock(place), pytest.raises(StorageError, match="being trained by"):
        folder.go_back(None)
    assert LearnOnFolder(place).rows == folder.rows
    other = LearnOnFolder(place)
    other.save({**other.rows[-1], "candidate": 2, "accepted": False, "reason": "new worlds: no gain"})
    folder.go_back(None)  # it was opened before
    assert [row["candidate"] for row in LearnOnFolder(place).rows] == [0, 1, 2, 3]


def test_a_call_reads_the_folder_after_it_has_the_lock(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(learned, tmp_path / "run")

    def lock_after_another(place: Path) -> RunLock:
        LearnOnFolder(place).go_back(None)
        return RunLock(place)

    monkeypatch.setattr(api, "RunLock", lock_after_another)
    learn(tmp_path / "run")
    rows = LearnOnFolder(tmp_path / "run" / "learn_on").rows
    assert [row.get("back_to") for row in rows] == [None, None, 0]


def test_reading_a_folder_writes_nothing(learned: Path, tmp_path: Path) -> None:
    shutil.copytree(learned / "learn_on", tmp_path / "on")
    state = tmp_path / "on" / "learn_on.json"
    rows = read_folder(tmp_path / "on").rows
    folder = LearnOnFolder(tmp_path / "on")
    folder.state["rows"].pop()
    folder._write()
    before = state.read_bytes()
    assert read_folder(tmp_path / "on").rows == rows
    assert state.read_bytes() == before


@pytest.mark.parametrize("checkpoint_written", [False, True])
def test_a_call_killed_while_it_made_the_folder_is_made_again(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_written: bool
) -> None:
    class Killed(Exception):
        pass

    write = LearnOnFolder._write

    def kill(folder: LearnOnFolder) -> None:
        if folder.history.entries() or not checkpoint_written:
            raise Killed
        write(folder)

    with monkeypatch.context() as patch:
        patch.setattr(LearnOnFolder, "_write", kill)
        with pytest.raises(Killed):
            learn(base, folder=tmp_path / "on")
    learn(base, folder=tmp_path / "on")
    assert [row["candidate"] for row in LearnOnFolder(tmp_path / "on").rows] == [0, 1]


def test_a_folder_without_policies_has_not_learned_on_yet(tmp_path: Path) -> None:
    (tmp_path / "learn_on.json").write_text('{"rows": []}')
    with pytest.raises(ConfigError, match="has not learned on yet"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("shift=1,hidden=true", ["shift=1", "hidden=true"]),
        ("options={gravity: 12.0, length: [1, 2]}, shift=1", ["options={gravity: 12.0, length: [1, 2]}", " shift=1"]),
        ("map='a, b',shift=1", ["map='a, b'", "shift=1"]),
        ("map=o'brien,shift=1", ["map=o'brien", "shift=1"]),
        ("ranges=[[1, 2], [3, 4]],x=1", ["ranges=[[1, 2], [3, 4]]", "x=1"]),
    ],
)
def test_commas_within_brackets_and_quotes_belong_to_a_value(text: str, parts: list[str]) -> None:
    assert split_commas(text) == parts
