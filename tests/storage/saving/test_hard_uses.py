"""Uses that are hard on a saver: state changed at once, saves at exit, several threads, files that cannot be written."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fledge.core.errors import FledgeError, InputError, StorageError
from fledge.storage import AsyncCheckpointSaver, load_checkpoint, save_checkpoint
from fledge.storage.format import flattening
from tests.storage.states import copy_state, train_step, training

CODECS = ("native", "pt", "lz4", "safetensors")


@pytest.fixture
def saver() -> Iterator[AsyncCheckpointSaver]:
    with AsyncCheckpointSaver(handle_signals=False) as made:
        yield made


def test_without_attach_state_changed_through_data_right_after_the_call_is_not_in_the_file(
    saver: AsyncCheckpointSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = training()
    for step in range(3):
        train_step(model, optimizer)
        expected = copy_state(optimizer.state_dict())
        handle = saver.save_async({"optimizer": optimizer.state_dict()}, tmp_path / str(step))
        assert handle.staged
        for state in optimizer.state.values():
            state["exp_avg"].data.zero_()
            state["exp_avg_sq"].data.numpy()[:] = 7
        loaded = load_checkpoint(handle.wait(60))["optimizer"]["state"]
        for key, state in expected["state"].items():
            assert torch.equal(loaded[key]["exp_avg"], state["exp_avg"])
            assert torch.equal(loaded[key]["exp_avg_sq"], state["exp_avg_sq"])


def test_saves_made_by_exit_handlers_are_on_the_disk(tmp_path: Path) -> None:
    body = """
import atexit, multiprocessing.util, sys, threading, time
def save(name):
    saver.save_async({"x": torch.arange(300_000)}, f"{sys.argv[1]}/{name}.pt")
def in_thread():
    thread = threading.Thread(target=save, args=("thread",))
    thread.start()
    thread.join()
def late():
    time.sleep(0.2)
    save("late")
