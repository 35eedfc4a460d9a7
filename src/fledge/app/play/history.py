"""The history of a fight: frames as rows of numbers, complete states to continue from, and saving it as a recording."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fledge.agents.base import Action
from fledge.app.play.seats import Seat
from fledge.core.settings import flat_settings
from fledge.storage.recordings.writer import RecordingWriter

if TYPE_CHECKING:
    from fledge.app.play.session import Fight


@dataclass
class Checkpoint:
    """The complete state at the beginning of a tick."""

    tick: int
    env: dict[str, Any]
    obs: dict[str, torch.Tensor]
    seats: list[Seat]
    memories: list[dict[str, Any]]
    held: list[Action | None]
    due: list[int]
    change: bool  # a seat changed here, so later commands come from another pilot


@dataclass
class Ending:
    """The outcomes of a fight, one for each side, and its last tick."""

    outcomes: list[str]
    tick: int


@dataclass
class Layout:
    """The order of a frame's fields in its row of numbers."""

    shapes: dict[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.width = sum(self.sizes)

    def pack(self, frame: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return a frame as one row, float32."""
        return np.concatenate([np.ravel(frame[name]).astype(np.float32) for name in self.shapes])

    def unpack(self, row: np.ndarray) -> dict[str, np.ndarray]:
        """Return the frame of a row; flags and counts are float32 as well."""
        parts = np.split(row, np.cumsum(self.sizes)[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}


def save_fight(fight: Fight, path: Path) -> None:
    """Write the history of a fight."""
    frames = [fight.layout.unpack(row) for row in fight.frames]
    kinds = {name: value.dtype for name, value in fight.look().items()}
    stacked = {n: np.stack([frame[n] for frame in frames]).astype(kinds[n]) for n in fight.layout.shapes}
    first = {name: value[0] for name, value in stacked.items()}
    names = [seat.name for seat in fight.seats]
    settings = json.loads(json.dumps(flat_settings(fight.cfg), default=str))
    facts = {"policies": names, "policy": names[0], "seed": fight.seed, "settings": settings}
    writer = RecordingWriter(
        path, fight.task.reference, first, fight.tick_s, facts=facts, when_full="wait", max_episodes=1
    )
    try:
        number = writer.begin(fight.scene)
        writer.add_many(number, stacked)
        outcome = fight.over.outcomes[0] if fight.over is not None else "running"
        writer.end(number, outcome=outcome, total_return=0.0)
    finally:
        writer.close()
