"""Recordings to test with: every number of a frame tells which episode and frame it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fledge.storage import Recording, RecordingWriter

STEP = 0.25
FRAME = {"pos": np.zeros((2, 3), np.float32), "time_s": np.float64(0), "alive": np.zeros(2, bool), "n": np.int32(0)}


def frames_of(episode: int, start: int, stop: int) -> dict[str, np.ndarray]:
    """Frames [T, ...] of an episode, each unlike any other."""
    t = np.arange(start, stop)
    place = np.cumsum(np.ones((len(t), 2, 3)), axis=1) + 1000.0 * episode + 0.1 * t[:, None, None]
    return {
        "pos": place.astype(np.float32),
        "time_s": t * STEP,
        "alive": np.stack([t % 7 != 0, t % 5 == 0], axis=1),
        "n": (100_000 * episode + t).astype(np.int32),
    }


def scene_of(episode: int) -> dict[str, Any]:
    cells = np.arange(5000, dtype=np.uint8) % (3 + episode % 2)  # two maps, however many episodes
    return {"map": episode % 2, "cells": cells, "goal": np.array([1.5, np.nan, episode], np.float32)}


def write(path: Path, lengths: list[int], **options: Any) -> dict[str, Any]:
    """Record episodes of these lengths, two at a time, and return the writer's figures."""
    writer = RecordingWriter(path, "toy", FRAME, STEP, facts={"seed": 7}, when_full="wait", **options)
    for first in range(0, len(lengths), 2):
        pair = range(first, min(first + 2, len(lengths)))
        begun = {k: writer.begin(scene_of(k), {"episode": k}) for k in pair}
        for start in range(0, max(lengths[k] for k in pair), 10):
            for k in pair:
                if start < lengths[k]:
                    writer.add_many(begun[k], frames_of(k, start, min(start + 10, lengths[k])))
        for k in pair:
            writer.end(begun[k], "win" if k % 2 else "loss", float(k))
    writer.close()
    return writer.stats()


def check(recording: Recording) -> int:
    """See that every frame that can be read is the one that was written; returns how many there are."""
    found = 0
    for episode in recording:
        frames, index = episode.frames(), episode.index()
        assert same(episode.scene, scene_of(episode.number))
        for t in (0, len(index) // 2, len(index) - 1):
            for name, value in frames_of(episode.number, index[t], index[t] + 1).items() if len(index) else ():
                assert np.array_equal(frames[name][t], value[0])
        assert frames["n"].tolist() == (100_000 * episode.number + index).tolist()
        found += len(index)
    return found


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k], equal_nan=k == "goal") for k in a)
