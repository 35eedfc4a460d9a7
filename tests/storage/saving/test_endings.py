"""The end of a saver's threads and calls: no call waits for ever, and reports about files are true."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.core.errors import ConfigError, InputError, StorageError
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory, load_checkpoint, save_checkpoint
from fledge.storage.saving import saver as saver_module
from fledge.storage.saving.pipeline import Pipeline
from fledge.storage.saving.staging import Stager, StagingBuffer
from tests.storage.states import assert_same, state_at, train_step, training

ROOT = Path(__file__).parents[3]


def test_a_closed_pipe_stops_neither_the_writer_nor_the_exit(tmp_path: Path) -> None:
    body = """
import os, sys
from pathlib import Path
from fledge.storage import AsyncCheckpointSaver, RolloutStorage
from tests.storage.states import state_at
reader, writer = os.pipe()
os.dup2(writer, 1)
os.close(reader); os.close(writer)
saver = AsyncCheckpointSaver(verbose=True)
for step in range(4):
    saver.save_async(state_at(step), Path(sys.argv[1]) / str(step)).wait(20)
print("x" * 100_000)
"""
    command = [sys.executable, "-c", body, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert "BrokenPipe" in done.stderr  # the program's own print; ours said nothing and went on
    assert "Checkpoint]" not in done.stderr
    for step in range(4):
        assert_same(load_checkpoint(tmp_path / str(step)), state_at(step))


def test_what_is_queued_when_a_thread_dies_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Event()

    def die(self: Pipeline, job: Any, cpu_seconds: float) -> None:
        both.wait(60)
        raise SystemError("a fault of our own")

    monkeypatch.setattr(Pipeline, "_pace", die)  # outside of what a job may raise
    saver = AsyncCheckpointSaver(handle_signals=False)
    handles = [saver.save_async(state_at(step), tmp_path / str(step)) for step in range(2)]
    both.set()
    for handle in handles:
        with pytest.raises(StorageError, match=r"thread ended \(SystemError: a fault of our own\)"):
            handle.wait(30)
    with pytest.raises(StorageError, match="create a new AsyncCheckpointSaver"):
        saver.save_async(state_at(3), tmp_path / "3")
    assert saver.get_stats()["failures"] == 2
    assert saver.shutdown(30)


def test_a_step_does_not_wait_for_ever_when_the_writer_dies_during_staging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = training()
    copying, go, real = threading.Event(), threading.Event(), Stager.copy

    def late(self: Stager, leaves: Any, *rest: Any) -> None:
        if threading.current_thread().name == "fledge-stage":
            copying.set()
            go.wait(30)
        real(self, leaves, *rest)

    monkeypatch.setattr(Stager, "copy", late)
    saver = AsyncCheckpointSaver(handle_signals=False)
    saver.attach(optimizer)
    handle = saver.save_async({"model": model.state_dict()}, tmp_path / "a")
    assert copying.wait(30)
    saver._pipeline._die(SystemError("a fault of our own"))  # what the writer's thread does at its end
    go.set()
    with pytest.raises(StorageError, match="thread ended"):
        handle.wait(30)
    stepped = threading.Thread(target=train_step, args=(model, optimizer), daemon=True)
    while not saver._pipeline.free:  # the copy has ended
        time.sleep(0.01)
    stepped.start()
    stepped.join(30)
    assert not stepped.is_alive()
    saver.shutdown(30)


def test_an_error_that_is_no_exception_fails_one_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As a codec in Rust raises it."""

    real = saver_module.write_state

    def panic(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(saver_module, "write_state", real)
        raise Panic("index out of bounds")

    monkeypatch.setattr(saver_module, "write_state", panic)
    with AsyncCheckpointSaver(handle_signals=False) as saver:
        with pytest.raises(StorageError, match="Panic: index out of bounds"):
            saver.save_async(state_at(1), tmp_path / "a").wait(30)
        saver.save_async(state_at(2), tmp_path / "b").wait(30)


def test_after_a_shutdown_that_ran_out_of_time_steps_still_wait_for_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = training()
    real = Stager.copy

    def late(self: Stager, leaves: Any, *rest: Any) -> None:
        if threading.current_thread().name == "fledge-stage":
            time.sleep(0.5)
        real(self, leaves, *rest)

    monkeypatch.setattr(Stager, "copy", late)
    saver = AsyncCheckpointSaver(handle_signals=False)
    saver.attach(optimizer)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    handle = saver.save_async({"model": dict(model.state_dict())}, tmp_path / "a")
    assert not saver.shutdown(timeout=0.01)
    train_step(model, optimizer)
    assert_same(load_checkpoint(handle.wait(30))["model"], expected)
    assert saver.shutdown()
    assert not saver._hooks


def test_paths_and_metadata_are_those_at_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, real = threading.Event(), saver_module.write_state

    def late(*args: Any, **kwargs: Any) -> Any:
        go.wait(30)
        return real(*args, **kwargs)

    monkeypatch.setattr(saver_module, "write_state", late)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    metadata = {"note": {"step": 1}}
    with AsyncCheckpointSaver(handle_signals=False) as saver:
        history = CheckpointHistory("run", saver=saver)
        handle = saver.save_async({"x": torch.ones(2)}, "a.pt", metadata=metadata)
        saved = history.save(state_at(1), 1, metadata=metadata)
        metadata["note"]["step"] = 2
        monkeypatch.chdir(tmp_path / "two")
        go.set()
        assert handle.wait(30) == tmp_path / "one" / "a.pt.fledge"
        assert saved.wait(30).parent == tmp_path / "one" / "run"
        assert history.entries()[0].metadata == {"note": {"step": 1}}
    from fledge.storage import inspect_checkpoint

    assert inspect_checkpoint(handle)["metadata"] == {"note": {"step": 1}}
    assert list((tmp_path / "two").iterdir()) == []


def test_a_staging_buffer_is_given_back_when_staging_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with AsyncCheckpointSaver(handle_signals=False) as saver:
        saver.save_async({"x": torch.ones(1000)}, tmp_path / "a").wait(30)
        before = len(saver._pipeline.buffers)

        def fail(self: StagingBuffer, nbytes: int, pinned: bool = False) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(StagingBuffer, "reserve", fail)
            for _ in range(20):
                with pytest.raises(MemoryError):
                    saver.save_async({"x": torch.ones(1000)}, tmp_path / "b")
        assert len(saver._pipeline.buffers) == before
        saver.save_async({"x": torch.ones(1000)}, tmp_path / "b").wait(30)


def test_a_state_that_is_refused_costs_no_queued_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, real = threading.Event(), saver_module.write_state

    def late(*args: Any, **kwargs: Any) -> Any:
        go.wait(30)
        return real(*args, **kwargs)

    monkeypatch.setattr(saver_module, "write_state", late)
    with AsyncCheckpointSaver(max_queue_size=1, full_queue="drop_oldest", handle_signals=False) as saver:
        handles = [saver.save_async(state_at(0), tmp_path / "0")]
        while saver.get_stats()["queue_size"]:
            time.sleep(0.01)
        handles.append(saver.save_async(state_at(1), tmp_path / "1"))
        with pytest.raises(InputError):
            saver.save_async({"x": object()}, tmp_path / "bad")
        go.set()
        for handle in handles:
            handle.wait(30)


def test_a_name_stands_for_what_was_saved_last_under_it(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for number, codec in enumerate(["pt", "native", "lz4", "safetensors", "pt", "native"] * 4):
        save_checkpoint({"x": number}, path, codec=codec)  # many in one tick of the clock
        assert load_checkpoint(path)["x"] == number
    later = path.stat().st_mtime + 1e6
    os.utime(path, (later, later))  # the clock was set back
    save_checkpoint({"x": 8}, path)
    assert load_checkpoint(path)["x"] == 8
    torch.save({"x": 9}, path)
    os.utime(path, (later + 1, later + 1))
    assert load_checkpoint(path)["x"] == 9
    save_checkpoint({"x": 10}, tmp_path / "model")
    assert load_checkpoint(path)["x"] == 9  # another name's file


@pytest.mark.parametrize("name", ["", ".", "/", "..", "folder"])
def test_a_folders_name_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError):
        load_checkpoint(name)


@pytest.mark.parametrize("dtensor", ["whole", True])
def test_an_unknown_choice_for_sharded_tensors_is_refused(dtensor: Any) -> None:
    with pytest.raises(ConfigError, match="dtensor"):
        AsyncCheckpointSaver(dtensor=dtensor)
