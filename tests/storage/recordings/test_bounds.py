"""A recording is bounded, never stalls its caller, and never fails it."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from fledge.core.errors import ConfigError, StorageError
from fledge.storage import Recording, RecordingWriter
from fledge.storage.recordings import appending
from tests.storage.recordings.flights import FRAME, STEP, check, frames_of, scene_of, write


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "fledge.storage"]


def test_no_more_episodes_than_allowed_are_begun_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        stats = write(tmp_path / "a.frec", [5] * 9, max_episodes=4)
    assert (stats["episodes"], stats["refused_episodes"]) == (4, 5)
    assert len(said(caplog)) == 1
    assert "full with 4 episodes" in said(caplog)[0]
    assert check(Recording(tmp_path / "a.frec")) == 20


def test_of_a_long_episode_the_first_frames_are_kept_and_its_length_is_told(tmp_path: Path) -> None:
    write(tmp_path / "a.frec", [100, 7], max_frames=33, block_frames=10)
    long, short = Recording(tmp_path / "a.frec")
    assert (long.length, long.recorded, long.complete) == (100, 33, False)
    assert (short.length, short.recorded, short.complete) == (7, 7, True)


@pytest.mark.parametrize("limit", [3000, 5000, 9999, 20_000])
def test_the_file_never_grows_beyond_its_bound_and_every_episode_in_it_has_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: int
) -> None:
    with caplog.at_level(logging.WARNING):
        stats = write(tmp_path / "a.frec", [400] * 30, max_bytes=limit, block_frames=50)
    assert (tmp_path / "a.frec").stat().st_size <= limit
    recording = Recording(tmp_path / "a.frec")
    assert recording.closed
    assert all(episode.outcome for episode in recording)
    assert check(recording) == stats["frames"]
    assert stats["dropped_frames"] + stats["frames"] <= 30 * 400
    assert len(said(caplog)) == 1
    assert f"{limit:,} bytes" in said(caplog)[0]


def test_a_bound_that_not_even_the_head_fits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the header alone"):
        RecordingWriter(tmp_path / "a.frec", "toy", FRAME, STEP, max_bytes=500)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, the writing thread stands still."""
    gate, own = threading.Event(), appending.AppendedFile.add

    def add(self: Any, *args: Any) -> bool:
        assert gate.wait(60)
        return own(self, *args)

    monkeypatch.setattr(appending.AppendedFile, "add", add)
    return gate


def test_a_full_queue_drops_whole_blocks_and_counts_them_and_frames_keep_their_numbers(
    tmp_path: Path, held: threading.Event
) -> None:
    writer = RecordingWriter(tmp_path / "a.frec", "toy", FRAME, STEP, block_frames=10, queue_bytes=2000)
    episode = writer.begin(scene_of(0))
    assert writer.drain(60)
    writer.add_many(episode, frames_of(0, 0, 500))  # returns, though nothing is being written
    assert writer.begin(scene_of(1)) is None
    writer.add(None, {})
    writer.end(None, "win")
    held.set()
    assert writer.drain(60)
    writer.add_many(episode, frames_of(0, 500, 510))
    writer.end(episode, "win")
    writer.close()
    stats = writer.stats()
    assert stats["dropped_frames"] == 10 * stats["dropped_blocks"] > 0
    assert stats["refused_episodes"] == 1
    (found,) = Recording(tmp_path / "a.frec")
    assert (found.length, found.complete) == (510, False)
    assert found.recorded + stats["dropped_frames"] == 510
    index = found.index()
    assert index[0] == 0
    assert index[-1] == 509
    assert found.frames()["n"].tolist() == index.tolist()


def test_who_would_rather_wait_loses_nothing(tmp_path: Path) -> None:
    stats = write(tmp_path / "a.frec", [500, 500], block_frames=10, queue_bytes=2000)
    assert (stats["frames"], stats["dropped_frames"]) == (1000, 0)


class FullDisk:
    """`os` with a disk that takes so many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = os.write(descriptor, data[: self.room])
        self.room -= done
        return done


@pytest.mark.parametrize("room", [2000, 2345, 4001])
def test_a_full_disk_stops_the_recording_not_the_caller_and_what_was_written_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    monkeypatch.setattr(appending, "os", FullDisk(room))
    writer = RecordingWriter(tmp_path / "a.frec", "toy", FRAME, STEP, block_frames=10)
    with caplog.at_level(logging.WARNING):
        for k in range(20):
            episode = writer.begin(scene_of(k))
            writer.add_many(episode, frames_of(k, 0, 40))
            writer.end(episode, "win")
            writer.drain(60)
        assert "No space left" in writer.stats()["error"]
        with pytest.raises(StorageError, match="plays up to there"):
            writer.close()
        writer.close()
    assert len(said(caplog)) == 1
    recording = Recording(tmp_path / "a.frec")
    assert recording.damage is None
    assert check(recording) == writer.stats()["frames"]
    assert (tmp_path / "a.frec").stat().st_size == writer.stats()["file_bytes"]


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="choose another path"):
        RecordingWriter(tmp_path / "file" / "a.frec", "toy", FRAME, STEP)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_records_nothing_and_waits_for_nothing(tmp_path: Path, held: threading.Event) -> None:
    writer = RecordingWriter(tmp_path / "a.frec", "toy", FRAME, STEP, block_frames=10, queue_bytes=100)
    episode = writer.begin(scene_of(0))
    writer.add_many(episode, frames_of(0, 0, 25))
    child = os.fork()
    if child == 0:
        quiet = writer.begin(scene_of(1)) is None
        writer.add_many(episode, frames_of(0, 25, 80))
        writer.end(episode, "win")
        writer.drain()
        writer.close()
        os._exit(0 if quiet else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.set()
    writer.drain(60)
    writer.end(episode, "loss")
    writer.close()
    (found,) = Recording(tmp_path / "a.frec")
    assert (found.outcome, found.length) == ("loss", 25)
