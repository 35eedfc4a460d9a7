"""Uploads in the background: the newest checkpoint gets through, and no fault of the store stops the training."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.core.errors import StorageError
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory
from fledge.storage.remote import run_store, uploader
from fledge.storage.remote.run_store import RunStore
from fledge.storage.remote.uploader import Uploader
from tests.storage.faulty_store import FaultyFileSystem, fail, register

URL = "faulty://bucket/run"


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    register()
    FaultyFileSystem.clear()
    monkeypatch.setattr(run_store, "WAIT_S", 0.0)
    monkeypatch.setattr(uploader, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(uploader, "HURRY_S", 0.05)
    monkeypatch.setattr(uploader, "PATIENCE_S", 1.0)
    yield
    FaultyFileSystem.clear()


def saved(history: CheckpointHistory, step: int) -> Any:
    return history.save({"model": {"w": torch.full((8,), float(step))}}, step)


def run_uploads(folder: Path, steps: int, keep_whole: int = 2) -> Uploader:
    folder.mkdir()
    (folder / "config.yaml").write_text("task: x\n")
    up = Uploader(RunStore(URL), folder, keep=2)
    with AsyncCheckpointSaver() as saver:
        history = CheckpointHistory(folder / "checkpoints", saver=saver, keep_whole=keep_whole)
        for step in range(1, steps + 1):
            up.submit(step, saved(history, step))
    return up


def newest(tmp_path: Path) -> float:
    RunStore(URL).download(tmp_path / "fetched")
    return float(CheckpointHistory(tmp_path / "fetched" / "checkpoints").load_latest()[0]["model"]["w"][0])


def test_a_store_with_faults_gets_the_last_checkpoint_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    FaultyFileSystem.reset(lambda number, name: fail(number)(number, name) if number % 13 < 8 and number < 60 else None)
    up = run_uploads(tmp_path / "run", 5)
    up.finish()
    assert newest(tmp_path) == 5.0
    assert up.get_stats()["upload_failures"] > 0
    assert up.get_stats()["uploads"] > 0
    told = [record.getMessage() for record in caplog.records if URL in record.getMessage()]
    assert "was not uploaded (OSError: 503" in told[0]
    assert "training goes on" in told[0]
    assert "uploads work again" in told[-1]


def test_a_store_that_stays_down_is_told_at_the_end(tmp_path: Path) -> None:
    FaultyFileSystem.reset(fail(*range(10_000)))
    up = run_uploads(tmp_path / "run", 3)
    with pytest.raises(
        StorageError, match=r"newest checkpoint is in .*run, but not in faulty://bucket/run \(OSError: 503"
    ):
        up.finish()
    up.finish()


def test_a_store_that_hangs_does_not_keep_the_program(tmp_path: Path) -> None:
    hanging = threading.Event()
    FaultyFileSystem.reset(lambda number, name: hanging.wait(60) and None)
    up = run_uploads(tmp_path / "run", 3)
    with pytest.raises(StorageError, match="the store does not answer"):
        up.finish()
    hanging.set()


def test_if_the_store_is_slow_only_the_newest_is_uploaded(tmp_path: Path) -> None:
    first = threading.Event()
    FaultyFileSystem.reset(lambda number, name: first.wait(60) and None)
    up = run_uploads(tmp_path / "run", 9)
    first.set()
    up.finish()
    assert newest(tmp_path) == 9.0
    assert up.uploads <= 2


def test_a_delta_goes_with_the_files_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("task: x\n")
    up = Uploader(RunStore(URL), tmp_path / "run", keep=1)
    with AsyncCheckpointSaver() as saver:
        history = CheckpointHistory(tmp_path / "run" / "checkpoints", saver=saver, keep_whole=3, delta="all")
        for step in (1, 2, 3):
            saved(history, step).wait()
        up.submit(3, history.folder / "checkpoint_000000003.fledge")
    up.finish()
    assert newest(tmp_path) == 3.0


def test_a_checkpoint_reduced_to_its_weights_is_never_published(tmp_path: Path) -> None:
    up = run_uploads(tmp_path / "run", 1)
    up.finish()
    history = CheckpointHistory(tmp_path / "run" / "checkpoints", keep_whole=1)
    for step in (2, 3):
        saved(history, step)
    again = Uploader(RunStore(URL), tmp_path / "run", keep=2)
    again.submit(2, history.folder / "checkpoint_000000002.fledge")
    again.finish()
    assert newest(tmp_path) == 1.0
