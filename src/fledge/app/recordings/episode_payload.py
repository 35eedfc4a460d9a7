"""Pack an episode into bytes for the player: a JSON header followed by little-endian arrays.

    b"EPIS", uint32 length of the header, the header, zeros up to a multiple of 8, arrays (each on a multiple of 8)
    header["arrays"]   name -> [dtype, shape, offset after the header]; dtype is one of f4, i2, u1

A payload has at most `trajectory.MAX_FRAMES` frames: of a longer episode every n-th one (`stride`). With `start`, it has
only the frames from that number on, for a client that already has the earlier ones.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import xxhash

from fledge.app.recordings.trajectory import checked_frames, env_config_of, finite, plain, read_track, stride_of, text
from fledge.core.errors import FormatError
from fledge.storage import Recording
from fledge.storage.recordings.episode import Episode
from fledge.tasks.base import Task
from fledge.tasks.view.base import TaskView
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.stage import MAX_SHAPES, Crowd, track_seconds

MAX_ACTORS = 256
MAX_LISTED = 2000  # episodes that a page lists
NOTHING_HIT = 255  # byte of a beam that hits nothing


# facts known from an episode's start on, computed only once, as a live page asks for them repeatedly
_ROWS: WeakKeyDictionary[Episode, dict[str, Any]] = WeakKeyDictionary()  # part of its row in the list
_FLAT: WeakKeyDictionary[Episode, bool] = WeakKeyDictionary()  # whether its stage is a map from above


class EpisodePacker:
    """Collects arrays, and packs them into bytes after a JSON header."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.arrays: dict[str, tuple[str, list[int], int]] = {}
        self.size = 0

    def add(self, name: str, values: np.ndarray) -> str:
        """Add an array, and return its name."""
        whole = "<i2" if values.dtype.itemsize <= 2 else "<f4"
        kind = {"i": whole, "u": "<u1", "b": "<u1"}.get(values.dtype.kind, "<f4")
        data = np.ascontiguousarray(values, dtype=kind).tobytes()
        self.arrays[name] = (kind[1:], list(values.shape), self.size)
        padded = data + bytes(-len(data) % 8)
        self.parts.append(padded)
        self.size += len(padded)
        return name

    def packed(self, head: Mapping[str, Any]) -> bytes:
        """Return the header and the arrays as bytes."""
        data = json.dumps({**head, "arrays": self.arrays}, allow_nan=False, ensure_ascii=True).encode()
        return b"".join([b"EPIS", struct.pack("<I", len(data)), data, bytes(-(8 + len(data)) % 8), *self.parts])


def bounds_of(actors: Sequence[SceneObject]) -> list[list[float]]:
    """Return the lowest and highest x, y and z of all positions, in m, widened by a margin."""
    points = [deep(actor.pos)[np.isfinite(actor.pos).all(axis=1)] for actor in actors]
    found = np.concatenate([np.zeros((0, 3)), *points])
    if not len(found):
        return [[-1.0, -1.0, 0.0], [1.0, 1.0, 1.0]]
    low, high = found.min(axis=0), found.max(axis=0)
    room = max(0.08 * float((high - low).max()), 1.0)
    return [(low - [room, room, 0.0]).tolist(), (high + room).tolist()]


def deep(pos: np.ndarray) -> np.ndarray:
    """Return positions as [T, 3]; a missing height becomes 0."""
    return pos if pos.shape[1] == 3 else np.concatenate([pos, np.zeros((len(pos), 1), pos.dtype)], axis=1)


def pack_actor(packer: EpisodePacker, number: int, actor: SceneObject, frames: int) -> dict[str, Any]:
    """Add an actor's arrays to the packer as "0/pos" and so on for `number` 0; return the actor's entry in the header."""
    if len(actor.pos) not in (1, frames):
        raise ValueError(
            f"{actor.name} has {len(actor.pos)} positions, but must have 1 or {frames}, one for each frame"
        )
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
        "pos": packer.add(f"{number}/pos", np.where(there[:, None], pos, 0.0)),
    }
    if not there.all():
        told["present"] = packer.add(f"{number}/present", there)
    if actor.heading is not None:
        told["heading"] = packer.add(f"{number}/heading", np.nan_to_num(actor.heading))
    if actor.energy is not None:
        told["energy"] = packer.add(f"{number}/energy", np.clip(np.nan_to_num(actor.energy), 0.0, 1.0))
    return told


def pack_crowd(packer: EpisodePacker, crowd: Crowd) -> dict[str, Any]:
    return {
        "seen": None if crowd.seen is None else packer.add("crowd/seen", crowd.seen),
        "ids": packer.add("crowd/ids", crowd.ids.astype(np.int16)),
        "pos": packer.add("crowd/pos", np.nan_to_num(crowd.pos)),
        "sizes": packer.add("crowd/sizes", crowd.sizes),
        "round": packer.add("crowd/round", crowd.round),
    }


def marks_of(actors: Sequence[SceneObject], seconds: np.ndarray) -> list[dict[str, Any]]:
    """Return the marks on the timeline, one for each launch, in order of time."""
    marks: list[dict[str, Any]] = []
    for actor in actors:
        if actor.parent is None or actor.present is None or len(actor.present) != len(seconds):
            continue
        there = actor.present.astype(bool)
        for k in np.flatnonzero(there & ~np.concatenate([[False], there[:-1]])).tolist()[:50]:
            owner = actors[actor.parent].name if actor.parent < len(actors) else ""
            what = text(f"{owner} launches".strip())
            marks.append({"t": finite(seconds[k]), "text": what, "colour": text(actor.colour)})
    return sorted(marks, key=lambda mark: mark["t"])[:200]


