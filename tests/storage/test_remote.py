"""Published checkpoints: whole or not there, whatever call of the store fails and whenever the process is killed."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from fledge.core.errors import ConfigError, StorageError
from fledge.storage.remote import run_store
from fledge.storage.remote.index_entry import digest_of
from fledge.storage.remote.run_store import RunStore, is_url
from tests.storage.faulty_store import FaultyFileSystem, die, fail, register

URL = "faulty://bucket/run"


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    register()
    FaultyFileSystem.clear()
    monkeypatch.setattr(run_store, "WAIT_S", 0.0)
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
        b"", b"[]", b"null", b'{"body": {}}', b"\xff", b"{" * 100_000,
        json.dumps({"body": {"step": 9}, "sha256": "0"}).encode(),
    ],
)  # fmt: skip
def test_a_damaged_index_entry_counts_as_none(content: bytes, tmp_path: Path, store: RunStore) -> None:
    for step in (1, 2):
        entry = store.publish(step, files(step), keep=2)
    damage(store, f"index/{entry.name}", content)
    assert fetched(store, tmp_path / "run") == 1


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "checkpoints/../../x", "a/b", "..", ".bashrc"])
def test_an_entry_writes_only_into_the_runs_folder(name: str, tmp_path: Path, store: RunStore) -> None:
    body: dict[str, Any] = {"step": 1, "sequence": 1, "files": {name: {"sha256": "0" * 64, "bytes": 0}}}
    text = json.dumps({"body": body, "sha256": digest_of(body)}).encode()
    store.fs.pipe_file(f"{store.root}/index/1.json", text)
    assert store.entries() == []


def test_if_every_checkpoint_is_damaged_that_is_said_and_nothing_is_written(tmp_path: Path, store: RunStore) -> None:
    entry = store.publish(1, files(1), keep=2)
    damage(store, f"objects/{entry.files['checkpoints/checkpoint_000000001.fledge'].sha256}", b"x")
    with pytest.raises(StorageError, match=r"has no undamaged checkpoint: step 1: .*other content"):
        store.download(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def with_logs(step: int) -> dict[str, io.BytesIO]:
    logs = {"metrics.jsonl": f'{{"step": {step}}}\n', "run.json": "{}"}
    return files(step) | {name: io.BytesIO(text.encode()) for name, text in logs.items()}


def test_an_entry_with_a_damaged_file_leaves_nothing_in_the_folder(tmp_path: Path, store: RunStore) -> None:
    for step in (1, 2):
        entry = store.publish(step, with_logs(step), keep=2)
    damage(store, f"objects/{entry.files['metrics.jsonl'].sha256}", b"x")
    assert fetched(store, tmp_path / "run") == 1
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 1}\n'
    found = sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*"))
    assert found == [
        "checkpoints",
        "checkpoints/checkpoint_000000001.fledge",
        "config.yaml",
        "metrics.jsonl",
        "run.json",
    ]


@pytest.mark.parametrize("content", [None, b"x"])
def test_a_damaged_file_that_all_checkpoints_share_costs_none_of_them(
    content: bytes | None, tmp_path: Path, store: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        entry = store.publish(step, with_logs(step), keep=2)
    for name in ("config.yaml", "run.json"):
        damage(store, f"objects/{entry.files[name].sha256}", content)
    assert fetched(store, tmp_path / "run") == 2
    assert not (tmp_path / "run" / "run.json").exists()
    assert "step 2 is used without its run.json" in caplog.text


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, store: RunStore) -> None:
    store.publish(1, files(1), keep=2)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/run cannot be written \(.*: choose another folder"):
        store.download(tmp_path / "file" / "run")


@pytest.mark.parametrize("after", ["selves", "metrics.jsonl", "checkpoints"])
def test_a_kill_between_two_moves_never_leaves_a_new_checkpoint_with_old_logs(
    after: str, tmp_path: Path, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.publish(1, with_logs(1), keep=2)
    store.download(tmp_path / "run")
    store.publish(2, with_logs(2) | {"selves/a.fledge": io.BytesIO(b"a")}, keep=2)

    def sync(folder: Path) -> None:
        if after in os.listdir(folder) or folder.name == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(run_store, "sync_folder", sync)
    with pytest.raises(KeyboardInterrupt):
        store.download(tmp_path / "run")
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    is_old = (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert not (is_old and "checkpoint_000000002.fledge" in names)


def test_a_folder_in_the_index_counts_as_none(tmp_path: Path) -> None:
    place = RunStore(f"file://{tmp_path}/store")
    place.publish(1, files(1), keep=2)
    (tmp_path / "store" / "index" / "000000009-000000009-x.json").mkdir()
    assert fetched(place, tmp_path / "run") == 1


def test_a_store_that_cannot_be_written_is_told_before_the_training(store: RunStore) -> None:
    store.check_writable()
    assert store.fs.find(store.root) == []
    FaultyFileSystem.reset(lambda number, name: fail(number)(number, name) if name == "open wb" else None)
    with pytest.raises(StorageError, match=r"faulty://bucket/run cannot be written \(OSError: 503.*permissions"):
        store.check_writable()


def test_a_store_that_refuses_the_connection_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    with pytest.raises(StorageError, match=r"ftp://127.0.0.1:9/x cannot be reached \(ConnectionRefusedError"):
        RunStore("ftp://127.0.0.1:9/x")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3://bucket/run", "s3://bucket/run needs a package that is not installed .*s3fs"),
        ("nonsense://x", "not a URL that fsspec knows .*s3://bucket/folder"),
        ("runs/x", "not a URL that fsspec knows"),
        ("file://relative/x", "names no absolute path: use file:///folder"),
        ("simplecache::file://relative/x", "names no absolute path"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_in_a_sentence(url: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        RunStore(url)


def test_a_url_is_told_from_a_path() -> None:
    assert [is_url(text) for text in ("s3://b/run", "memory://x", "file:///x", "simplecache::s3://x")] == [True] * 4
    assert not any(is_url(text) for text in ("runs/x", "/x", "auto", "C:\\x", True, "x//y"))
