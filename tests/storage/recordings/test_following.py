"""A recording is read while it is written, and after its writer was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fledge.storage import Recording, RecordingWriter
from tests.storage.recordings.flights import FRAME, STEP, check, frames_of, scene_of, write

ROOT = Path(__file__).parents[3]
ENDLESS = """
import itertools, sys
from fledge.storage import RecordingWriter
from tests.storage.recordings.flights import FRAME, STEP, frames_of, scene_of
writer = RecordingWriter(sys.argv[1], "toy", FRAME, STEP, block_frames=16, when_full="wait")
for k in itertools.count():
    episode = writer.begin(scene_of(k))
    writer.add_many(episode, frames_of(k, 0, 100 + k % 50))
    writer.end(episode, "win")
    print(k, flush=True)
"""


def test_a_reader_sees_what_has_been_written_so_far(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "a.frec", "toy", FRAME, STEP, block_frames=10)
    recording = Recording(tmp_path / "a.frec")
    assert len(recording) == 0
    assert not recording.refresh()
    episode = writer.begin(scene_of(0))
    writer.add_many(episode, frames_of(0, 0, 25))
    writer.drain()
    assert recording.refresh()
    assert (len(recording), recording[0].outcome, recording[0].length) == (1, None, 25)
    assert recording.outcomes() == {"running": 1}
    assert recording.track(0)["outcome"] == "running"
    assert check(recording) == 25
    writer.add_many(episode, frames_of(0, 25, 31))
    writer.end(episode, "win")
    writer.close()
    assert not recording.closed
    assert recording.refresh()
    assert recording.closed
    assert recording[0].complete
    assert check(recording) == 31
    assert not recording.refresh()


def test_readers_that_follow_a_busy_writer_only_ever_see_true_frames(tmp_path: Path) -> None:
    lengths = [37 * (k % 5) + 3 for k in range(60)]
    writing = threading.Thread(target=write, args=(tmp_path / "a.frec", lengths), kwargs={"block_frames": 7})
    writing.start()
    while not (tmp_path / "a.frec").exists():
        assert writing.is_alive()
    recording, seen, rounds = Recording(tmp_path / "a.frec"), 0, 0
    while not recording.closed:
        alive = writing.is_alive()
        recording.refresh()
        assert recording.damage is None
        assert alive or recording.closed
        now = check(recording)
        assert now >= seen
        seen, rounds = now, rounds + 1
    writing.join()
    assert seen == sum(lengths)
    assert rounds > 1


@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL here")
@pytest.mark.parametrize("frames", [1, 700, 5000])
def test_a_recording_cut_by_a_kill_plays_up_to_there(tmp_path: Path, frames: int) -> None:
    path = tmp_path / "a.frec"
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    following, seen = Recording(path), 0
    while seen < frames:
        assert process.stdout.readline()
        following.refresh()
        seen = check(following)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    recording = Recording(path)
    assert not recording.closed
    assert recording.damage is None
    assert check(recording) >= seen
    assert all(episode.complete for episode in list(recording)[:-1])
