"""Export a recorded episode as JSON: everything that the player shows, as plain lists."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from fledge.app.recordings.episode_payload import pack_episode
from fledge.storage import Recording
from fledge.storage.disk.durable import write_text
from fledge.tasks.base import Task


def export_json(recording: Recording, task: Task, target: Path, episode: int | None = None) -> dict[str, Any]:
    """Write one episode as JSON; return its number, outcome and duration as a dict."""
    data = episode_as_json(recording, task, recording[episode or 0].number)
    write_text(target, json.dumps(data, allow_nan=False))
    return {"episode": data["number"], "outcome": data["outcome"], "seconds": recording[data["number"]].seconds}


def episode_as_json(recording: Recording, task: Task, number: int) -> dict[str, Any]:
    """Return everything that the player shows of an episode, as JSON-able values; NaN and infinities become None."""
    data = pack_episode(recording, task, number)
    length = struct.unpack("<I", data[4:8])[0]
    head = json.loads(data[8 : 8 + length])
    behind = 8 + length + (-(8 + length)) % 8
    arrays = {}
    for name, (kind, shape, offset) in head.pop("arrays").items():
        values = np.frombuffer(data, f"<{kind}", int(np.prod(shape)), behind + offset).reshape(shape)
        known = values.astype(object)
        known[~np.isfinite(values)] = None
        arrays[name] = known.tolist()
    return {**head, "arrays": arrays}
