"""Parts of an episode that the browser, static pages and MCAP files draw: shapes, moving obstacles, sensor readings, numbers.

Lengths are metres, x east, y north, z up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fledge.tasks.view.objects import SceneObject
    from fledge.tasks.view.trajectory import Trajectory

MAX_SHAPES = 20_000  # of one kind that a page draws
MAX_INSTRUMENTS = 24


def no_shapes() -> np.ndarray:
    return np.zeros((0, 6), np.float32)


@dataclass
class Stage:
    """Static shapes of an episode."""

    boxes: np.ndarray = field(default_factory=no_shapes)  # [B, 6] m: centre, then size along x, y, z
    cylinders: np.ndarray = field(default_factory=no_shapes)  # [C, 6] m: as boxes; upright
    bounds: Sequence[Sequence[float]] | None = None  # lowest and highest corner; None: the extent of the motion
    flat: bool = False  # a map from above, without heights
    clock_s: float = 0.0  # when the episode began, by the env's clock: episodes of one stage are shown together
    goal_radius_m: float = 0.0


@dataclass
class Crowd:
    """Moving obstacles in T frames, at most K obstacles per frame."""

    ids: np.ndarray  # [T, K] int: index of the obstacle; -1: none
    pos: np.ndarray  # [T, K, 3] m
    sizes: np.ndarray  # [M, 3] m: size along x, y, z, by index
    round: np.ndarray  # [M] bool: an upright cylinder, else a box
    seen: np.ndarray | None = None  # [T, K] bool: whether the first actor observes it; None: unknown


@dataclass
class Beams:
    """Readings of the first actor's ranging sensor in T frames, at H azimuths and V elevations.

    If azimuths and elevations both have H * V numbers, they are those of each ray.
    """

    azimuths: np.ndarray  # [H] or [H * V] rad, counter-clockwise from where the actor heads
    elevations: np.ndarray  # [V] or [H * V] rad
    range_m: float
    distance: np.ndarray  # [T, H, V] m; range_m: nothing was hit
    tilt: np.ndarray | None = None  # [T, 2] rad: roll and pitch by which the rays are turned; None: upright


@dataclass
class Instrument:
    """A number over time, one value for each of T frames."""

    name: str
    values: np.ndarray  # [T]
    unit: str = ""


def numbers_in(track: Trajectory) -> list[Instrument]:
    """Return an instrument for every recorded number, and for each component of vectors of at most 8 numbers."""
    found = []
    for name, values in track.frames.items():
        if name == "pos" or name.endswith(("_pos", "_id")) or values.dtype.kind not in "fiu":
            continue
        rows = values.reshape(len(values), -1)
        if rows.shape[1] > 8:
            continue
        label, unit = split_unit(name)
        many = rows.shape[1] > 1
        found += [Instrument(f"{label} {k + 1}" if many else label, rows[:, k], unit) for k in range(rows.shape[1])]
    return found[:MAX_INSTRUMENTS]


def motion_of(actors: Sequence[SceneObject], seconds: np.ndarray) -> list[Instrument]:
    """Return speed and height of the first actor that has a position in every frame."""
    first = next((actor for actor in actors if len(actor.pos) == len(seconds) > 1), None)
    if first is None:
        return []
    step = np.maximum(np.diff(seconds), 1e-9)
    speed = np.linalg.norm(np.diff(first.pos, axis=0), axis=1) / step
    shown = [Instrument("speed", np.concatenate([speed[:1], speed]), "m/s")]
    if first.pos.shape[1] == 3:
        shown.append(Instrument("height", first.pos[:, 2], "m"))
    return shown


def split_unit(name: str) -> tuple[str, str]:
    """Return the label and the unit of a field's name: ("wind speed", "m/s") for "wind_speed_mps"."""
    units = {"s": "s", "m": "m", "deg": "°", "rad": "rad", "mps": "m/s"}
    stem, mark, ending = name.rpartition("_")
    unit = units.get(ending, "") if mark else ""
    return (stem if unit else name).replace("_", " "), unit


def track_seconds(track: Trajectory) -> np.ndarray:
    """Return the time of each frame of an episode since its start, [T] s."""
    count = len(next(iter(track.frames.values()), ()))
    index: Any = track.facts.get("index")
    numbers = np.arange(count) if index is None else np.asarray(index)
    return numbers * float(track.facts.get("seconds_per_frame", 1.0))
