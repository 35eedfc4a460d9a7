"""An episode as bytes for the player: a JSON header followed by little-endian arrays.

    b"EPIS", uint32 length of the header, the header, zeros up to a multiple of 8, arrays (each on a multiple of 8)
    header["arrays"]   name -> [dtype, shape, offset after the header]; dtype is one of f4, i2, u1

A payload has at most `trajectory.MAX_FRAMES` frames: of a longer episode every n-th one (`stride`). With `start`, it has
those from this frame on, for a client that has the others. Text and numbers are made harmless by `episode_packer`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import xxhash

from fledge.app.recordings import episode_packer as parts
from fledge.app.recordings.episode_packer import EpisodePacker, number, plain, text
from fledge.app.recordings.trajectory import checked_frames, env_config_of, read_track, stride_of
from fledge.core.errors import FormatError
from fledge.storage import Recording
from fledge.storage.recordings.episode import Episode
from fledge.tasks.base import Task
from fledge.tasks.view.base import TaskView
from fledge.tasks.view.stage import track_seconds
from fledge.tasks.view.trajectory import Trajectory

MAX_ACTORS = 256
MAX_LISTED = 2000  # episodes that a page lists
NOTHING_HIT = 255  # byte of a beam that hits nothing


@dataclass
class Beginning:
    """What is known of an episode from its start on; computed once, as a live page asks for it repeatedly."""

    row: dict[str, Any]  # its part of the row in the list
    flat: bool | None = None  # whether its stage is; None if not computed yet


_BEGINNINGS: WeakKeyDictionary[Episode, Beginning] = WeakKeyDictionary()


def list_episodes(recording: Recording, task: Task) -> dict[str, Any]:
    """Return what the player shows of a recording before any episode is loaded, JSON-able."""
    rows = [episode_row(recording[number], task) for number in range(min(len(recording), MAX_LISTED))]
    return {
        "task": text(task.name),
        "headline": text(task.primary_metric),
        "seconds_per_frame": recording.seconds_per_frame,
        "closed": recording.closed,
        "damage": text(recording.damage or ""),
        "facts": plain(recording.facts),
        "known_outcomes": [text(name) for name in task.metrics.labels],
        "outcomes": {text(k): v for k, v in recording.outcomes().items()},
        "left_out": max(0, len(recording) - MAX_LISTED),
        "episodes": rows,
    }


def episode_row(episode: Episode, task: Task) -> dict[str, Any]:
    """Return one row of the list."""
    outcome = episode.outcome or "running"
    total = episode.total_return
    return {
        "number": episode.number,
        "outcome": text(outcome),
        "good": outcome == task.primary_metric,
        "seconds": round(episode.seconds, 3),
        "frames": episode.length,
        "recorded": episode.recorded,
        "return": round(total, 4) if total is not None and math.isfinite(total) else None,
        **beginning_of(episode).row,
    }


def beginning_of(episode: Episode) -> Beginning:
    """Return an episode's `Beginning`, computed when it is first needed."""
    known = _BEGINNINGS.get(episode)
    if known is None:
        try:
            scene, facts = episode.scene, plain(episode.facts)
        except FormatError as error:
            scene, facts = {}, {"damaged": text(str(error))}
        row = {"stage": stage_key(scene), "clock_s": number(scene.get("clock_s", 0.0)), "facts": facts}
        known = _BEGINNINGS[episode] = Beginning(row)
    return known


def stage_key(scene: Mapping[str, Any]) -> str | None:
    """Return a hash of a scene's large arrays, such as a map: equal for episodes on one stage. None if it has none."""
    large = {name: v for name, v in scene.items() if isinstance(v, np.ndarray) and v.size > 64}
    if not large:
        return None
    digest = xxhash.xxh3_64()
    for name, value in sorted(large.items()):
        digest.update(f"{name} {value.shape} {value.dtype}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def pack_episode(recording: Recording, task: Task, number: int, start: int = 0, with_stage: bool = True) -> bytes:
    """Return the payload of an episode, from frame `start` on.

    Raises:
        FormatError: The frames are not those of the task, or damaged.
    """
    episode = recording[number]
    track, stride = read_track(recording, episode, start)
    with checked_frames(recording.path, task):
        packer = EpisodePacker()
        seconds = track_seconds(track)
        actors = task.view.actors(track)[:MAX_ACTORS]
        known = beginning_of(episode)
        if with_stage or known.flat is None:  # a live page asks for more frames on the same stage
            stage = task.view.stage(track.scene)
            known.flat = stage.flat
        head = {
            **episode_row(episode, task),
            "task": text(task.name),
            "label": text(task.metrics.labels.get(track.outcome, track.outcome).replace("_", " ")),
            "seconds_per_frame": recording.seconds_per_frame,
            "running": episode.outcome is None,
            "start": start,
            "stride": stride,
            "next": episode.length,
            "frames_here": len(seconds),
            "time": packer.add("time", seconds),
            "stage_shapes": parts.pack_stage(packer, stage, actors) if with_stage else None,
            "flat": parts.is_flat(known.flat, actors),
            "actors": [parts.pack_actor(packer, k, actor, len(seconds)) for k, actor in enumerate(actors)],
            "crowd": parts.pack_crowd(packer, task.view.crowd(track)),
            "beams": "heading" in track.frames and "lidar" in track.scene,
            "graph": type(task.view).graph is not TaskView.graph,
            "instruments": parts.pack_instruments(packer, task, track),
            "marks": parts.marks_of(actors, seconds),
        }
        return packer.packed(head)


def pack_beams(recording: Recording, task: Task, number: int, start: int, stop: int) -> bytes:
    """Return the beams of the first actor's sensor in frames `start` to `stop` of a payload: one byte for each beam."""
    episode = recording[number]
    whole = episode.recorded == episode.length and stride_of(recording, episode) == 1  # places are frame numbers
    track, _ = read_track(recording, episode, start if whole else 0, stop if whole else None)
    first = 0 if whole else start
    frames = {name: value[first : first + stop - start] for name, value in track.frames.items()}
    with checked_frames(recording.path, task):
        part = Trajectory(frames, track.scene, track.outcome, track.facts)
        beams = task.view.beams(part) if frames and len(next(iter(frames.values()))) else None
        packer = EpisodePacker()
        if beams is None:
            return packer.packed({"beams": None})
        near = np.minimum(np.round(beams.distance / beams.range_m * (NOTHING_HIT - 1)), NOTHING_HIT - 1)
        near = np.where(beams.distance >= beams.range_m * 0.9999, NOTHING_HIT, near).astype(np.uint8)
        head = {
            "azimuths": packer.add("azimuths", beams.azimuths),
            "elevations": packer.add("elevations", beams.elevations),
            "range_m": beams.range_m,
            "start": start,
            "distance": packer.add("distance", near),
        }
        return packer.packed({"beams": head})


def frame_graph(recording: Recording, task: Task, number: int, frame: int) -> dict[str, Any] | None:
    """Return the task's graph (`TaskView.graph`) of a frame of a payload, under the recording's env settings."""
    episode = recording[number]
    stride = stride_of(recording, episode)
    nearest = episode.index(frame * stride, frame * stride + 1)
    if not len(nearest):  # this frame was dropped: take it by its place
        numbers = episode.index()
        nearest = numbers[min(frame, len(numbers) - 1) :][:1]
    if not len(nearest):
        return None
    seen = episode.frames(None, int(nearest[0]), int(nearest[0]) + 1)
    with checked_frames(recording.path, task):
        return task.view.graph(env_config_of(recording, task), {name: value[0] for name, value in seen.items()})
