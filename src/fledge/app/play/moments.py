"""Moments of a fight: what is to be seen of one as a row of numbers, and all that decides what comes after it."""

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
class Kept:
    """Everything that decides the future, at the beginning of a tick."""

    tick: int
    env: dict[str, Any]
    obs: dict[str, torch.Tensor]
    seats: list[Seat]
    memories: list[dict[str, Any]]
    held: list[Action | None]
    due: list[int]
    change: bool  # somebody sat down here: later commands are another's


@dataclass
class Ending:
    """How a fight ended, for each side."""

    outcomes: list[str]
    tick: int


@dataclass
class Layout:
    """Where the entries of a frame stand in its row of numbers."""

    shapes: dict[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        self.sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.width = sum(self.sizes.values())

    def pack(self, frame: Mapping[str, np.ndarray]) -> np.ndarray:
        """A frame as one row, float32."""
        return np.concatenate([np.ravel(frame[name]).astype(np.float32) for name in self.shapes])

    def unpack(self, row: np.ndarray) -> dict[str, np.ndarray]:
        """The frame again; flags and counts have become numbers."""
        frame, at = {}, 0
        for name, shape in self.shapes.items():
            size = self.sizes[name]
            frame[name] = row[at : at + size].reshape(shape)
            at += size
        return frame
