"""Processes that fork: nothing is shared, nothing hangs, nothing is lost. Each case runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fledge.storage import CheckpointHistory, load_checkpoint
from tests.storage.states import assert_same, state_at

ROOT = Path(__file__).parents[2]
PRELUDE = """
import multiprocessing, os, sys, threading, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from fledge.core.errors import StorageError
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory, load_checkpoint, save_checkpoint
from tests.storage.states import state_at
folder = Path(sys.argv[1])

def slow_writes():
    from fledge.storage.saving import saver
    real = saver.write_state
    def slow(*args, **kwargs):
        time.sleep(0.2)
        return real(*args, **kwargs)
    saver.write_state = slow

def in_child(work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    return child

def joined(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def run(body: str, folder: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRELUDE + body, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_processes_that_save_at_the_same_time_after_a_fork_write_their_own_files(tmp_path: Path) -> None:
    run(
        """
save_checkpoint(state_at(0, 600_000), folder / "before")  # leaves a block to use again
def work(number):
    for i in range(6):
        save_checkpoint(state_at(10 * number + i, 600_000), folder / f"{number}-{i}", compression_level=0)
children = [in_child(lambda number=number: work(number)) for number in (1, 2)]
work(0)
for child in children: joined(child)
""",
        tmp_path,
    )
    for number in range(3):
        for i in range(6):
            assert_same(load_checkpoint(tmp_path / f"{number}-{i}"), state_at(10 * number + i, 600_000))


def test_a_fork_in_the_middle_of_saving_harms_neither_side(tmp_path: Path) -> None:
    run(
        """
import gc
saver = AsyncCheckpointSaver(max_queue_size=2, handle_signals=False)
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
saver.attach(optimizer)
handles = []
def child():
    optimizer.zero_grad(); optimizer.step()  # its hook must not wait for threads that are not there
    saver.fence(); assert saver.drain(); saver.get_stats(); saver.shutdown()
    for handle in handles:
        if handle.status != "durable":
            try: handle.wait(5)
            except StorageError as error: assert "forked" in str(error), error
            else: raise SystemExit("the child thinks that it has saved")
    gc.collect()
    with AsyncCheckpointSaver(handle_signals=False) as own:
        own.save_async(state_at(7), folder / f"child-{os.getpid()}")
children = []
for step in range(8):
    handles.append(saver.save_async(state_at(step, 900_000), folder / str(step)))
    children.append(in_child(child))
for one in children: joined(one)
saver.shutdown()
""",
        tmp_path,
    )
    for step in range(8):
        assert_same(load_checkpoint(tmp_path / str(step)), state_at(step, 900_000))
    children = list(tmp_path.glob("child-*"))
    assert len(children) == 8
    for path in children:
        assert_same(load_checkpoint(path), state_at(7))
    assert not list(tmp_path.glob(".fledge-tmp-*"))


def test_a_child_that_lives_on_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    run(
        """
from fledge.storage.disk.durable import folder_lock
history = CheckpointHistory(folder)
history.save(state_at(1), 1)
release, wait = os.pipe()
with folder_lock(folder):
    child = in_child(lambda: os.read(release, 1))
os.close(release)
history.save(state_at(2), 2)  # hung, as long as the child lived
os.write(wait, b"x")
joined(child)
""",
        tmp_path,
    )
    assert CheckpointHistory(tmp_path).load_latest()[1].step == 2


def test_a_saver_from_before_the_fork_is_refused_in_the_child(tmp_path: Path) -> None:
    run(
        """
saver = AsyncCheckpointSaver()
def child():
    try: saver.save_async(state_at(1), folder / "a")
    except StorageError as error: assert "another process" in str(error)
    else: raise SystemExit("taken")
joined(in_child(child))
saver.save_async(state_at(1), folder / "a").wait(30)
""",
        tmp_path,
    )


@pytest.mark.parametrize("way", ["fork", pytest.param("forkserver", marks=pytest.mark.slow), "spawn"])
def test_what_a_multiprocessing_child_has_queued_is_saved_when_it_ends(tmp_path: Path, way: str) -> None:
    script = tmp_path / "children.py"
    script.write_text(
        PRELUDE
        + """
def work():
    slow_writes()
    saver = AsyncCheckpointSaver(max_queue_size=3)
    for step in range(3):
        saver.save_async(state_at(step), folder / str(step))

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[2]).Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0, child.exitcode
"""
    )
    command = [sys.executable, str(script), str(tmp_path / "out"), way]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    import os

    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for step in range(3):
        assert_same(load_checkpoint(tmp_path / "out" / str(step)), state_at(step))


def test_a_save_that_fails_at_exit_says_so(tmp_path: Path) -> None:
    done = run(
        """
slow_writes()
folder.joinpath("file").write_text("")
saver = AsyncCheckpointSaver()
saver.save_async(state_at(1), folder / "file" / "a")
""",
        tmp_path,
    )
    assert "was not saved" in done.stderr
    assert "a part of this path is a file" in done.stderr


def test_in_a_multiprocessing_child_too(tmp_path: Path) -> None:
    done = run(
        """
slow_writes()
def work():
    folder.joinpath("file").write_text("")
    AsyncCheckpointSaver().save_async(state_at(1), folder / "file" / "a")
child = multiprocessing.get_context("fork").Process(target=work)
child.start(); child.join()
""",
        tmp_path,
    )
    assert "was not saved" in done.stderr
