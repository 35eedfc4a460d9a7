"""An episode as data for the page: one head of JSON and plain little-endian arrays behind it.

    b"FILM", uint32 length of the head, the head, zeros up to a multiple of 8, arrays one behind the other (each on 8 bytes)
    head["arrays"]   name -> [dtype, shape, offset behind the head]; dtype is one of f4, i2, u1

A film holds at most `MAX_FRAMES` frames: of a longer episode every k-th one, evenly (`stride`). `start` gives those from a
number on, for who has the others. Whatever a stranger's recording says arrives as text and numbers, never as markup.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from fledge.core.errors import FledgeError, FormatError
from fledge.evaluate.recordings import frames_as_they_should_be
from fledge.storage import Recording
from fledge.storage.recordings.episode import Episode
from fledge.tasks.base import Task, Track
from fledge.tasks.objects import SceneObject
from fledge.tasks.registry import find_named_task
from fledge.tasks.stage import MAX_SHAPES, Crowd, Stage, track_seconds

MAX_FRAMES = 20_000
MAX_FILM_BYTES = 48 * 2**20  # of frames that are unpacked for one film
MAX_ACTORS = 256
MAX_TEXT = 200
LISTED = 2000  # episodes that a page lists
KINDS = {"f": "<f4", "i": "<i2", "u": "<u1", "b": "<u1"}
NOTHING_HIT = 255


@dataclass
class _Settings:
    num_envs: int = 1


class AnyTask(Task):
    """Stands for a world whose code is not here: positions, trails and figures."""

    config = _Settings
    headline = "success"


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
        "headline": text(task.headline),
        "seconds_per_frame": recording.seconds_per_frame,
        "closed": recording.closed,
        "damage": text(recording.damage or ""),
        "facts": plain(recording.facts),
        "outcomes": {text(k): v for k, v in recording.outcomes().items()},
        "left_out": max(0, len(recording) - LISTED),
        "episodes": rows,
    }


def episode_row(episode: Episode, task: Task) -> dict[str, Any]:
    """One line of the list."""
    outcome = episode.outcome or "running"
    total = episode.total_return
    try:
        scene, facts = episode.scene, plain(episode.facts)
    except FormatError as error:
        scene, facts = {}, {"damaged": text(str(error))}
    return {
        "number": episode.number,
        "outcome": text(outcome),
        "good": outcome == task.headline,
        "seconds": round(episode.seconds, 3),
        "frames": episode.length,
        "recorded": episode.recorded,
        "return": round(total, 4) if total is not None and math.isfinite(total) else None,
        "stage": stage_key(scene),
        "clock_s": number(scene.get("clock_s", 0.0)),
        "facts": facts,
    }


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
        reel = Reel()
        seconds = track_seconds(track)
        stage = task.stage(track.scene)
        actors = task.actors(track)[:MAX_ACTORS]
        head = {
            "film": 1,
            **episode_row(episode, task),
            "task": text(task.name),
            "label": text(task.labels.get(track.outcome, track.outcome).replace("_", " ")),
            "seconds_per_frame": recording.seconds_per_frame,
            "running": episode.outcome is None,
            "start": start,
            "stride": stride,
            "next": episode.length,
            "frames_here": len(seconds),
            "time": reel.add("time", seconds),
            "stage_shapes": pack_stage(reel, stage, actors) if with_stage else None,
            "flat": is_flat(stage, actors),
            "actors": [pack_actor(reel, k, actor, len(seconds)) for k, actor in enumerate(actors)],
            "crowd": pack_crowd(reel, task.crowd(track)),
            "beams": "heading" in track.frames and "lidar" in track.scene,
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
        part = Track(frames, track.scene, track.outcome, track.facts)
        beams = task.beams(part) if frames and len(next(iter(frames.values()))) else None
        reel = Reel()
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


def read_track(recording: Recording, episode: Episode, start: int, stop: int | None = None) -> tuple[Track, int]:
    """An episode's frames from `start` on, thinned so that they are not too many; and every how-manieth it is."""
    frame_bytes = sum(f.nbytes for f in recording.fields.values())
    stride = max(1, -(-episode.length // MAX_FRAMES), -(-episode.length * frame_bytes // MAX_FILM_BYTES))
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
    return Track(frames, episode.scene, episode.outcome or "running", facts), stride


class Reel:
    """Arrays that go behind a head."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.arrays: dict[str, tuple[str, list[int], int]] = {}
        self.size = 0

    def add(self, name: str, values: np.ndarray) -> str:
        """Take an array, and return what the head calls it."""
        kind = KINDS.get(values.dtype.kind, "<f4")
        if kind == "<i2" and values.dtype.itemsize > 2:
            kind = "<f4"
        data = np.ascontiguousarray(values, dtype=kind).tobytes()
        self.arrays[name] = (kind[1:], list(values.shape), self.size)
        padded = data + bytes(-len(data) % 8)
        self.parts.append(padded)
        self.size += len(padded)
        return name

    def packed(self, head: Mapping[str, Any]) -> bytes:
        told = json.dumps({**head, "arrays": self.arrays}, allow_nan=False, ensure_ascii=True).encode()
        return b"".join([b"FILM", struct.pack("<I", len(told)), told, bytes(-(8 + len(told)) % 8), *self.parts])


def pack_stage(reel: Reel, stage: Stage, actors: Sequence[SceneObject]) -> dict[str, Any]:
    bounds = stage.bounds if stage.bounds is not None else reach_of(actors)
    return {
        "boxes": reel.add("stage/boxes", stage.boxes[:MAX_SHAPES]),
        "cylinders": reel.add("stage/cylinders", stage.cylinders[:MAX_SHAPES]),
        "bounds": [[number(x) for x in corner] for corner in bounds],
    }


def reach_of(actors: Sequence[SceneObject]) -> list[list[float]]:
    """The space that things move in, with some room around."""
    points = [deep(actor.pos)[np.isfinite(actor.pos).all(axis=1)] for actor in actors]
    found = np.concatenate([np.zeros((0, 3)), *points])
    if not len(found):
        return [[-1.0, -1.0, 0.0], [1.0, 1.0, 1.0]]
    low, high = found.min(axis=0), found.max(axis=0)
    room = max(0.08 * float((high - low).max()), 1.0)
    return [(low - [room, room, 0.0]).tolist(), (high + room).tolist()]


def is_flat(stage: Stage, actors: Sequence[SceneObject]) -> bool:
    return stage.flat or (bool(actors) and all(actor.pos.shape[1] == 2 for actor in actors))


def deep(pos: np.ndarray) -> np.ndarray:
    """Positions with a height, [T, 3]."""
    return pos if pos.shape[1] == 3 else np.concatenate([pos, np.zeros((len(pos), 1), pos.dtype)], axis=1)


def pack_actor(reel: Reel, place: int, actor: SceneObject, frames: int) -> dict[str, Any]:
    if len(actor.pos) not in (1, frames):
        raise ValueError(f"{actor.name} has {len(actor.pos)} positions in {frames} frames")
    pos = deep(actor.pos)
    there = np.isfinite(pos).all(axis=1)
    if actor.present is not None:
        there &= actor.present.astype(bool)
    told = {
        "name": text(actor.name),
        "kind": text(actor.kind),
        "colour": text(actor.colour),
        "size_m": actor.size_m,
        "parent": actor.parent,
        "destroyed": bool(actor.destroyed),
        "pos": reel.add(f"{place}/pos", np.where(there[:, None], pos, 0.0)),
    }
    if not there.all():
        told["present"] = reel.add(f"{place}/present", there)
    if actor.heading is not None:
        told["heading"] = reel.add(f"{place}/heading", np.nan_to_num(actor.heading))
    return told


def pack_crowd(reel: Reel, crowd: Crowd | None) -> dict[str, Any] | None:
    if crowd is None:
        return None
    return {
        "seen": None if crowd.seen is None else reel.add("crowd/seen", crowd.seen),
        "ids": reel.add("crowd/ids", crowd.ids.astype(np.int16)),
        "pos": reel.add("crowd/pos", np.nan_to_num(crowd.pos)),
        "sizes": reel.add("crowd/sizes", crowd.sizes),
        "round": reel.add("crowd/round", crowd.round),
    }


def pack_instruments(reel: Reel, task: Task, track: Track) -> list[dict[str, Any]]:
    found = task.instruments(track)
    return [
        {"name": text(each.name), "unit": text(each.unit), "values": reel.add(f"figure/{k}", each.values.astype("f4"))}
        for k, each in enumerate(found)
    ]


def marks_of(actors: Sequence[SceneObject], seconds: np.ndarray) -> list[dict[str, Any]]:
    """Moments worth a jump: where something appears that somebody launched."""
    marks: list[dict[str, Any]] = []
    for actor in actors:
        if actor.parent is None or actor.present is None or len(actor.present) != len(seconds):
            continue
        there = actor.present.astype(bool)
        for k in np.flatnonzero(there & ~np.concatenate([[False], there[:-1]])).tolist()[:50]:
            owner = actors[actor.parent].name if actor.parent < len(actors) else ""
            told = {"t": number(seconds[k]), "text": text(f"{owner} launches".strip()), "colour": text(actor.colour)}
            marks.append(told)
    return sorted(marks, key=lambda mark: mark["t"])[:200]


# ---- a stranger's words ------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """A stranger's word, printable and not too long."""
    return "".join(char if char.isprintable() else "?" for char in str(value)[:MAX_TEXT])


def number(value: Any) -> float:
    """A stranger's number; 0 where it is none that JSON knows."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return 0.0
    return found if math.isfinite(found) else 0.0


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as far as they are a word or a number."""
    kept: dict[str, Any] = {}
    for key, value in list(facts.items())[:40]:
        if isinstance(value, str):
            kept[text(key)] = text(value)
        elif isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            kept[text(key)] = value
    return kept