def list_episodes(recording: Recording, task: Task) -> dict[str, Any]:
    """Return a recording's facts and the list of its episodes, as JSON-able values; the player asks for this first."""
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
    """Return an episode's row in the list of episodes, as JSON-able values."""
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
        **first_row(episode),
    }


def first_row(episode: Episode) -> dict[str, Any]:
    """Return the part of an episode's row that does not change after the episode has begun."""
    if episode not in _ROWS:
        try:
            scene, facts = episode.scene, plain(episode.facts)
        except FormatError as error:
            scene, facts = {}, {"damaged": text(str(error))}
        row = {"stage": stage_key(scene), "clock_s": finite(scene.get("clock_s", 0.0)), "facts": facts}
        _ROWS[episode] = row
    return _ROWS[episode]


def stage_key(scene: Mapping[str, Any]) -> str | None:
    """Return a hash of a scene's large arrays, equal for episodes on the same map; None if the scene has none."""
    large = {name: v for name, v in scene.items() if isinstance(v, np.ndarray) and v.size > 64}
    if not large:
        return None
    digest = xxhash.xxh3_64()
    for name, value in sorted(large.items()):
        digest.update(f"{name!a} {value.shape} {value.dtype}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def pack_episode(recording: Recording, task: Task, number: int, start: int = 0, with_stage: bool = True) -> bytes:
    """Return the payload of an episode, from frame `start` on.

    Args:
        with_stage: Include the static shapes of the scene.

    Raises:
        FormatError: The frames do not fit the task, or are damaged.
    """
    episode = recording[number]
    running, end = episode.outcome is None, episode.length  # both before the frames, as another request may read more
    track, stride = read_track(recording, episode, start, end)
    with checked_frames(recording.path, task):
        packer = EpisodePacker()
        seconds = track_seconds(track)
        actors = task.view.actors(track)[:MAX_ACTORS]
        crowd, shapes = task.view.crowd(track), None
        if with_stage or episode not in _FLAT:  # a live page asks for more frames on the same stage
            stage = task.view.stage(track.scene)
            _FLAT[episode] = stage.flat
        if with_stage:
            bounds = stage.bounds if stage.bounds is not None else bounds_of(actors)
            shapes = {
                "boxes": packer.add("stage/boxes", stage.boxes[:MAX_SHAPES]),
                "cylinders": packer.add("stage/cylinders", stage.cylinders[:MAX_SHAPES]),
                "bounds": [[finite(x) for x in corner] for corner in bounds],
            }
        head = {
            **episode_row(episode, task),
            "task": text(task.name),
            "label": text(task.metrics.labels.get(track.outcome, track.outcome).replace("_", " ")),
            "seconds_per_frame": recording.seconds_per_frame,
            "running": running,
            "start": start,
            "stride": stride,
            "next": end,
            "frames_here": len(seconds),
            "time": packer.add("time", seconds),
            "stage_shapes": shapes,
            "flat": bool(_FLAT[episode]) or (bool(actors) and all(actor.pos.shape[1] == 2 for actor in actors)),
            "actors": [pack_actor(packer, k, actor, len(seconds)) for k, actor in enumerate(actors)],
            "crowd": None if crowd is None else pack_crowd(packer, crowd),
            "beams": "heading" in track.frames and "lidar" in track.scene,
            "graph": type(task.view).graph is not TaskView.graph,
            "instruments": [
                {
                    "name": text(each.name),
                    "unit": text(each.unit),
                    "values": packer.add(f"figure/{k}", each.values.astype("f4")),
                }
                for k, each in enumerate(task.view.instruments(track))
            ],
            "marks": marks_of(actors, seconds),
        }
        return packer.packed(head)


def pack_beams(recording: Recording, task: Task, number: int, start: int, stop: int) -> bytes:
    """Return the first actor's sensor beams as bytes, for the frames `start` to `stop` (not included) of a payload.

    Each beam is one byte: the distance in steps of range_m / 254, or 255 if the beam hits nothing.
    """
    episode = recording[number]
    whole = episode.recorded == episode.length and stride_of(recording, episode) == 1  # places are frame numbers
    track, _ = read_track(recording, episode, start if whole else 0, stop if whole else None)
    first = 0 if whole else start
    frames = {name: value[first : first + stop - start] for name, value in track.frames.items()}
    with checked_frames(recording.path, task):
        some = bool(frames) and len(next(iter(frames.values()))) > 0
        beams = task.view.beams(replace(track, frames=frames)) if some else None
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
        if beams.tilt is not None:
            head["tilt"] = packer.add("tilt", beams.tilt.astype("f4"))
        if near[0].size == len(beams.azimuths) == len(beams.elevations):
            head["single"] = True  # each ray has its own azimuth and elevation
        return packer.packed({"beams": head})


def frame_graph(recording: Recording, task: Task, number: int, frame: int) -> dict[str, Any] | None:
    """Return the task's graph (`TaskView.graph`) of a frame; None if the task draws none, or no frame was recorded.

    `frame` is an index into the frames of the payload.
    """
    episode = recording[number]
    stride = stride_of(recording, episode)
    nearest = episode.index(frame * stride, frame * stride + 1)
    if not len(nearest):  # this frame was not recorded: take the recorded frame with this index
        nearest = episode.index()[: frame + 1][-1:]
    if not len(nearest):
        return None
    seen = episode.frames(None, int(nearest[0]), int(nearest[0]) + 1)
    with checked_frames(recording.path, task):
        return task.view.graph(env_config_of(recording, task), {name: value[0] for name, value in seen.items()})