atexit.register(save, "early")  # before the import, so it runs after the saver's own handler
atexit.register(in_thread)
multiprocessing.util.Finalize(None, save, args=("finalizer",), exitpriority=0)
import torch
from fledge.storage import AsyncCheckpointSaver
saver = AsyncCheckpointSaver()
threading._register_atexit(save, "threading")
threading.Thread(target=late).start()
"""
    done = subprocess.run([sys.executable, "-c", body, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for name in ("early", "thread", "finalizer", "threading", "late"):
        assert torch.equal(load_checkpoint(tmp_path / f"{name}.pt")["x"], torch.arange(300_000)), name


@pytest.mark.parametrize("codec", CODECS)
def test_saving_over_a_private_file_keeps_it_private(saver: AsyncCheckpointSaver, tmp_path: Path, codec: str) -> None:
    path = saver.save_async({"x": torch.ones(3)}, tmp_path / "a", codec=codec).wait(60)
    mask = os.umask(0o077)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    for mode in (0o600, 0o640):
        path.chmod(mode)
        saver.save_async({"x": torch.ones(4)}, tmp_path / "a", codec=codec).wait(60)
        assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("attach", [False, True])
def test_an_optimiser_with_a_plain_value_in_its_state_steps_and_is_saved(
    saver: AsyncCheckpointSaver, tmp_path: Path, attach: bool
) -> None:
    model, optimizer = training()
    optimizer.state["count"] = 3  # type: ignore[index,assignment]
    if attach:
        saver.attach(optimizer)
    train_step(model, optimizer)
    handle = saver.save_async({"optimizer": optimizer.state_dict()}, tmp_path / "a")
    train_step(model, optimizer)
    assert load_checkpoint(handle.wait(60))["optimizer"]["state"]["count"] == 3


def test_optimisers_made_and_stepped_in_threads_do_not_disturb_saves(
    saver: AsyncCheckpointSaver, tmp_path: Path
) -> None:
    errors: list[BaseException] = []
    kept: list[torch.optim.Optimizer] = []

    def train() -> None:
        try:
            for _ in range(100):
                weight = torch.nn.Parameter(torch.ones(4))
                kept.append(torch.optim.SGD([weight]))
                weight.grad = torch.ones(4)
                kept[-1].step()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            saver._pipeline._wanted = False  # as before the first save, when the optimisers are counted
            saver.save_async({"x": torch.ones(4)}, tmp_path / "a")
    finally:
        sys.setswitchinterval(interval)
    assert not errors


def test_a_dict_that_grows_while_it_is_saved_is_refused_in_one_sentence(
    saver: AsyncCheckpointSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: dict[str, Any] = {"a": torch.ones(3), "b": 1}
    real = flattening.describe_tensor

    def grow(*arguments: Any) -> Any:
        state[f"new {len(state)}"] = 1  # as another thread does
        return real(*arguments)

    monkeypatch.setattr(flattening, "describe_tensor", grow)
    with pytest.raises(InputError, match="another thread added or removed entries"):
        saver.save_async(state, tmp_path / "a")
    monkeypatch.undo()
    saver.save_async(state, tmp_path / "a").wait(60)


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_over_the_size_limit_is_one_sentence_and_leaves_nothing(
    saver: AsyncCheckpointSaver, tmp_path: Path, codec: str
) -> None:
    path = saver.save_async({"x": torch.ones(3)}, tmp_path / "a", codec=codec).wait(60)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        handle = saver.save_async({"x": torch.rand(100_000)}, tmp_path / "a", codec=codec)
        with pytest.raises(StorageError, match="ulimit -f") as caught:
            handle.wait(60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("free", [0, 1])
def test_too_many_open_files_are_one_sentence(saver: AsyncCheckpointSaver, tmp_path: Path, free: int) -> None:
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(free):
            os.close(taken.pop())
        handle = saver.save_async({"x": torch.ones(3)}, tmp_path / "a")
        with pytest.raises(StorageError, match=r"a\.fledge could not be written .*ulimit -n") as caught:
            handle.wait(60)
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.errno == errno.EMFILE
    assert not os.listdir(tmp_path)


def test_bad_names_are_one_sentence_without_escape_codes(saver: AsyncCheckpointSaver, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="choose a shorter name") as caught:
        saver.save_async({"x": 1}, tmp_path / ("x" * 300)).wait(60)
    assert caught.value.errno == errno.ENAMETOOLONG
    with pytest.raises(StorageError, match="no checkpoint at"):
        load_checkpoint(tmp_path / ("x" * 300))
    with pytest.raises(InputError, match="NUL"):
        saver.save_async({"x": 1}, tmp_path / "a\0b")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"\\x1b\[31mred.* a part of this path is a file"):
        saver.save_async({"x": 1}, tmp_path / "file" / "\x1b[31mred").wait(60)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root's rights")
def test_a_file_that_may_not_be_read_is_one_sentence(tmp_path: Path) -> None:
    path = save_checkpoint({"x": 1}, tmp_path / "a")
    path.chmod(0)
    os.seteuid(65534)
    try:
        with pytest.raises(StorageError, match="cannot be used: this user has no permission") as caught:
            load_checkpoint(path)
    finally:
        os.seteuid(0)
    assert caught.value.errno == errno.EACCES


@pytest.mark.parametrize("codec", CODECS)
def test_big_endian_arrays_keep_their_values(tmp_path: Path, codec: str) -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3).T
    loaded = load_checkpoint(save_checkpoint({"x": array}, tmp_path / "a", codec=codec))["x"]
    assert np.array_equal(np.asarray(loaded), array)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (torch.nn.Linear(1, 1), r"x\.state_dict\(\)"),
        ({1}, r"sorted\(x\)"),
        (Path("x"), r"str\(x\)"),
        (torch.float32, r"str\(x\)"),
        (np.random.default_rng(), r"x\.bit_generator\.state"),
        (torch.Generator(), r"x\.get_state\(\)"),
        (bytearray(2), r"bytes\(x\)"),
        (len, "its name"),
        (Path, "its name"),
        (threading.Lock(), "leave it out"),
    ],
)
def test_the_hint_fits_the_kind_of_value(tmp_path: Path, value: Any, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        save_checkpoint({"v": value}, tmp_path / "a")


def test_shutdown_says_how_many_saves_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    saver = AsyncCheckpointSaver(handle_signals=False)
    saver.save_async({"x": 1}, tmp_path / "good")
    handles = [saver.save_async({"x": 1}, tmp_path / "file" / str(i)) for i in range(2)]
    with caplog.at_level(logging.WARNING):
        saver.shutdown()
        saver.shutdown()
    assert caplog.text.count("2 of 3 saves failed; see `error` of each handle") == 1
    assert all(isinstance(handle.error, FledgeError) for handle in handles)


def test_a_full_disk_in_the_middle_lets_training_continue(
    saver: AsyncCheckpointSaver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = os.write, []

    def full(descriptor: int, data: Any) -> int:
        if threading.current_thread().name == "fledge-write":
            written.append(len(data))
            if len(written) > 2:
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    handle = saver.save_async({"x": torch.rand(1_000_000)}, tmp_path / "a", codec="pt")
    with pytest.raises(StorageError, match="free some space") as caught:
        handle.wait(60)
    assert caught.value.errno == errno.ENOSPC
    assert not os.listdir(tmp_path)
    monkeypatch.undo()
    saver.save_async({"x": 1}, tmp_path / "a").wait(60)


def test_the_error_of_an_earlier_save_has_its_error_number(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    saver = AsyncCheckpointSaver(handle_signals=False, on_error="raise")
    saver.save_async({"x": 1}, tmp_path / "file" / "a")
    saver.drain(60)
    with pytest.raises(StorageError) as caught:
        saver.save_async({"x": 1}, tmp_path / "b")
    assert caught.value.errno == errno.EEXIST
    saver.shutdown()
