"""Faults of the world: killed processes, full disks, torn and flipped files, crowds in one folder, no permission."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fledge.core.errors import FormatError, StorageError
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory, load_checkpoint
from fledge.storage.disk.durable import TEMP_PREFIX
from tests.storage.states import assert_same, near_at, state_at

ROOT = Path(__file__).parents[3]


def python(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def kill_rounds(folder: Path, rounds: int, seed: int) -> dict[str, int]:
    done = python("-m", "tests.storage.history.killing", str(rounds), str(seed), str(folder), timeout=3600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_ten_killed_processes_lose_nothing_durable(tmp_path: Path) -> None:
    assert kill_rounds(tmp_path / "run", 10, seed=0)["rounds"] == 10


KILLS = int(os.environ.get("FLEDGE_KILLS", "1000"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_thousand_killed_processes_lose_nothing_durable(tmp_path: Path, seed: int) -> None:
    counts = kill_rounds(tmp_path / "run", KILLS // 4, seed)
    print(json.dumps(counts))
    assert counts["rounds"] == KILLS // 4
    assert counts["leftovers_cleaned"] > 0  # some were killed in the middle of a file


FULL_DISK = """
import json, resource, signal, sys
from pathlib import Path
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory
from tests.storage.states import state_at
folder, size, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with AsyncCheckpointSaver() as saver:
    history = CheckpointHistory(folder, saver=saver, keep_whole=3)
    history.save(state_at(1, size), 1).wait(60)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))  # no file may grow beyond this
    failed = history.save(state_at(2, size), 2)
    saver.drain(60)
    assert failed.status == "failed", failed
    trained = sum(range(1000))  # training goes on
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    history.save(state_at(3, size), 3).wait(60)
    stats = saver.get_stats()
    print(json.dumps({"failures": stats["failures"], "saves": stats["saves"], "error": stats["last_error"]}))
"""


@pytest.mark.parametrize(("size", "limit"), [(20_000, 60_000), (500_000, 3_000_000)])  # within a block, and beyond
def test_a_full_disk_is_reported_and_older_checkpoints_stay(tmp_path: Path, size: int, limit: int) -> None:
    done = python("-c", FULL_DISK, str(tmp_path), str(size), str(limit))
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["failures"], report["saves"]) == (1, 2)
    assert "ulimit -f" in report["error"]
    assert "an earlier checkpoint was not saved" in done.stderr
    assert [entry.step for entry in CheckpointHistory(tmp_path).entries()] == [1, 3]
    for entry in CheckpointHistory(tmp_path).entries():
        assert_same(load_checkpoint(entry.path), state_at(entry.step, size))
    assert not [name for name in os.listdir(tmp_path) if name.startswith(TEMP_PREFIX)]


def history_of(folder: Path, steps: int, size: int = 2000) -> CheckpointHistory:
    history = CheckpointHistory(folder, keep_whole=3)
    for step in range(1, steps + 1):
        history.save(state_at(step, size), step)
    return history


def damaged(content: bytes, parts: int) -> Iterator[tuple[str, bytes]]:
    """The file torn at, and with a bit flipped in, each of `parts` ranges of its bytes."""
    for i in range(parts):
        at = i * len(content) // parts
        yield f"torn at {at}", content[:at]
        flipped = bytearray(content)
        flipped[at] ^= 0x10
        yield f"flipped at {at}", bytes(flipped)
        end = (i + 1) * len(content) // parts
        yield f"zeroed from {at}", content[:at] + bytes(end - at) + content[end:]


def fall_back(tmp_path: Path, parts: int) -> None:
    history = history_of(tmp_path, 2)
    path = history.entries()[-1].path
    content = path.read_bytes()
    fallen = 0
    for name, bad in damaged(content, parts):
        path.write_bytes(bad)
        state, info = history.load_latest()
        if info.step == 2:  # the byte means nothing, such as a date: then nothing may have changed
            assert_same(state, state_at(2, 2000))
            continue
        fallen += 1
        assert info.step == 1, name
        assert_same(state, state_at(1, 2000))
        assert info.skipped[0][0] == path.name
        with pytest.raises((FormatError, StorageError)):
            load_checkpoint(path)
    assert fallen > 2.5 * parts


def test_torn_and_flipped_files_fall_back_to_the_one_before(tmp_path: Path) -> None:
    fall_back(tmp_path, parts=60)


@pytest.mark.slow
def test_torn_and_flipped_files_fall_back_at_every_few_bytes(tmp_path: Path) -> None:
    fall_back(tmp_path, parts=2000)


SAVE_MANY = """
import sys
from pathlib import Path
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory
from tests.storage.states import near_at
first, delta = int(sys.argv[2]), sys.argv[3]
with AsyncCheckpointSaver(on_error="raise") as saver:
    history = CheckpointHistory(Path(sys.argv[1]), saver=saver, keep_whole=2, keep_best=1, keep_weights_only=3, delta=delta)
    for i in range(12):
        history.save(near_at(i if first == 0 else i * 3), i if first == 0 else i * 3, metric=float(i))
"""


@pytest.mark.parametrize("delta", [pytest.param("none", marks=pytest.mark.slow), "all"])
def test_two_processes_may_save_into_one_folder(tmp_path: Path, delta: str) -> None:
    commands = [[sys.executable, "-c", SAVE_MANY, str(tmp_path), str(first), delta] for first in (0, 1)]
    running = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for command in commands]
    for process in running:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-2000:]
        assert "left as they are" not in errors
    history = CheckpointHistory(tmp_path)
    state, info = history.load_latest()
    assert not info.skipped
    assert_same(state, near_at(info.step))
    for entry in history.entries():  # every file that is left is whole in itself, thin or not
        assert load_checkpoint(entry.path)["model"]["bias"][0].item() == entry.step
    latest = json.loads((tmp_path / "latest").read_text())
    assert (tmp_path / latest["file"]).exists()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(TEMP_PREFIX)]


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the refusal is injected; a file in the folder's place refuses root as well."""
    (tmp_path / "file").write_text("")
    with AsyncCheckpointSaver() as saver:
        blocked = CheckpointHistory(tmp_path / "file" / "run", saver=saver)
        handle = blocked.save(state_at(1), 1)
        with pytest.raises(StorageError, match="choose another folder"):
            handle.wait(60)
    history = history_of(tmp_path / "run", 2)
    real = os.open

    def refuse(path: object, flags: int, *rest: int, **named: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *rest, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StorageError, match=r"this user has no permission.*change the permissions"):
            history.save(state_at(3), 3)
        assert history.load_latest()[1].step == 2  # reading needs no permission to write
    assert [entry.step for entry in history.entries()] == [1, 2]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into a read-only folder")
def test_a_read_only_folder_is_reported(tmp_path: Path) -> None:
    history = history_of(tmp_path / "run", 2)
    os.chmod(tmp_path / "run", 0o555)
    with pytest.raises(StorageError, match="permissions"):
        history.save(state_at(3), 3)
    assert history.load_latest()[1].step == 2
