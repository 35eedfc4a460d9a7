"""Named pipes, sockets, devices, folders and links where a file is expected: never replaced, never waited for."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from fledge.core.errors import StorageError
from fledge.storage import (
    AsyncCheckpointSaver,
    Recording,
    RecordingWriter,
    RolloutStorage,
    load_checkpoint,
    save_checkpoint,
)
from fledge.storage.disk.durable import durable_file, target_file, write_text

STATE = {"w": torch.ones(3)}
FRAME = {"x": np.zeros(2, np.float32)}


def in_background(path: Path) -> None:
    with AsyncCheckpointSaver() as saver:
        saver.save_async(STATE, path, compress=False).wait()


WRITERS: dict[str, Callable[[Path], object]] = {
    "durable": lambda path: write_text(path, "x"),
    "recording": lambda path: RecordingWriter(path, "toy", FRAME, 1.0).close(),
    "save_async": in_background,
    "save_checkpoint": lambda path: save_checkpoint(STATE, path, codec="pt"),
}


@pytest.mark.parametrize("kind", ["a named pipe", "a socket", "a folder"])
@pytest.mark.parametrize("writer", WRITERS)
def test_only_a_regular_file_is_replaced(tmp_path: Path, writer: str, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        socket.socket(socket.AF_UNIX).bind(os.path.relpath(path))  # a full path may be too long
    before = path.stat()
    with pytest.raises(StorageError, match=f"x is {kind}, but must be a regular file"):
        WRITERS[writer](path)
    assert (path.stat().st_ino, stat.S_IFMT(path.stat().st_mode)) == (before.st_ino, stat.S_IFMT(before.st_mode))
    assert os.listdir(tmp_path) == ["x"]


def test_a_device_is_refused() -> None:
    with pytest.raises(StorageError, match="/dev/null is a device"):
        target_file("/dev/null")  # only asked, because a mistake would replace it


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("exists", [True, False])
def test_the_target_of_a_link_is_written_and_the_link_stays(tmp_path: Path, writer: str, exists: bool) -> None:
    (tmp_path / "there").mkdir()
    if exists:
        (tmp_path / "there" / "file").write_text("old")
    link = tmp_path / "link"
    link.symlink_to(Path("there") / "file")
    WRITERS[writer](link)
    assert link.is_symlink()
    assert (tmp_path / "there" / "file").read_bytes() not in (b"", b"old")
    assert os.listdir(tmp_path / "there") == ["file"]


def test_a_link_that_leads_to_itself_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StorageError, match="loop"), durable_file(tmp_path / "loop"):
        pass


@pytest.mark.parametrize("name", ["rollout_000002.lz4", "rollout_000000002.fledge"])
def test_a_named_pipe_is_no_rollout(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with RolloutStorage(tmp_path) as storage:
        storage.save(TensorDict({"r": torch.ones(2, 3)}, [2, 3]), iteration=5).wait()
        assert storage.list() == [5]
        with pytest.raises(StorageError, match="has no rollout 2"):
            storage.load(2)


@pytest.mark.parametrize("name", ["x.frec", "x.pt", "x.fledge", "x.pt.lz4", "x.safetensors"])
def test_a_named_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(StorageError, match="named pipe"):
        Recording(tmp_path / name) if name == "x.frec" else load_checkpoint(tmp_path / name)
