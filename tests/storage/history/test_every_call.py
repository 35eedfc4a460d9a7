"""A fault, and a power cut, at every system call of a save: nothing that was durable is lost, and nothing half is taken."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fledge.core.errors import FledgeError
from fledge.storage import CheckpointHistory, load_checkpoint, save_checkpoint
from fledge.storage.disk.durable import LOCK_NAME, TEMP_PREFIX
from tests.storage.faulty_disk import CRASHED, Calls, after_power_cut, in_child
from tests.storage.states import assert_same, near_at

SIZE = 3000
FAULTS = ("ENOSPC", "EIO", "EINTR", "EACCES", "short", "crash")


def failing_save(disk: Calls, save: Callable[[], object]) -> bool:
    """Save on a failing disk; whether the caller got to know that it failed."""

    def work() -> None:
        with disk.watched():
            save()

    if disk.how == "crash":
        code = in_child(work)
        assert code in (0, CRASHED)
        return code == CRASHED
    try:
        work()
    except FledgeError:
        return True
    return False


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"keep_whole": 2, "keep_weights_only": 1},
    "delta": {"keep_whole": 2, "keep_weights_only": 2, "delta": "all", "max_chain": 8},
    "rounded": {"keep_whole": 1, "keep_best": 1, "weights_only_dtype": "bfloat16"},
}


def history_of(folder: Path, options: str) -> CheckpointHistory:
    return CheckpointHistory(folder, **OPTIONS[options])


def prepare(folder: Path, options: str) -> None:
    history = history_of(folder, options)
    for step in range(1, 5):
        history.save(near_at(step, SIZE), step, metric=float(step % 3))
    assert any(entry.base for entry in history.entries()) == (options == "delta")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK_NAME}


def check(folder: Path, options: str, allowed: set[int]) -> int:
    """Fail unless the newest is one of `allowed` and every file is what was saved at its step; returns the newest step."""
    history = history_of(folder, options)
    state, info = history.load_latest()
    assert info.step in allowed
    assert not info.skipped, info.skipped
    assert_same(state, near_at(info.step, SIZE))
    for entry in history.entries():
        loaded = history.load(entry)
        assert loaded["step"] == entry.step
        if options != "rounded":
            assert_same(loaded["model"], near_at(entry.step, SIZE)["model"])
    return info.step


def save_step(folder: Path, options: str, step: int) -> None:
    history_of(folder, options).save(near_at(step, SIZE), step, metric=9.0)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()


@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_fault_at_every_call_loses_nothing(tmp_path: Path, options: str, again: bool) -> None:
    """One kind of fault at each call, in turns."""
    fault_every_call(tmp_path, options, again, lambda number: FAULTS[number % len(FAULTS) :][:1])


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step"])
@pytest.mark.parametrize("options", OPTIONS)
def test_every_fault_at_every_call_loses_nothing(tmp_path: Path, options: str, again: bool) -> None:
    fault_every_call(tmp_path, options, again, lambda number: FAULTS)


def fault_every_call(tmp_path: Path, options: str, again: bool, faults: Callable[[int], Sequence[str]]) -> None:
    start, step = tmp_path / "start", 4 if again else 5
    prepare(start, options)
    shutil.copytree(start, tmp_path / "whole")
    with Calls(tmp_path / "whole").watched() as calls:
        history_of(tmp_path / "whole", options).save(near_at(step, SIZE), step)
    total = len(calls.trace)
    assert total > 15
    folder, tried, failed = tmp_path / "run", 0, 0
    for number in range(total):
        for how in faults(number):
            shutil.copytree(start, folder)
            open_before = descriptors()
            disk = Calls(folder, number, how)
            lost = failing_save(disk, lambda: save_step(folder, options, step))
            where = f"{how} at call {number} ({disk.failed})"
            tried, failed = tried + 1, failed + lost
            newest = check(folder, options, {step, 4})
            assert lost or newest == step, where
            assert descriptors() == open_before, where
            left = [name for name in os.listdir(folder) if name.startswith(TEMP_PREFIX)]
            unremovable = disk.failed is not None and disk.failed.name in ("unlink", "close")
            assert not left or how == "crash" or unremovable, where
            history_of(folder, options).save(near_at(6, SIZE), 6)
            check(folder, options, {6})
            shutil.rmtree(folder)
    print(f"{tried} faults at {total} calls, {failed} of them reported")
    assert failed > tried / 4  # the faults do reach the calls


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(5, id="new step"),
        pytest.param(4, id="newest step", marks=pytest.mark.slow),
        pytest.param(3, id="older step"),
    ],
)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_power_cut_at_every_call_loses_nothing(tmp_path: Path, options: str, step: int) -> None:
    folder = tmp_path / "run"
    prepare(folder, options)
    before = content(folder)
    with Calls(folder).watched() as calls:
        history_of(folder, options).save(near_at(step, SIZE), step)
    seen, states = set(), 0
    for cut in range(len(calls.trace) + 1):
        for left in after_power_cut(before, calls.trace[:cut], folder):
            place = tmp_path / "left"
            place.mkdir()
            for name, data in left.items():
                (place / name).write_bytes(data)
            newest = check(place, options, {4, step} if cut < len(calls.trace) else {step})
            seen.add(newest)
            states += 1
            shutil.rmtree(place)
    print(f"{states} states of the disk after {len(calls.trace)} calls")
    assert seen == {4, step}


@pytest.mark.parametrize("codec", ["native", "pt", "lz4", "safetensors"])
def test_a_fault_at_every_call_of_a_single_save_keeps_what_was_there(tmp_path: Path, codec: str) -> None:
    state = {"w": near_at(1, SIZE)["model"]["weight"]}
    whole = Calls(tmp_path)
    kept = save_checkpoint({"w": state["w"] + 1}, tmp_path / "a", codec=codec)
    before = kept.read_bytes()
    with whole.watched():
        save_checkpoint(state, tmp_path / "b", codec=codec)
    for number in range(len(whole.trace)):
        for how in FAULTS:
            disk = Calls(tmp_path, number, how)
            kept.write_bytes(before)
            failed = failing_save(disk, lambda: save_checkpoint(state, tmp_path / "a", codec=codec))
            renamed = any(call.name == "replace" for call in whole.trace[:number])
            if failed and not renamed:
                assert kept.read_bytes() == before, (number, how)
            else:
                assert_same(load_checkpoint(kept), state)


def test_new_folders_are_synced_into_those_above(tmp_path: Path) -> None:
    disk = Calls(tmp_path)
    with disk.watched():
        save_checkpoint({"x": 1}, tmp_path / "one" / "two" / "a")
    synced = [call.path for call in disk.trace if call.name == "fsync"]
    assert synced.count(str(tmp_path)) == synced.count(str(tmp_path / "one")) == 1
