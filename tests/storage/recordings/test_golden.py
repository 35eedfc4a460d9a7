"""Recordings of the first version are read for good, and written the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fledge.storage import Recording, RecordingWriter
from tests.storage.recordings.flights import check

HERE = Path(__file__).parent
# too little to pack: docs/reference/recording_format.md describes every byte
SMALL = bytes.fromhex((HERE / "golden_v1.hex").read_text())


def write_small(path: Path) -> None:
    frame = {"pos": np.zeros(2, np.float32), "alive": np.bool_(True)}
    with RecordingWriter(path, "toy", frame, 0.5, facts={"seed": 7}) as writer:
        episode = writer.begin({"goal": np.array([1, 2], np.int16), "far": float("inf")}, {"episode": 3})
        for t in range(3):
            writer.add(episode, {"pos": np.array([t, -t], np.float32), "alive": np.bool_(t < 2)})
        writer.end(episode, "crash", -1.5)


def test_a_small_recording_has_these_bytes(tmp_path: Path) -> None:
    write_small(tmp_path / "a.frec")
    assert (tmp_path / "a.frec").read_bytes() == SMALL


def test_these_bytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.frec").write_bytes(SMALL)
    recording = Recording(tmp_path / "a.frec")
    (episode,) = recording
    assert (recording.task, recording.seconds_per_frame, recording.facts) == ("toy", 0.5, {"seed": 7})
    assert (episode.outcome, episode.total_return, episode.length, episode.facts) == ("crash", -1.5, 3, {"episode": 3})
    assert episode.scene["goal"].tolist() == [1, 2]
    assert episode.scene["goal"].dtype == np.int16
    assert episode.scene["far"] == float("inf")
    assert episode.frames()["pos"].tolist() == [[0, 0], [1, -1], [2, -2]]
    assert episode.frames()["alive"].tolist() == [True, True, False]


def test_a_packed_recording_of_then_is_read() -> None:
    """Written by `flights.write(path, [300, 120, 5])` when version 1 was new; all four codecs and shared arrays."""
    recording = Recording(HERE / "golden_v1.frec")
    assert recording.closed
    assert [episode.length for episode in recording] == [300, 120, 5]
    assert check(recording) == 425
