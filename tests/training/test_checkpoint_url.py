"""A run whose checkpoints go to an object store continues from there, bit for bit, in an empty folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import fledge
from fledge.cli import main
from fledge.core.errors import ConfigError, StorageError
from fledge.storage import CheckpointHistory
from fledge.storage.remote import run_store, uploader
from fledge.storage.remote.run_store import RunStore
from fledge.training.run_folder import refuse_used_url
from tests.storage.faulty_store import FaultyFileSystem, fail, register

URL = "faulty://bucket/cartpole"
SMALL: dict[str, Any] = {"env": {"num_envs": 4}, "ppo": {"rollout_steps": 4, "minibatch": 16}, "total_frames": 96}
SMALL |= {"tensorboard": False, "ranks": 1, "progress": False, "save_interval": 1, "policy": {"hidden": [8]}}


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    register()
    FaultyFileSystem.clear()
    monkeypatch.setattr(run_store, "WAIT_S", 0.0)
    for name, value in (("FIRST_WAIT_S", 0.01), ("HURRY_S", 0.05), ("PATIENCE_S", 5.0)):
        monkeypatch.setattr(uploader, name, value)
    yield
    FaultyFileSystem.clear()


def start(folder: Path, **settings: Any) -> fledge.Run:
    return fledge.train("gym:CartPole-v1", folder=folder, **{**SMALL, "checkpoint_url": URL, **settings})


def model(folder: Path) -> dict[str, torch.Tensor]:
    return dict(CheckpointHistory(folder / "checkpoints").load_latest()[0]["model"])


def assert_same_run(one: fledge.Run, other: fledge.Run) -> None:
    first, second = model(one.folder), model(other.folder)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert [*map(repr, one.metrics["return"])] == [*map(repr, other.metrics["return"])]
    assert [*one.metrics["step"]] == [*other.metrics["step"]] == [1, 2, 3, 4, 5, 6]


def test_a_run_continues_from_the_store_bit_for_bit(tmp_path: Path) -> None:
    first = start(tmp_path / "first", checkpoint_url="")
    whole = start(tmp_path / "whole", max_minutes=1e-9)  # stops after one iteration, and saves
    assert len(whole.metrics) == 1
    again = fledge.train(folder=tmp_path / "again", resume=URL, max_minutes=0.0, progress=False)
    assert again.settings["checkpoint_url"] == URL
    assert_same_run(first, again)
    entry = RunStore(URL).newest()
    assert entry is not None
    assert entry.step == 6


def test_auto_takes_the_newer_of_folder_and_store(tmp_path: Path) -> None:
    first = start(tmp_path / "first", checkpoint_url="")
    start(tmp_path / "here", max_minutes=1e-9)
    fledge.train(folder=tmp_path / "there", resume=URL, progress=False, max_minutes=1e-9)
    newest = RunStore(URL).newest()
    assert newest is not None
    assert newest.step == 2
    done = fledge.train(
        "gym:CartPole-v1",
        folder=tmp_path / "here",
        resume="auto",
        **{**SMALL, "checkpoint_url": URL, "max_minutes": 0.0},
    )
    assert_same_run(first, done)


def test_faults_of_the_store_change_nothing_in_the_run(tmp_path: Path) -> None:
    first = start(tmp_path / "first", checkpoint_url="")
    FaultyFileSystem.reset(lambda number, name: fail(number)(number, name) if 5 < number < 40 and number % 3 else None)
    assert_same_run(first, start(tmp_path / "faulty"))
    FaultyFileSystem.reset()
    newest = RunStore(URL).newest()
    assert newest is not None
    assert newest.step == 6


def test_a_store_that_goes_down_is_told_after_the_training_and_resuming_uploads(tmp_path: Path) -> None:
    down: list[int] = []
    FaultyFileSystem.reset(lambda number, name: fail(number)(number, name) if down else None)
    with pytest.raises(StorageError, match=r"newest checkpoint is in .*run, but not in faulty://bucket/cartpole"):
        fledge.train(
            "gym:CartPole-v1", folder=tmp_path / "run", on_start=lambda _: down.append(1), **SMALL, checkpoint_url=URL
        )
    assert CheckpointHistory(tmp_path / "run" / "checkpoints").load_latest()[0]["iteration"] == 6
    down.clear()
    assert RunStore(URL).newest() is None
    fledge.train(folder=tmp_path / "run", resume=True, progress=False)
    newest = RunStore(URL).newest()
    assert newest is not None
    assert newest.step == 6


def test_misuse_of_a_url_is_one_sentence(tmp_path: Path) -> None:
    start(tmp_path / "run")
    for settings, sentence in (
        (
            {},
            "already holds a run, up to iteration 6: continue it with `fledge train --resume faulty://bucket/cartpole`",
        ),
        ({"checkpoint_url": "s3://bucket/x"}, "needs a package that is not installed"),
        ({"checkpoint_url": "bucket/x"}, "is not a URL that fsspec knows"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            start(tmp_path / "other", **settings)
    with pytest.raises(
        ConfigError, match="holds a run that was not saved to faulty://bucket/none: choose another folder"
    ):
        fledge.train(folder=tmp_path / "run", resume="faulty://bucket/none")
    done = CliRunner().invoke(main, ["train", "--resume", "faulty://bucket/none", "--folder", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "faulty://bucket/none holds no run: check the address" in done.output
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "other").exists()


def test_a_url_in_memory_is_said_to_keep_nothing(caplog: pytest.LogCaptureFixture) -> None:
    refuse_used_url("memory://bucket/empty")
    assert "when the process ends, nothing of it is left" in caplog.text
