"""DirectFile: the bytes that were given, whatever the file system does with direct writes."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.core.errors import StorageError
from fledge.storage.disk import durable as direct
from fledge.storage.disk.durable import BLOCK, DirectFile, durable_file

SIZES = st.lists(
    st.one_of(st.integers(0, 70), st.integers(BLOCK - 3, BLOCK + 3), st.integers(0, 3 * BLOCK)), max_size=6
)


def content(size: int) -> bytes:
    return (np.arange(size, dtype=np.uint64) * 2654435761 >> 7).astype(np.uint8).tobytes()


def create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)


def fill(path: Path, data: bytes) -> DirectFile:
    stream = DirectFile(create(path))
    stream.write(data)
    stream.close()
    return stream


@settings(max_examples=25, deadline=None)
@given(SIZES, st.booleans())
def test_any_pieces_come_out_in_order(sizes: list[int], flush: bool) -> None:
    pieces = [content(size) for size in sizes]
    with tempfile.TemporaryDirectory() as folder:
        stream = DirectFile(create(Path(folder) / "f"))
        for piece in pieces:
            assert stream.write(piece) == len(piece)
            if flush:
                stream.flush()
        stream.close()
        assert (Path(folder) / "f").read_bytes() == b"".join(pieces)


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no file system in memory here")
def test_a_file_system_in_memory_will_do() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        fill(Path(folder) / "f", content(3 * BLOCK + 5))
        assert (Path(folder) / "f").read_bytes() == content(3 * BLOCK + 5)


def test_arrays_and_views_of_other_items_are_taken_as_bytes(tmp_path: Path) -> None:
    stream = DirectFile(create(tmp_path / "f"))
    assert stream.write(np.arange(5, dtype=np.int32)) == 20
    stream.close()
    assert (tmp_path / "f").read_bytes() == np.arange(5, dtype=np.int32).tobytes()


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no direct writes on this system")
def test_a_file_system_that_refuses_direct_writes_gets_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = os.write, []

    def picky(descriptor: int, data: Any) -> int:
        if direct.fcntl.fcntl(descriptor, direct.fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(len(data))
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, data)

    monkeypatch.setattr(direct.os, "write", picky)
    stream = fill(tmp_path / "f", content(3 * BLOCK + 5))
    assert (tmp_path / "f").read_bytes() == content(3 * BLOCK + 5)
    assert stream._direct is False
    assert len(refused) <= 1  # none where the folder's file system said so at once


@pytest.mark.parametrize("most", [1000, 4096, 300_000])
def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    real = os.write
    monkeypatch.setattr(direct.os, "write", lambda descriptor, data: real(descriptor, data[:most]))
    fill(tmp_path / "f", content(2 * BLOCK + 5))
    assert (tmp_path / "f").read_bytes() == content(2 * BLOCK + 5)


def test_a_disk_that_fills_up_leaves_no_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"before")
    opened = []

    def full(descriptor: int, data: Any) -> int:
        opened.append(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(direct.os, "write", full)
    with pytest.raises(StorageError, match="free some space"), durable_file(tmp_path / "f") as stream:
        stream.write(content(2 * BLOCK + 5))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"before"


def test_a_disk_that_is_full_for_the_last_bytes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(direct.os, "write", full)
    with pytest.raises(StorageError, match="free some space"), durable_file(tmp_path / "f") as stream:
        stream.write(b"a few")
    assert os.listdir(tmp_path) == []


def test_memory_is_used_again(tmp_path: Path) -> None:
    fill(tmp_path / "f", b"1")
    spare = len(direct._spare)
    for _ in range(3):
        fill(tmp_path / "f", b"1")
    assert len(direct._spare) == spare
