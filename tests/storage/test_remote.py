"""Published checkpoints: whole or not there, whatever call of the store fails and whenever the process is killed."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from fledge.core.errors import ConfigError, StorageError
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory
from fledge.storage.remote import run_store, uploader
from fledge.storage.remote.run_store import RunStore, is_url
from fledge.storage.remote.uploader import Uploader
from tests.storage.faulty_store import FaultyFileSystem, die, fail, register

URL = "faulty://bucket/run"


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    register()
    FaultyFileSystem.clear()
    monkeypatch.setattr(run_store, "WAIT_S", 0.0)
    monkeypatch.setattr(uploader, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(uploader, "HURRY_S", 0.05)
    monkeypatch.setattr(uploader, "PATIENCE_S", 1.0)
    yield RunStore(URL)
    FaultyFileSystem.clear()


def files(step: int) -> dict[str, io.BytesIO]:
    text = f"checkpoint {step} " * 100
    return {
        f"checkpoints/checkpoint_{step:09d}.fledge": io.BytesIO(text.encode()),
        "config.yaml": io.BytesIO(b"task: x\n"),
    }


def fetched(store: RunStore, folder: Path) -> int | None:
    """Return the step of the newest checkpoint after checking that its files are what was published."""
    step = store.download(folder)
    if step is not None:
        for name, content in files(step).items():
            assert (folder / name).read_bytes() == content.read()
    return step


@pytest.mark.parametrize("url", [URL, "memory://bucket/published", "file://{}"])
def test_a_published_checkpoint_comes_back_with_every_byte(url: str, tmp_path: Path) -> None:
    place = RunStore(url.format(tmp_path / "mounted" / "run"))
    assert place.newest() is None
    assert place.download(tmp_path / "empty") is None
    for step in (1, 2, 3, 4):
        place.publish(step, files(step), keep=2)
    assert [entry.step for entry in place.entries()] == [3, 4]
    assert fetched(place, tmp_path / "run") == 4
    assert place.download(tmp_path / "run", after=4) is None
    assert len(place.fs.find(f"{place.root}/objects")) == 3, "objects of removed checkpoints stay"


def calls_of_one_publish() -> int:
    place = RunStore(URL)
    for step in (1, 2):
        place.publish(step, files(step), keep=2)
    FaultyFileSystem.reset()
    place.publish(3, files(3), keep=2)
    count = FaultyFileSystem.calls
    FaultyFileSystem.clear()
    return count


def test_whichever_call_fails_the_newest_complete_checkpoint_is_found(tmp_path: Path) -> None:
    count = calls_of_one_publish()
    assert count > 10
    outcomes = []
    for number in range(1, count + 1):
        FaultyFileSystem.clear()
        place = RunStore(URL)
        for step in (1, 2):
            place.publish(step, files(step), keep=2)
        FaultyFileSystem.reset(fail(number))
        try:
            place.publish(3, files(3), keep=2)
            published = True
        except OSError:
            published = False
        FaultyFileSystem.reset()
        step = fetched(RunStore(URL), tmp_path / str(number))
        assert step == 3 if published else step in (2, 3), number
        place.publish(3, files(3), keep=2)
        assert fetched(place, tmp_path / f"{number} again") == 3
        outcomes.append(published)
    assert {True, False} == set(outcomes), "failures while old ones are removed do not fail the upload"


@pytest.mark.parametrize("number", range(1, 12))
def test_a_store_that_fails_once_while_reading_is_asked_again(number: int, tmp_path: Path, store: RunStore) -> None:
    for step in (1, 2):
        store.publish(step, files(step), keep=2)
    FaultyFileSystem.reset(fail(number))
    assert fetched(store, tmp_path / "run") == 2


def test_a_store_that_is_down_is_one_sentence(tmp_path: Path, store: RunStore) -> None:
    store.publish(1, files(1), keep=2)
    FaultyFileSystem.reset(fail(*range(100)))
    with pytest.raises(StorageError, match=r"faulty://bucket/run cannot be read \(OSError: 503.*check the address"):
        store.download(tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def kill_at(number: int, folder: str) -> None:
    """Publish to a folder in a process that is killed at one of its calls."""
    register()
    FaultyFileSystem.reset(die(number))

    class Disk(fsspec.get_filesystem_class("file")):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name in ("open", "ls", "rm_file", "makedirs"):
                FaultyFileSystem._count(FaultyFileSystem(), name)
            return super().__getattribute__(name)

    place = RunStore(f"file://{folder}")
    place.fs = Disk()
    write = place._write

    def halves(name: str, file: Any) -> None:
        content = file.read()
        write(name, io.BytesIO(content[: len(content) // 2]))  # what a store without atomic writes may show
        FaultyFileSystem._count(FaultyFileSystem(), "half written")
        write(name, io.BytesIO(content))

    place._write = halves  # type: ignore[method-assign]
    place.publish(3, files(3), keep=2)
    os._exit(7)


def test_whenever_the_process_is_killed_the_newest_complete_checkpoint_is_found(tmp_path: Path) -> None:
    context, found = multiprocessing.get_context("fork"), []
    for number in range(1, 60):
        folder = tmp_path / f"store{number}"
        place = RunStore(f"file://{folder}")
        for step in (1, 2):
            place.publish(step, files(step), keep=2)
        process = context.Process(target=kill_at, args=(number, str(folder)))
        process.start()
        process.join(60)
        found.append(fetched(RunStore(f"file://{folder}"), tmp_path / f"run{number}"))
        if process.exitcode == 7:
            break
        assert process.exitcode == -9
    assert process.exitcode == 7, "the process was never allowed to end"
    assert set(found) == {2, 3}
    assert found == sorted(x for x in found if x is not None)
    assert len(found) > 15


def damage(place: RunStore, name: str, content: bytes | None) -> None:
    path = f"{place.root}/{name}"
    if content is None:
        place.fs.rm_file(path)
    else:
        place.fs.pipe_file(path, content)


@pytest.mark.parametrize(
    "content", [None, b"", b"short", b"checkpoint 2 " * 200], ids=["gone", "empty", "short", "long"]
)
def test_a_damaged_object_falls_back_to_the_checkpoint_before(
    content: bytes | None, tmp_path: Path, store: RunStore
) -> None:
    for step in (1, 2):
        entry = store.publish(step, files(step), keep=2)
    damage(store, f"objects/{entry.files['checkpoints/checkpoint_000000002.fledge'].sha256}", content)
    assert fetched(store, tmp_path / "run") == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b'{"body": {}}',
        b"\xff",
        b"{" * 100_000,
        json.dumps({"body": {"step": 9}, "sha256": "0"}).encode(),
    ],
)
def test_a_damaged_index_entry_counts_as_none(content: bytes, tmp_path: Path, store: RunStore) -> None:
    for step in (1, 2):
        entry = store.publish(step, files(step), keep=2)
    damage(store, f"index/{entry.name}", content)
    assert fetched(store, tmp_path / "run") == 1


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "checkpoints/../../x", "a/b", "..", ".bashrc"])
def test_an_entry_writes_only_into_the_runs_folder(name: str, tmp_path: Path, store: RunStore) -> None:
    body: dict[str, Any] = {"step": 1, "sequence": 1, "files": {name: {"sha256": "0" * 64, "bytes": 0}}}
    text = json.dumps({"body": body, "sha256": run_store.digest_of(body)}).encode()
    store.fs.pipe_file(f"{store.root}/index/1.json", text)
    assert store.entries() == []


def test_if_every_checkpoint_is_damaged_that_is_said(tmp_path: Path, store: RunStore) -> None:
    entry = store.publish(1, files(1), keep=2)
    damage(store, f"objects/{entry.files['config.yaml'].sha256}", b"x")
    with pytest.raises(StorageError, match=r"has no undamaged checkpoint: step 1: .*other content"):
        store.download(tmp_path / "run")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3://bucket/run", "s3://bucket/run needs a package that is not installed .*s3fs"),
        ("nonsense://x", "not a URL that fsspec knows .*s3://bucket/folder"),
        ("runs/x", "not a URL that fsspec knows"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_in_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        RunStore(url)


def test_a_url_is_told_from_a_path() -> None:
    assert [is_url(text) for text in ("s3://b/run", "memory://x", "file:///x", "simplecache::s3://x")] == [True] * 4
    assert not any(is_url(text) for text in ("runs/x", "/x", "auto", "C:\\x", True, "x//y"))


# ---- uploads in the background ---------------------------------------------------------------------------------------


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
