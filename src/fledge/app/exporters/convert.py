"""Recordings for people without Fledge: a page, MCAP, or plain JSON of one episode."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from fledge.app.episode_payload import make_film, task_of
from fledge.core.errors import ConfigError
from fledge.storage import Recording
from fledge.storage.disk.durable import write_text
from fledge.tasks.base import Task
from fledge.tasks.registry import find_task

ENDINGS = (".html", ".mcap", ".json")


def convert_for_viewers(source: Path, target: Path, episode: int | None, task: str | None) -> dict[str, Any]:
    """Write what the ending of `target` says, and return figures of it.

    Args:
        episode: Which one; by default as many as fit for a page, and the first for .mcap and .json.
        task: Reference of the task, where it is code.
    """
    with Recording(source) as recording:
        if not len(recording):
            raise ConfigError(f"{source} holds no episodes (yet): there is nothing to convert.")
        known = task_of(recording, find_task(task) if task else None)
        done: dict[str, Any] = {"source": str(source), "target": str(target), "episodes": len(recording)}
        if target.suffix == ".html":
            from fledge.app.exporters.html import export_page

            return done | export_page(recording, known, target, episode)
        number = recording[episode or 0].number
        told = {"episode": number, "outcome": recording[number].outcome or "running"}
        told |= {"seconds": recording[number].seconds}
        if target.suffix == ".mcap":
            from fledge.app.exporters.mcap import export_mcap

            return done | told | export_mcap(recording, known, target, number)
        write_text(target, json.dumps(film_as_json(recording, known, number), allow_nan=False))
        return done | told | {"bytes": target.stat().st_size}


def film_as_json(recording: Recording, task: Task, number: int) -> dict[str, Any]:
    """All that the page shows of an episode, in plain lists; a number that JSON has not is null."""
    data = make_film(recording, task, number)
    length = struct.unpack("<I", data[4:8])[0]
    head = json.loads(data[8 : 8 + length])
    behind = 8 + length + (-(8 + length)) % 8
    arrays = {}
    for name, (kind, shape, offset) in head.pop("arrays").items():
        count = int(np.prod(shape))
        values = np.frombuffer(data, f"<{kind}", count, behind + offset).reshape(shape)
        known = values.astype(object)
        known[~np.isfinite(values)] = None
        arrays[name] = known.tolist()
    return {**head, "arrays": arrays}
