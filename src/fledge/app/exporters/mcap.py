"""Export a recorded episode as MCAP, for Foxglove and other robotics tools (needs the extra `mcap`).

    /scene          foxglove.SceneUpdate: static obstacles once; actors and moving obstacles in every frame
    /tf             foxglove.FrameTransform: pose of the first actor in the frame "world"
    /instruments    the value of each instrument, by name
    /episode        outcome and facts of the episode, once

Messages are JSON. Time is the episode's own and starts at 0.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fledge.app.recordings.episode_payload import deep, episode_row
from fledge.app.recordings.trajectory import checked_frames, plain, read_track, text
from fledge.core.extras import extra
from fledge.storage import Recording
from fledge.storage.disk.durable import durable_file
from fledge.tasks.base import Task
from fledge.tasks.view.objects import SceneObject
from fledge.tasks.view.stage import Crowd, track_seconds

COLOURS = {"blue": (0.09, 0.4, 0.72), "red": (0.76, 0.25, 0.05), "green": (0.1, 0.5, 0.3), "orange": (0.82, 0.55, 0.07),
           "violet": (0.55, 0.25, 0.69), "grey": (0.6, 0.66, 0.72)}  # fmt: skip
SCHEMAS: dict[str, dict[str, Any]] = {  # by topic
    "/scene": {"title": "foxglove.SceneUpdate", "type": "object",
               "properties": {"deletions": {"type": "array"}, "entities": {"type": "array"}}},
    "/tf": {"title": "foxglove.FrameTransform", "type": "object",
            "properties": {"timestamp": {"type": "object"}, "parent_frame_id": {"type": "string"},
                           "child_frame_id": {"type": "string"}, "translation": {"type": "object"},
                           "rotation": {"type": "object"}}},
    "/instruments": {"title": "fledge.Instruments", "type": "object", "additionalProperties": {"type": "number"}},
    "/episode": {"title": "fledge.Episode", "type": "object"},
}  # fmt: skip
Message = tuple[str, float, dict[str, Any]]


def export_mcap(recording: Recording, task: Task, target: Path, episode: int | None = None) -> dict[str, Any]:
    """Write one episode as MCAP, and return key figures of the episode.

    Raises:
        ConfigError: The extra `mcap` is not installed.
    """
    with extra("mcap"):
        from mcap.writer import Writer
    chosen = recording[episode or 0]
    track, _ = read_track(recording, chosen, 0)
    stream = io.BytesIO()
    with checked_frames(recording.path, task):
        stage = task.view.stage(track.scene)
        seconds, actors, crowd = track_seconds(track), task.view.actors(track), task.view.crowd(track)
        instruments = {text(each.name): each.values for each in task.view.instruments(track)}
        messages: list[Message] = [
            ("/episode", 0.0, {**episode_row(chosen, task), "recording": plain(recording.facts)}),
            (
                "/scene",
                0.0,
                {"deletions": [], "entities": [solids("stage", 0.0, stage.boxes, stage.cylinders, "grey")]},
            ),
            *moments(seconds, actors, crowd, instruments),
        ]
        writer = Writer(stream)
        writer.start("", "fledge")
        channels = {}
        for topic, schema in SCHEMAS.items():
            data = json.dumps(schema).encode()
            id = writer.register_schema(name=schema["title"], encoding="jsonschema", data=data)
            channels[topic] = writer.register_channel(topic=topic, message_encoding="json", schema_id=id)
        for topic, at, told in messages:
            stamp = round(at * 1e9)
            data = json.dumps(told, allow_nan=False).encode()
            writer.add_message(channels[topic], log_time=stamp, publish_time=stamp, data=data)
        writer.finish()
    with durable_file(target) as file:
        file.write(stream.getvalue())
    figures = {"episode": chosen.number, "outcome": chosen.outcome or "running", "seconds": chosen.seconds}
    return {**figures, "messages": len(messages)}


def moments(
    seconds: np.ndarray, actors: Sequence[SceneObject], crowd: Crowd | None, instruments: dict[str, np.ndarray]
) -> Iterator[Message]:
    """Yield the MCAP messages of every frame, in order of time."""
    first = next((actor for actor in actors if len(actor.pos) == len(seconds)), None)
    for k, at in enumerate(seconds.tolist()):
        entities = [moving(actor, k, at) for actor in actors]
        if crowd is not None:
            ids = crowd.ids[k][crowd.ids[k] >= 0]
            rows = np.concatenate([crowd.pos[k][crowd.ids[k] >= 0], crowd.sizes[ids]], axis=1)
            tall = crowd.round[ids].astype(bool)
            entities.append(solids("movers", at, rows[~tall], rows[tall], "orange"))
        yield "/scene", at, {"deletions": [], "entities": entities}
        figures = {name: float(values[k]) for name, values in instruments.items()}
        yield "/instruments", at, {name: value for name, value in figures.items() if math.isfinite(value)}
        if first is not None and np.isfinite(first.pos[k]).all():
            told = {"timestamp": stamp_of(at), "parent_frame_id": "world", "child_frame_id": text(first.name)}
            yield "/tf", at, {**told, "translation": point(deep(first.pos[k : k + 1])[0]), "rotation": turn(first, k)}


def entity_head(name: str, at: float) -> dict[str, Any]:
    return {"id": name, "timestamp": stamp_of(at), "frame_id": "world", "lifetime": {"sec": 0, "nsec": 0}}


def moving(actor: SceneObject, k: int, at: float) -> dict[str, Any]:
    """Return an actor in frame k as a scene entity: a sphere for a goal, an arrow for other actors.

    The entity has no shape if the actor is not in the scene in that frame.
    """
    row = min(k, len(actor.pos) - 1)
    there = np.isfinite(actor.pos[row]).all() and (actor.present is None or bool(actor.present[row]))
    told = entity_head(text(actor.name), at)
    if not there:
        return {**told, "arrows": []}
    place = point(deep(actor.pos[row : row + 1])[0])
    size = actor.size_m or 100.0
    if actor.kind == "goal":
        ball = {"pose": {"position": place, "orientation": turn()}, "size": point([size] * 3)}
        return {**told, "spheres": [{**ball, "color": colour(actor.colour, 0.4)}]}
    arrow = {"pose": {"position": place, "orientation": turn(actor, row)}, "color": colour(actor.colour)}
    arrow |= {"shaft_length": size * 0.6, "shaft_diameter": size * 0.3}
    return {**told, "arrows": [{**arrow, "head_length": size * 0.4, "head_diameter": size * 0.6}]}


def solids(name: str, at: float, boxes: np.ndarray, cylinders: np.ndarray, shade: str) -> dict[str, Any]:
    """Return boxes and upright cylinders, [n, 6] m (centre, then size), as one scene entity."""

    def solid(row: np.ndarray, **ends: float) -> dict[str, Any]:
        pose = {"position": point(row[:3]), "orientation": turn()}
        return {"pose": pose, "size": point(row[3:]), "color": colour(shade), **ends}

    tall = [solid(row, bottom_scale=1.0, top_scale=1.0) for row in cylinders]
    return {**entity_head(name, at), "cubes": [solid(row) for row in boxes], "cylinders": tall}


def stamp_of(at: float) -> dict[str, int]:
    stamp = round(at * 1e9)
    return {"sec": stamp // 10**9, "nsec": stamp % 10**9}


def point(row: Sequence[float] | np.ndarray) -> dict[str, float]:
    return {axis: float(value) for axis, value in zip("xyz", row, strict=True)}


def turn(actor: SceneObject | None = None, k: int = 0) -> dict[str, float]:
    """Return an actor's heading in frame k as a quaternion; the identity if there is no actor or no heading."""
    heading = 0.0 if actor is None or actor.heading is None else float(actor.heading[k])
    return {"x": 0.0, "y": 0.0, "z": math.sin(heading / 2), "w": math.cos(heading / 2)}


def colour(name: str, alpha: float = 1.0) -> dict[str, float]:
    return dict(zip("rgba", (*COLOURS.get(name, (0.5, 0.5, 0.5)), alpha), strict=True))
