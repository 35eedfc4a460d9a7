"""Moving objects of a recorded episode, for export to other programs: aircraft, drones, missiles.

`objects_in`, the default of `TaskView.objects`, makes them from every entry of the frames named `pos` or `..._pos`:

    pos          [T, 3] one thing          [T, M, 3] M of them          [T, M, S, 3] S that belong to each of M
    heading      one axis less: rad, counter-clockwise from +x          (missile_heading for missile_pos)
    alive        the same axes: whether it exists in that frame         (missile_alive)
    energy       the same axes: share of its energy left, 0 to 1        (missile_energy)

Two coordinates in place of three mean no altitude. An object is absent where its position is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from fledge.tasks.view.trajectory import Trajectory

Kind = Literal["aircraft", "drone", "missile", "obstacle", "goal"]
COLOURS = ("blue", "red", "green", "orange", "violet")
MAX_OBJECTS = 1000  # per entry of the frames


@dataclass
class SceneObject:
    """One object in an episode of T frames; positions in metres, x east, y north, z up."""

    name: str
    pos: np.ndarray  # [T, 3] or [T, 2]; [1, 3] if the object never moves
    kind: Kind = "aircraft"
    colour: str = "blue"  # one of COLOURS
    heading: np.ndarray | None = None  # [T] rad, counter-clockwise from +x; None: unknown
    present: np.ndarray | None = None  # [T] bool; None: always. After a gap it counts as a new object
    parent: int | None = None  # index of the object that launched it
    size_m: float | None = None  # true diameter; None: drawn large enough to be seen
    energy: np.ndarray | None = None  # [T] share of its energy left, 0 to 1; None: unknown
    destroyed: bool = (
        False  # whether the end of the episode destroyed it; for objects that vanish earlier, the kind decides
    )


def objects_in(track: Trajectory) -> list[SceneObject]:
    """Return an object for every recorded position entry; owners come before the objects that belong to them."""
    found: list[SceneObject] = []
    for entry in sorted((name for name in track.frames if name == "pos" or name.endswith("_pos")), key=len):
        found += _objects_of(track.frames, entry.removesuffix("pos"), len(found))
    return found


def _objects_of(frames: Mapping[str, np.ndarray], prefix: str, known: int) -> list[SceneObject]:
    pos = frames[f"{prefix}pos"]
    if pos.ndim < 2 or pos.shape[-1] not in (2, 3) or math.prod(pos.shape[1:-1]) > MAX_OBJECTS:
        return []
    axes, missile = pos.shape[1:-1], bool(prefix)
    found = []
    for place in np.ndindex(axes):
        side, at = place[0] if place else 0, (slice(None), *place)
        noun = prefix.rstrip("_") or "thing"
        found.append(
            SceneObject(
                name=" ".join([noun, *(str(k + 1) for k in place)]),
                pos=pos[at],
                kind="missile" if missile else "aircraft",
                colour=COLOURS[side % len(COLOURS)],
                heading=_like(frames.get(f"{prefix}heading"), pos, at),
                present=_present(frames.get(f"{prefix}alive"), pos, at),
                parent=side if missile and side < known else None,
                energy=_like(frames.get(f"{prefix}energy"), pos, at),
            )
        )
    return found


def _like(values: Any, pos: np.ndarray, at: tuple[Any, ...]) -> np.ndarray | None:
    """Return the entry at index `at` of `values`; None unless `values` has one number for each position in `pos`."""
    return values[at] if isinstance(values, np.ndarray) and values.shape == pos.shape[:-1] else None


def _present(alive: Any, pos: np.ndarray, at: tuple[Any, ...]) -> np.ndarray:
    there = np.isfinite(pos[at]).all(axis=-1)
    told = _like(alive, pos, at)
    return there if told is None else there & (told != 0)
