"""A recorded episode as MCAP, for Foxglove and other robotics tools (extra `mcap`).

    /scene          foxglove.SceneUpdate: columns once; actors and moving obstacles in every frame
    /tf             foxglove.FrameTransform: pose of the first actor in the frame "world"
    /instruments    one number by the name of each instrument
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
from fledge.tasks.view.stage import Crowd, Stage, track_seconds

COLOURS = {"blue": (0.09, 0.4, 0.72), "red": (0.76, 0.25, 0.05), "green": (0.1, 0.5, 0.3), "orange": (0.82, 0.55, 0.07),
           "violet": (0.55, 0.25, 0.69)}  # fmt: skip
SCENE = {"title": "foxglove.SceneUpdate", "type": "object",
         "properties": {"deletions": {"type": "array"}, "entities": {"type": "array"}}}  # fmt: skip
TRANSFORM = {"title": "foxglove.FrameTransform", "type": "object",
             "properties": {"timestamp": {"type": "object"}, "parent_frame_id": {"type": "string"},
                            "child_frame_id": {"type": "string"}, "translation": {"type": "object"},
                            "rotation": {"type": "object"}}}  # fmt: skip
FIGURES = {"title": "fledge.Instruments", "type": "object", "additionalProperties": {"type": "number"}}
EPISODE = {"title": "fledge.Episode", "type": "object"}
Message = tuple[str, float, dict[str, Any]]


def export_mcap(recording: Recording, task: Task, target: Path, episode: int | None = None) -> dict[str, Any]:
    """Write one episode, and return figures of the file.

    Raises:
        ConfigError: The extra `mcap` is not installed.
    """
    with extra("mcap"):
        from mcap.writer import Writer
    chosen = recording[episode or 0]
    track, _ = read_track(recording, chosen, 0)
    count = 0
    with checked_frames(recording.path, task):
        seconds, actors, crowd = track_seconds(track), task.view.actors(track), task.view.crowd(track)
        instruments = {text(each.name): each.values for each in task.view.instruments(track)}
        head = {**episode_row(chosen, task), "recording": plain(recording.facts)}
        messages = [
            ("/episode", 0.0, head),
            ("/scene", 0.0, {"deletions": [], "entities": still(task.view.stage(track.scene))}),
        ]
        target.parent.mkdir(parents=True, exist_ok=True)
        stream = io.BytesIO()
        writer = Writer(stream)
        writer.start("", "fledge")
        channels = register(writer)
        for topic, at, told in [*messages, *moments(seconds, actors, crowd, instruments)]:
            stamp = round(at * 1e9)
            data = json.dumps(told, allow_nan=False).encode()
            writer.add_message(channels[topic], log_time=stamp, publish_time=stamp, data=data)
            count += 1
        writer.finish()
        with durable_file(target) as file:
            file.write(stream.getvalue())
    figures = {"episode": chosen.number, "outcome": chosen.outcome or "running", "seconds": chosen.seconds}
    return {**figures, "messages": count}


def register(writer: Any) -> dict[str, int]:
    """Register the schemas, and return channel ids by topic."""
    kinds: dict[str, dict[str, Any]] = {"/scene": SCENE, "/tf": TRANSFORM, "/instruments": FIGURES, "/episode": EPISODE}
    found = {}
    for topic, schema in kinds.items():
        name = schema["title"]
        id = writer.register_schema(name=name, encoding="jsonschema", data=json.dumps(schema).encode())
        found[topic] = writer.register_channel(topic=topic, message_encoding="json", schema_id=id)
    return found


def moments(
    seconds: np.ndarray, actors: Sequence[SceneObject], crowd: Crowd | None, instruments: dict[str, np.ndarray]
) -> Iterator[Message]:
    """Yield the messages of every frame."""
    for k, at in enumerate(seconds.tolist()):
        entities = [moving(actor, k, at) for actor in actors]
        if crowd is not None:
            entities.append({**entity_head("movers", at), "cubes": cubes(crowd, k, False)})
            entities[-1]["cylinders"] = cubes(crowd, k, True)
        yield "/scene", at, {"deletions": [], "entities": entities}
        figures = {name: float(values[k]) for name, values in instruments.items()}
        yield "/instruments", at, {name: value for name, value in figures.items() if math.isfinite(value)}
        first = next((actor for actor in actors if len(actor.pos) == len(seconds)), None)
        if first is not None and np.isfinite(first.pos[k]).all():
            heading = float(first.heading[k]) if first.heading is not None else 0.0
            told = {"timestamp": stamp_of(at), "parent_frame_id": "world", "child_frame_id": text(first.name)}
            yield "/tf", at, {**told, "translation": point(deep(first.pos[k : k + 1])[0]), "rotation": turn(heading)}


def entity_head(name: str, at: float) -> dict[str, Any]:
    return {"id": name, "timestamp": stamp_of(at), "frame_id": "world", "lifetime": {"sec": 0, "nsec": 0}}


def moving(actor: SceneObject, k: int, at: float) -> dict[str, Any]:
    """Return an actor as a sphere (a goal) or an arrow; without shapes while it is absent."""
    row = min(k, len(actor.pos) - 1)
    there = np.isfinite(actor.pos[row]).all() and (actor.present is None or bool(actor.present[row]))
    told = entity_head(text(actor.name), at)
    if not there:
        return {**told, "arrows": []}
    place = point(deep(actor.pos[row : row + 1])[0])
    size = actor.size_m or 100.0
    if actor.kind == "goal":
        ball = {"pose": pose(place), "size": {"x": size, "y": size, "z": size}, "color": colour(actor.colour, 0.4)}
        return {**told, "spheres": [ball]}
    heading = float(actor.heading[row]) if actor.heading is not None else 0.0
    shape = {
        "shaft_length": size * 0.6,
        "shaft_diameter": size * 0.3,
        "head_length": size * 0.4,
        "head_diameter": size * 0.6,
    }
    return {**told, "arrows": [{"pose": pose(place, heading), **shape, "color": colour(actor.colour)}]}


def still(stage: Stage) -> list[dict[str, Any]]:
    """Return the static shapes as one entity."""

    def shapes(rows: np.ndarray) -> list[dict[str, Any]]:
        grey = {"r": 0.6, "g": 0.66, "b": 0.72, "a": 1.0}
        return [{"pose": pose(point(row[:3])), "size": point(row[3:]), "color": grey} for row in rows]

    told = {**entity_head("stage", 0.0), "cubes": shapes(stage.boxes)}
    return [
        {**told, "cylinders": [{**each, "bottom_scale": 1.0, "top_scale": 1.0} for each in shapes(stage.cylinders)]}
    ]


def cubes(crowd: Crowd, k: int, tall: bool) -> list[dict[str, Any]]:
    """Return the moving obstacles of one shape, cylinders if `tall`, in a frame."""
    found = []
    for id, place in zip(crowd.ids[k].tolist(), crowd.pos[k], strict=True):
        if id >= 0 and bool(crowd.round[id]) == tall:
            shape = {"pose": pose(point(place)), "size": point(crowd.sizes[id]), "color": colour("orange")}
            found.append({**shape, "bottom_scale": 1.0, "top_scale": 1.0} if tall else shape)
    return found


def stamp_of(at: float) -> dict[str, int]:
    stamp = round(at * 1e9)
    return {"sec": stamp // 10**9, "nsec": stamp % 10**9}


def point(row: Sequence[float] | np.ndarray) -> dict[str, float]:
    return {axis: float(value) for axis, value in zip("xyz", row, strict=True)}


def turn(heading: float) -> dict[str, float]:
    return {"x": 0.0, "y": 0.0, "z": math.sin(heading / 2), "w": math.cos(heading / 2)}


def pose(place: dict[str, float], heading: float = 0.0) -> dict[str, Any]:
    return {"position": place, "orientation": turn(heading)}


def colour(name: str, alpha: float = 1.0) -> dict[str, float]:
    r, g, b = COLOURS.get(name, (0.5, 0.5, 0.5))
    return {"r": r, "g": g, "b": b, "a": alpha}
