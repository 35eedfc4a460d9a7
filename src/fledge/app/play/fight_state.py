"""State of a fight: who flies each side, a person's controls, saved states to return to, and frames as rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fledge.agents.base import Action, BaseAgent
from fledge.tasks.view.controls import Control


@dataclass(eq=False)
class Seat:
    """The pilot of a side: an agent, or a person (`agent` is None)."""

    name: str
    agent: BaseAgent | None = None
    decision_s: float = 1.0

    def __post_init__(self) -> None:
        self._fresh = {} if self.agent is None else self.agent.episode_state()

    def begin(self) -> None:
        """Reset the agent's memory and random stream for a new fight."""
        if self.agent is not None:
            self.agent.reset()
            self.agent.load_episode_state(self._fresh)


class Hands:
    """The positions of a person's controls."""

    def __init__(self, controls: Sequence[Control]) -> None:
        self.controls = {control.name: control for control in controls}
        self.values = {control.name: control.rest for control in controls}

    def put(self, values: Mapping[str, Any]) -> None:
        """Set controls, clamped to their limits; ignore unknown names, and release controls whose value is not a number."""
        for name, value in values.items():
            if (control := self.controls.get(name)) is not None:
                self.values[name] = control.clamp(value)

    def take(self) -> dict[str, float]:
        """Return the positions of all controls for this tick, and release the buttons."""
        asked = dict(self.values)
        for control in self.controls.values():
            if control.kind == "button":
                self.values[control.name] = control.rest
        return asked


@dataclass
class Checkpoint:
    """Complete state of a fight at the beginning of a tick, to which `Fight.rewind` can return."""

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
    """The order of a frame's fields when the frame is stored as one row of numbers."""

    shapes: dict[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.width = sum(self.sizes)

    def pack(self, frame: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return a frame as one row, float32: the values of all fields, flattened, in the order of `shapes`."""
        return np.concatenate([np.ravel(frame[name]).astype(np.float32) for name in self.shapes])

    def unpack(self, row: np.ndarray) -> dict[str, np.ndarray]:
        """Return the frame that `pack` turned into a row; all fields are float32, also flags and counts."""
        parts = np.split(row, np.cumsum(self.sizes)[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
