"""Saving a fight as a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fledge.core.settings import flat_settings
from fledge.storage.recordings.writer import RecordingWriter

if TYPE_CHECKING:
    from fledge.app.play.session import Fight


def facts_of(fight: Fight) -> dict[str, Any]:
    """Return the facts of a fight's recording."""
    return {
        "policies": [seat.name for seat in fight.seats],
        "policy": fight.seats[0].name,
        "seed": fight.seed,
        "settings": json.loads(json.dumps(flat_settings(fight.cfg), default=str)),
    }


def save_fight(fight: Fight, path: Path) -> None:
    """Write the history of a fight."""
    frames = [fight.layout.unpack(row) for row in fight.frames]
    kinds = {name: value.dtype for name, value in fight.look().items()}
    stacked = {n: np.stack([frame[n] for frame in frames]).astype(kinds[n]) for n in fight.layout.shapes}
    first = {name: value[0] for name, value in stacked.items()}
    writer = RecordingWriter(
        path, fight.task.reference, first, fight.tick_s, facts=facts_of(fight), when_full="wait", max_episodes=1
    )
    try:
        number = writer.begin(fight.scene)
        writer.add_many(number, stacked)
        outcome = fight.over.outcomes[0] if fight.over is not None else "running"
        writer.end(number, outcome=outcome, total_return=0.0)
    finally:
        writer.close()
