"""An episode as data for the page: one head of JSON and plain little-endian arrays behind it.

    b"FILM", uint32 length of the head, the head, zeros up to a multiple of 8, arrays one behind the other (each on 8 bytes)
    head["arrays"]   name -> [dtype, shape, offset behind the head]; dtype is one of f4, i2, u1

A film holds at most `MAX_FRAMES` frames: of a longer episode every k-th one, evenly (`stride`). `start` gives those from a
number on, for who has the others. Whatever a stranger's recording says arrives as text and numbers, never as markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import xxhash

from fledge.app.episode_packer import (
    EpisodePacker,
    is_flat,
    marks_of,
    number,
    pack_actor,
    pack_crowd,
    pack_instruments,
    pack_stage,
    plain,
    text,
)
from fledge.core.errors import FledgeError, FormatError
from fledge.core.overrides import from_plain
from fledge.evaluate.recordings import frames_as_they_should_be
from fledge.storage import Recording
from fledge.storage.recordings.episode import Episode
from fledge.tasks.base import Task
from fledge.tasks.registry import find_named_task
from fledge.tasks.view.base import TaskView
from fledge.tasks.view.stage import track_seconds
from fledge.tasks.view.trajectory import Trajectory

MAX_FRAMES = 20_000
MAX_FILM_BYTES = 48 * 2**20  # of frames that are unpacked for one film
MAX_ACTORS = 256
LISTED = 2000  # episodes that a page lists
NOTHING_HIT = 255
_BEGINNINGS: WeakKeyDictionary[Episode, Beginning] = WeakKeyDictionary()  # of the recordings that are open


@dataclass
class _Settings:
    num_envs: int = 1


class AnyTask(Task):
    """Stands for a world whose code is not here: positions, trails and figures."""

    config = _Settings
    primary_metric = "success"


def task_of(recording: Recording, task: Task | None = None) -> Task:
    """The task that a recording names, where it is an installed one; one that shows positions where it is not."""
    if task is not None:
        return task
    try:
        return find_named_task(recording.task, str(recording.path))
    except FledgeError:
        return AnyTask(text(recording.task) or "recording")


# ---- the list ----------------------------------------------------------------------------------------------------------


def list_films(recording: Recording, task: Task) -> dict[str, Any]:
    """What a page shows of a recording before any film: JSON-able."""
    rows = [episode_row(recording[number], task) for number in range(min(len(recording), LISTED))]
    return {
        "task": text(task.name),
        "headline": text(task.primary_metric),
        "seconds_per_frame": recording.seconds_per_frame,
        "closed": recording.closed,
        "damage": text(recording.damage or ""),
        "facts": plain(recording.facts),
        "known_outcomes": [text(name) for name in task.metrics.labels],
        "outcomes": {text(k): v for k, v in recording.outcomes().items()},
        "left_out": max(0, len(recording) - LISTED),
        "episodes": rows,
    }


def episode_row(episode: Episode, task: Task) -> dict[str, Any]:
    """One line of the list."""
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


@dataclass
class Beginning:
    """What is known of an episode from its beginning on."""

    row: dict[str, Any]  # its part of the list's line
    flat: bool | None = None  # whether its stage is; None before anybody asked


def beginning_of(episode: Episode) -> Beginning:
    """Worked out once: a page that watches asks for it again and again."""
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
    """What tells stages apart: the large arrays of a scene, such as a map; None where it has none."""
    large = {name: v for name, v in scene.items() if isinstance(v, np.ndarray) and v.size > 64}
    if not large:
        return None
    digest = xxhash.xxh3_64()
    for name, value in sorted(large.items()):
        digest.update(f"{name} {value.shape} {value.dtype}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


# ---- a film ------------------------------------------------------------------------------------------------------------


def make_film(recording: Recording, task: Task, number: int, start: int = 0, with_stage: bool = True) -> bytes:
    """One episode, from frame `start` on.

    Raises:
        FormatError: when its frames are not what the task expects, or damaged.
    """
    episode = recording[number]
    track, stride = read_track(recording, episode, start)
    with frames_as_they_should_be(recording.path, task):
        reel = EpisodePacker()
        seconds = track_seconds(track)
        actors = task.view.actors(track)[:MAX_ACTORS]
        known = beginning_of(episode)
        if with_stage or known.flat is None:  # a live film asks for more frames of the same stage again and again
            stage = task.view.stage(track.scene)
            known.flat = stage.flat
        head = {
            "film": 1,
            **episode_row(episode, task),
            "task": text(task.name),
            "label": text(task.metrics.labels.get(track.outcome, track.outcome).replace("_", " ")),
            "seconds_per_frame": recording.seconds_per_frame,
            "running": episode.outcome is None,
            "start": start,
            "stride": stride,
            "next": episode.length,
            "frames_here": len(seconds),
            "time": reel.add("time", seconds),
            "stage_shapes": pack_stage(reel, stage, actors) if with_stage else None,
            "flat": is_flat(known.flat, actors),
            "actors": [pack_actor(reel, k, actor, len(seconds)) for k, actor in enumerate(actors)],
            "crowd": pack_crowd(reel, task.view.crowd(track)),
            "beams": "heading" in track.frames and "lidar" in track.scene,
            "graph": type(task.view).graph is not TaskView.graph,
            "instruments": pack_instruments(reel, task, track),
            "marks": marks_of(actors, seconds),
        }
        return reel.packed(head)


def make_beams(recording: Recording, task: Task, number: int, start: int, stop: int) -> bytes:
    """What the first actor's sensor saw in frames `start` to `stop` of a film: a byte for each beam, 255 of nothing."""
    episode = recording[number]
    whole = episode.recorded == episode.length and episode.length <= MAX_FRAMES  # then places are numbers
    track, _ = read_track(recording, episode, start if whole else 0, stop if whole else None)
    first = 0 if whole else start
    frames = {name: value[first : first + stop - start] for name, value in track.frames.items()}
    with frames_as_they_should_be(recording.path, task):
        part = Trajectory(frames, track.scene, track.outcome, track.facts)
        beams = task.view.beams(part) if frames and len(next(iter(frames.values()))) else None
        reel = EpisodePacker()
        if beams is None:
            return reel.packed({"film": 1, "beams": None})
        near = np.minimum(np.round(beams.distance / beams.range_m * (NOTHING_HIT - 1)), NOTHING_HIT - 1)
        near = np.where(beams.distance >= beams.range_m * 0.9999, NOTHING_HIT, near).astype(np.uint8)
        told = {
            "azimuths": reel.add("azimuths", beams.azimuths),
            "elevations": reel.add("elevations", beams.elevations),
            "range_m": beams.range_m,
            "start": start,
            "distance": reel.add("distance", near),
        }
        return reel.packed({"film": 1, "beams": told})


