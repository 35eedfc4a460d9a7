"""Chains of deltas, and folders shared by histories: no save, repeated or beside damage, loses another."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from fledge.core.errors import ConfigError, StorageError
from fledge.storage import AsyncCheckpointSaver, CheckpointHistory, load_checkpoint, save_checkpoint
from fledge.storage.format.reader import CheckpointFile
from tests.storage.states import assert_same, state_at


def flip(path: Path, at: float = 0.4) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.write_bytes(content)


def test_a_base_that_would_be_written_over_is_refused(tmp_path: Path) -> None:
    first = save_checkpoint(state_at(1), tmp_path / "a")
    second = save_checkpoint(state_at(1), tmp_path / "b", base=first)
    with CheckpointFile(second) as opened:
        assert opened.base_file == "a.fledge"
    contents = first.read_bytes(), second.read_bytes()
    for base in (first, second):  # itself, and one that needs it
        with pytest.raises(ConfigError, match="would overwrite"):
            save_checkpoint(state_at(2), tmp_path / "a", base=base)
    (tmp_path / "link").symlink_to(first)
    with pytest.raises(ConfigError, match="would overwrite"):
        save_checkpoint(state_at(2), tmp_path / "a", base=tmp_path / "link")
    with AsyncCheckpointSaver(handle_signals=False) as saver, pytest.raises(ConfigError):
        saver.save_async(state_at(2), tmp_path / "a", base=first).wait(30)
    assert (first.read_bytes(), second.read_bytes()) == contents


@pytest.mark.parametrize("again", [1, 2, 3, 4, 5])
def test_saving_a_step_again_keeps_the_whole_chain(tmp_path: Path, again: int) -> None:
    history = CheckpointHistory(tmp_path, delta="all", keep_whole=9, max_chain=8)
    for step in range(1, 6):
        history.save(state_at(1), step)  # the same numbers: every one becomes a delta to the one before
    assert sum(entry.base is not None for entry in history.entries()) == 4
    history.save(state_at(again + 100), again)
    for entry in history.entries():
        assert_same(history.load(entry), state_at(again + 100 if entry.step == again else 1))
    assert len(history.entries()) == 5
    assert history.load_latest()[1].step == again


def test_a_flipped_byte_in_a_base_does_not_stop_later_saves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = CheckpointHistory(tmp_path, delta="all", keep_whole=9)
    history.save(state_at(1), 1)
    flip(history.entries()[0].path)
    with caplog.at_level(logging.WARNING):
        for step in range(2, 5):
            history.save(state_at(2), step)
    assert "is saved whole because its base cannot be read" in caplog.text
    state, info = history.load_latest()
    assert info.step == 4
    assert_same(state, state_at(2))
    assert [load_checkpoint(entry.path)["step"] for entry in history.entries()[1:]] == [2, 2, 2]


@pytest.mark.parametrize("left", [0, 100])
def test_a_truncated_base_leads_to_a_whole_save(tmp_path: Path, left: int, caplog: pytest.LogCaptureFixture) -> None:
    base = save_checkpoint(state_at(1), tmp_path / "base.fledge")
    os.truncate(base, left)
    with caplog.at_level(logging.WARNING):
        saved = save_checkpoint(state_at(2), tmp_path / "next.fledge", base=base)
    assert "is saved whole because its base cannot be read" in caplog.text
    base.unlink()
    assert_same(load_checkpoint(saved), state_at(2))


@pytest.mark.parametrize("delta", ["none", "weights_only", "all"])
def test_a_damaged_file_does_not_stop_the_tidying_of_others(tmp_path: Path, delta: str) -> None:
    history = CheckpointHistory(tmp_path, delta=delta, keep_whole=2, keep_weights_only=2)  # type: ignore[arg-type]
    for step in range(1, 4):
        history.save(state_at(step), step)
    flip(history.entries()[-1].path)
    for step in range(4, 12):
        history.save(state_at(step), step)
    assert len(list(tmp_path.glob("checkpoint_*"))) <= 2 + 2 + 4  # bases of deltas may stay a little longer
    assert history.load_latest()[1].step == 11


def test_saving_a_step_again_over_a_damaged_base_loses_only_what_was_lost(tmp_path: Path) -> None:
    history = CheckpointHistory(tmp_path, delta="all", keep_whole=9)
    for step in range(1, 4):
        history.save(state_at(1), step)
    flip(history.entries()[0].path)
    history.save(state_at(5), 1)
    assert_same(history.load_latest()[0], state_at(5))


@pytest.mark.parametrize(
    ("one", "other"), [("checkpoint", "checkpoint_best"), ("a", "a_1"), ("x", "x_x"), ("c[ab]", "ca"), ("a*", "ab")]
)
def test_histories_with_overlapping_prefixes_leave_each_others_files_alone(
    tmp_path: Path, one: str, other: str
) -> None:
    first = CheckpointHistory(tmp_path, keep_whole=1, keep_weights_only=0, prefix=one)
    second = CheckpointHistory(tmp_path, keep_whole=1, keep_weights_only=0, prefix=other)
    for step in range(1, 4):
        second.save(state_at(step), step)
        first.save(state_at(10 + step), 10 + step)
    assert_same(first.load_latest()[0], state_at(13))
    assert_same(second.load_latest()[0], state_at(3))
    assert len(first.entries()) == len(second.entries()) == 1
    assert len(list(tmp_path.glob("latest*"))) == 2


@pytest.mark.parametrize("prefix", ["", "a/b", "..", ".hidden", "/a"])
def test_a_prefix_that_is_no_file_name_is_refused(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        CheckpointHistory(tmp_path, prefix=prefix)


def test_a_full_disk_while_a_delta_is_made_whole_keeps_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fledge.storage.history import history as module

    history = CheckpointHistory(tmp_path, delta="all", keep_whole=9)
    for step in (1, 2):
        history.save(state_at(1), step)

    def full(*args: object) -> None:
        raise StorageError("no space: free some space.")

    with monkeypatch.context() as patch:
        patch.setattr(module, "rewrite_whole", full)
        with pytest.raises(StorageError, match="no space"):
            history.save(state_at(7), 1)
    for entry in history.entries():
        assert_same(history.load(entry), state_at(1))
