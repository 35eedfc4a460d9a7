"""A durable file is there whole or not at all, and a living writer's file is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fledge.core.errors import StorageError
from fledge.storage import save_checkpoint
from fledge.storage.disk.durable import TEMP_PREFIX, durable_file, remove_stale
from tests.storage.states import state_at


def test_a_file_being_written_is_not_taken_for_a_dead_ones(tmp_path: Path) -> None:
    with durable_file(tmp_path / "a") as stream:
        stream.write(b"half")
        assert remove_stale(tmp_path) == []
        stream.write(b"whole")
    assert (tmp_path / "a").read_bytes() == b"halfwhole"
    (tmp_path / f"{TEMP_PREFIX}1-dead").write_bytes(b"x")
    assert remove_stale(tmp_path) == [f"{TEMP_PREFIX}1-dead"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_at_the_last_moment_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = save_checkpoint(state_at(1), tmp_path / "a")
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StorageError, match="Input/output error"):
            save_checkpoint(state_at(2), tmp_path / "a")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.fledge"]