def make_graph(recording: Recording, task: Task, number: int, frame: int) -> dict[str, Any] | None:
    """What a frame of a film means (`Task.graph`), in the world that the recording was made in."""
    episode = recording[number]
    _, stride = thinning(recording, episode)
    nearest = episode.index(frame * stride, frame * stride + 1)
    if not len(nearest):  # it was dropped, or the film has gaps: by its place
        numbers = episode.index()
        nearest = numbers[min(frame, len(numbers) - 1) :][:1]
    if not len(nearest):
        return None
    seen = episode.frames(None, int(nearest[0]), int(nearest[0]) + 1)
    with frames_as_they_should_be(recording.path, task):
        return task.view.graph(default_env_config(recording, task), {name: value[0] for name, value in seen.items()})


def default_env_config(recording: Recording, task: Task) -> Any:
    """The settings that a recording says it was made with; the task's own where it does not, or says nonsense."""
    settings = recording.facts.get("settings")
    try:
        return from_plain(task.config, nested(settings)) if isinstance(settings, dict) else task.config()
    except FledgeError:
        return task.config()


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted key as a tree."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = str(key).split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise FormatError(f"{key} is set twice")
        place[last] = value
    return tree


def thinning(recording: Recording, episode: Episode) -> tuple[int, int]:
    """Bytes of a frame, and every how-manieth is shown, so that a film is not too large."""
    frame_bytes = sum(f.nbytes for f in recording.fields.values())
    return frame_bytes, max(1, -(-episode.length // MAX_FRAMES), -(-episode.length * frame_bytes // MAX_FILM_BYTES))


def read_track(recording: Recording, episode: Episode, start: int, stop: int | None = None) -> tuple[Trajectory, int]:
    """An episode's frames from `start` on, thinned so that they are not too many; and every how-manieth it is."""
    _, stride = thinning(recording, episode)
    step = max(stride, MAX_FRAMES // stride * stride)
    parts, index = [], []
    end = max(episode.length, 1) if stop is None else stop
    for first in range(start - start % stride, end, step):
        numbers = episode.index(first, min(first + step, end))
        chosen = np.flatnonzero((numbers % stride == 0) & (numbers >= start))
        frames = episode.frames(None, first, min(first + step, end))
        parts.append({name: value[chosen] for name, value in frames.items()})
        index.append(numbers[chosen])
    empty = {name: np.zeros((0, *f.shape), f.dtype) for name, f in recording.fields.items()}
    frames = {name: np.concatenate([empty[name], *(part[name] for part in parts)]) for name in recording.fields}
    facts = {
        **episode.facts,
        "seconds_per_frame": recording.seconds_per_frame,
        "index": np.concatenate([np.zeros(0, np.int64), *index]),
    }
    return Trajectory(frames, episode.scene, episode.outcome or "running", facts), stride
