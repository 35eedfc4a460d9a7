"""Moments of a fight: frames as rows of numbers, and the complete state to continue from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fledge.agents.base import Action
from fledge.app.play.seats import Seat


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
        self.sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.width = sum(self.sizes.values())

    def pack(self, frame: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return a frame as one row, float32."""
        return np.concatenate([np.ravel(frame[name]).astype(np.float32) for name in self.shapes])

    def unpack(self, row: np.ndarray) -> dict[str, np.ndarray]:
        """Return the frame of a row; flags and counts are float32 as well."""
        frame, at = {}, 0
        for name, shape in self.shapes.items():
            size = self.sizes[name]
            frame[name] = row[at : at + size].reshape(shape)
            at += size
        return frame
