"""One training at a time in a folder: who holds the lock, who gets it next, and who never needs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fledge
from fledge.core.errors import ConfigError, StorageError
from fledge.training import run_lock
from fledge.training.run_lock import LOCK_NAME, RunLock, has_ended

SMALL: dict[str, Any] = {"env": {"num_envs": 4}, "ppo": {"rollout_steps": 4, "minibatch": 16}, "total_frames": 32}
SMALL |= {"tensorboard": False, "ranks": 1, "progress": False}
HOLD = """
import os, sys, time
from pathlib import Path
from fledge.core.errors import StorageError
from fledge.training.run_lock import RunLock
sys.stdin.readline()
try:
    lock = RunLock(Path(sys.argv[1]))
except StorageError as error:
    print("refused:", error, flush=True)
    sys.exit(3)
print("held", flush=True)
{then}
"""


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "WAIT_S", 0.0)


def start(folder: Path, then: str = "sys.stdin.readline()") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD.format(then=then), str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def tell(process: subprocess.Popen[str]) -> str:
    """Let a process go on; return the line that it then prints."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_second_training_is_told_host_and_pid_until_the_first_has_ended(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert tell(first) == "held\n"
    with pytest.raises(StorageError, match=rf"is being trained by process {first.pid} on .*: wait until it ends"):
        RunLock(tmp_path)
    with pytest.raises(StorageError, match="wait until it ends"):  # force is for processes that have ended
        RunLock(tmp_path, force=True)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert (tmp_path / LOCK_NAME).exists()
    with RunLock(tmp_path):
        pass
    assert not (tmp_path / LOCK_NAME).exists()
    end(first)


def test_of_many_that_start_at_once_exactly_one_gets_the_folder(tmp_path: Path) -> None:
    processes = [start(tmp_path / "run") for _ in range(4)]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.stdout.readline() for process in processes if process.stdout]
        assert sorted(line.split()[0] for line in said) == ["held", "refused:", "refused:", "refused:"]
    finally:
        for process in processes:
            end(process)


def test_a_fork_that_outlives_the_training_does_not_keep_the_lock(tmp_path: Path) -> None:
    first = start(tmp_path, then="if not os.fork(): print(os.getpid(), flush=True)\ntime.sleep(600)")
    assert tell(first) == "held\n"
    assert first.stdout is not None
    child = int(first.stdout.readline())
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    try:
        RunLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        end(first)


def test_a_lock_file_that_was_deleted_or_emptied_is_written_again(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    for spoil in (Path.unlink, lambda path: path.write_text(""), lambda path: path.write_text("[1, 2]")):
        spoil(tmp_path / LOCK_NAME)
        lock.check()
        assert json.loads((tmp_path / LOCK_NAME).read_text())["pid"] == os.getpid()
        with pytest.raises(StorageError, match=f"by process {os.getpid()}"):
            RunLock(tmp_path)
    lock.release()
    lock.release()
    assert not list(tmp_path.iterdir())


def test_a_training_stops_when_another_process_took_its_folder(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    (tmp_path / LOCK_NAME).unlink()
    other = start(tmp_path)
    assert tell(other) == "held\n"
    with pytest.raises(StorageError, match=f"by process {other.pid}"):
        lock.check()
    lock.release()
    assert (tmp_path / LOCK_NAME).exists()
    end(other)


def test_on_a_file_system_without_locks_the_file_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "lock_file", lambda descriptor, wait: None)
    first = RunLock(tmp_path)
    with pytest.raises(StorageError, match="wait until it ends"):
        RunLock(tmp_path)
    owner = json.loads((tmp_path / LOCK_NAME).read_text())
    (tmp_path / LOCK_NAME).write_text(json.dumps({**owner, "host": "node7", "pid": 5}))
    with pytest.raises(StorageError, match=r"This process stops, because .* by process 5 on node7"):
        first.check()
    first.release()
    with pytest.raises(StorageError, match=r"if it has ended, add --force \(in Python, force=True\)"):
        RunLock(tmp_path)
    RunLock(tmp_path, force=True).release()
    (tmp_path / LOCK_NAME).write_text(json.dumps({**owner, "start": "1"}))  # its pid belongs to another process now
    assert has_ended({**owner, "start": "1"}) is True
    RunLock(tmp_path).release()


def test_a_lock_file_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).mkdir()
    with pytest.raises(StorageError, match=r"run\.lock cannot be written \(Is a directory\)"):
        RunLock(tmp_path)


def test_a_lock_file_that_is_a_pipe_or_a_link_is_neither_waited_for_nor_overwritten(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK_NAME)
    run_lock.refuse_busy(tmp_path)
    with pytest.raises(StorageError, match=r"run\.lock is not a regular file: remove it"):
        RunLock(tmp_path)
    (tmp_path / LOCK_NAME).unlink()
    (tmp_path / "mine").write_text("precious")
    (tmp_path / LOCK_NAME).symlink_to("mine")
    with pytest.raises(StorageError, match=r"run\.lock cannot be written \(Too many levels of symbolic links\)"):
        RunLock(tmp_path)
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_folder_that_only_the_lock_made_is_removed_again(tmp_path: Path) -> None:
    RunLock(tmp_path / "run").release()
    assert not (tmp_path / "run").exists()


# ---- fledge.train ------------------------------------------------------------------------------------------------------


def test_a_cell_that_is_run_twice_keeps_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    run = fledge.train("gym:CartPole-v1", folder=folder, **SMALL)
    assert not (folder / LOCK_NAME).exists()
    before = (folder / "metrics.jsonl").read_bytes()
    for environ in ({}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError, match=r"already holds a run: continue it with .* resume=True\)"):
            fledge.train("gym:CartPole-v1", folder=folder, **SMALL)
    assert (folder / "metrics.jsonl").read_bytes() == before
    again = fledge.train("gym:CartPole-v1", "ppo", folder, "auto", **{**SMALL, "total_frames": 64})
    assert [*again.metrics["step"]] == [1, 2, 3, 4]
    for resume in (True, False, "auto"):
        with RunLock(folder), pytest.raises(StorageError, match="is being trained by process"):
            fledge.train(folder=folder, resume=resume, **SMALL)
    assert len(fledge.Run(folder).metrics) == 4
    assert run.folder == again.folder


def test_resume_auto_starts_a_run_that_is_not_there_and_needs_a_folder(tmp_path: Path) -> None:
    run = fledge.train("gym:CartPole-v1", folder=tmp_path / "run", resume="auto", **SMALL)
    assert len(run.metrics) == 2
    with pytest.raises(ConfigError, match="resume=auto needs the folder"):
        fledge.train(resume="auto", **SMALL)
    with pytest.raises(ConfigError, match='must be True, False, "auto" or a URL'):
        fledge.train(resume=str(tmp_path / "run"), **SMALL)  # type: ignore[arg-type]


def test_readers_do_not_need_the_lock_and_an_interrupted_training_frees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def interrupt(*_: Any) -> None:
        seen.append((tmp_path / "run" / LOCK_NAME).exists())
        raise KeyboardInterrupt

    monkeypatch.setattr("fledge.training.outputs.RunOutputs.log", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fledge.train("gym:CartPole-v1", folder=tmp_path / "run", **SMALL)
    monkeypatch.undo()
    assert seen == [True]
    with RunLock(tmp_path / "run"):
        assert len(fledge.Run(tmp_path / "run").metrics) == 0
    assert len(fledge.train(folder=tmp_path / "run", resume=True, **SMALL).metrics) == 2
