"""The parts of an episode payload: arrays after a header, a task's stage and actors, harmless text and numbers."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fledge.tasks.base import Task
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.stage import MAX_SHAPES, Crowd, Stage
from fledge.tasks.view.trajectory import Trajectory

MAX_TEXT = 200
KINDS = {"f": "<f4", "i": "<i2", "u": "<u1", "b": "<u1"}


class EpisodePacker:
    """Collects arrays, and writes them after a JSON header."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.arrays: dict[str, tuple[str, list[int], int]] = {}
        self.size = 0

    def add(self, name: str, values: np.ndarray) -> str:
        """Add an array, and return its name."""
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
        """Return the header and the arrays as bytes."""
        data = json.dumps({**head, "arrays": self.arrays}, allow_nan=False, ensure_ascii=True).encode()
        return b"".join([b"EPIS", struct.pack("<I", len(data)), data, bytes(-(8 + len(data)) % 8), *self.parts])


def pack_stage(packer: EpisodePacker, stage: Stage, actors: Sequence[SceneObject]) -> dict[str, Any]:
    bounds = stage.bounds if stage.bounds is not None else bounds_of(actors)
    return {
        "boxes": packer.add("stage/boxes", stage.boxes[:MAX_SHAPES]),
        "cylinders": packer.add("stage/cylinders", stage.cylinders[:MAX_SHAPES]),
        "bounds": [[number(x) for x in corner] for corner in bounds],
    }


def bounds_of(actors: Sequence[SceneObject]) -> list[list[float]]:
    """Return the bounds of all positions, with a margin."""
    points = [deep(actor.pos)[np.isfinite(actor.pos).all(axis=1)] for actor in actors]
    found = np.concatenate([np.zeros((0, 3)), *points])
    if not len(found):
        return [[-1.0, -1.0, 0.0], [1.0, 1.0, 1.0]]
    low, high = found.min(axis=0), found.max(axis=0)
    room = max(0.08 * float((high - low).max()), 1.0)
    return [(low - [room, room, 0.0]).tolist(), (high + room).tolist()]


def is_flat(stage_flat: bool | None, actors: Sequence[SceneObject]) -> bool:
    """Return whether an episode is shown as a map from above."""
    return bool(stage_flat) or (bool(actors) and all(actor.pos.shape[1] == 2 for actor in actors))


def deep(pos: np.ndarray) -> np.ndarray:
    """Return positions with a height, [T, 3]."""
    return pos if pos.shape[1] == 3 else np.concatenate([pos, np.zeros((len(pos), 1), pos.dtype)], axis=1)


def pack_actor(packer: EpisodePacker, place: int, actor: SceneObject, frames: int) -> dict[str, Any]:
    """Return an actor's part of the header."""
    if len(actor.pos) not in (1, frames):
        raise ValueError(f"{actor.name} has {len(actor.pos)} positions for {frames} frames")
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
        "pos": packer.add(f"{place}/pos", np.where(there[:, None], pos, 0.0)),
    }
    if not there.all():
        told["present"] = packer.add(f"{place}/present", there)
    if actor.heading is not None:
        told["heading"] = packer.add(f"{place}/heading", np.nan_to_num(actor.heading))
    if actor.energy is not None:
        told["energy"] = packer.add(f"{place}/energy", np.clip(np.nan_to_num(actor.energy), 0.0, 1.0))
    return told


def pack_crowd(packer: EpisodePacker, crowd: Crowd | None) -> dict[str, Any] | None:
    if crowd is None:
        return None
    return {
        "seen": None if crowd.seen is None else packer.add("crowd/seen", crowd.seen),
        "ids": packer.add("crowd/ids", crowd.ids.astype(np.int16)),
        "pos": packer.add("crowd/pos", np.nan_to_num(crowd.pos)),
        "sizes": packer.add("crowd/sizes", crowd.sizes),
        "round": packer.add("crowd/round", crowd.round),
    }


def pack_instruments(packer: EpisodePacker, task: Task, track: Trajectory) -> list[dict[str, Any]]:
    found = task.view.instruments(track)
    return [
        {
            "name": text(each.name),
            "unit": text(each.unit),
            "values": packer.add(f"figure/{k}", each.values.astype("f4")),
        }
        for k, each in enumerate(found)
    ]


def marks_of(actors: Sequence[SceneObject], seconds: np.ndarray) -> list[dict[str, Any]]:
    """Return marks for the timeline: the launches."""
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


# ---- text and numbers of recordings, which may come from strangers -----------------------------------------------------


def text(value: Any) -> str:
    """Return a value as printable text of limited length."""
    return "".join(char if char.isprintable() else "?" for char in str(value)[:MAX_TEXT])


def number(value: Any) -> float:
    """Return a value as a finite number, 0 if it is none."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return 0.0
    return found if math.isfinite(found) else 0.0


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return those facts that are text or finite numbers."""
    kept: dict[str, Any] = {}
    for key, value in list(facts.items())[:40]:
        if isinstance(value, str):
            kept[text(key)] = text(value)
        elif isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            kept[text(key)] = value
    return kept
