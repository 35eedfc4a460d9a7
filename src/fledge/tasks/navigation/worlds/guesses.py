"""Guesses about a file: its unit, its up axis, points far outside, and ground. Each adds a sentence to the world's notes."""

from __future__ import annotations

import math

import numpy as np

UNITS = {1.0: "metres", 0.01: "centimetres", 0.001: "millimetres"}
ROOM_HEIGHT_M = 3.0
MAX_HEIGHT = 40.0  # a file with at most this vertical extent is in metres
SAMPLE = 1_000_000  # points from which percentiles are taken
OUTSIDE = 0.001  # share of the points at either end of an axis that may lie far outside
FAR_M = 1000.0  # from the origin: farther worlds are moved, since single precision would lose millimetres
HEADROOM_M = 4.0
LOW_M = 2.0  # lower worlds get headroom on top


def typical_range(xyz: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each axis the range that holds all but a thousandth of the points at either end."""
    sample = xyz[:: max(1, len(xyz) // SAMPLE)].astype(np.float64)
    low, high = np.quantile(sample, [OUTSIDE, 1.0 - OUTSIDE], axis=0)
    return low, high


def guess_scale(size: np.ndarray, notes: list[str]) -> float:
    """Return metres per unit, from the size of a world with z up, [3] in units of the file."""
    width, height = float(max(size[:2])), float(size[2])
    scale = 1.0
    if height > MAX_HEIGHT:
        scale = min((0.01, 0.001), key=lambda unit: abs(math.log(height * unit / ROOM_HEIGHT_M)))
    if scale != 1.0:
        notes.append(
            f"The unit is taken as {UNITS[scale]}, because the file is {width:,.5g} units wide and {height:,.5g} high; "
            "pass scale=1 if these are metres."
        )
    elif max(width, height) < 1.5:
        notes.append(
            f"The file is only {width:.3g} units wide and {height:.3g} high, taken as metres; pass scale=10 if a unit is 10 m."
        )
    return scale


def guess_up(wanted: str, y_up: bool, size: np.ndarray, notes: list[str]) -> bool:
    """Return whether the y axis of the file points up.

    Args:
        wanted: z, y or auto.
        y_up: Whether it does by the convention of the file format.
        size: [3] extent along x, y, z of the file.
    """
    if wanted != "auto":
        return wanted == "y"
    x, y, z = (float(length) for length in size)
    if y_up and z < 0.4 * min(x, y):
        notes.append("z is taken as up, because the file is flat along z; pass up=y if its y axis points up.")
        return False
    if y_up:
        notes.append("y is taken as up, as is usual in this file format; pass up=z if its z axis points up.")
    elif y < 0.4 * min(x, z):
        notes.append("z is taken as up, but the file is flat along y; pass up=y if its y axis points up.")
    return y_up


def turn_up(values: np.ndarray) -> np.ndarray:
    """Return points [..., 3] with y up as points with z up."""
    return np.stack([values[..., 0], -values[..., 2], values[..., 1]], axis=-1)


def crop_range(
    low: np.ndarray, high: np.ndarray, typical: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the range to keep along each axis, and whether it is smaller than the whole.

    An axis is cropped to its typical range and a tenth more if its whole range is over twice as large.
    """
    size = typical[1] - typical[0]
    far = (high - low) > 2.0 * size + 1e-9
    margin = 0.1 * size
    kept_low = np.where(far, np.maximum(typical[0] - margin, low), low)
    kept_high = np.where(far, np.minimum(typical[1] + margin, high), high)
    return kept_low, kept_high, bool(far.any())


def guess_shift(low: np.ndarray, high: np.ndarray, notes: list[str]) -> np.ndarray:
    """Return by how much a world is moved, [3] m: to around the origin if it is far away, else 0."""
    if max(np.abs(low).max(), np.abs(high).max()) <= FAR_M:
        return np.zeros(3)
    shift = -np.array([(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, low[2]]).round()
    moved = ", ".join(f"{value:+,.0f}" for value in shift)
    notes.append(f"The world is moved by ({moved}) m, because its coordinates are far from 0.")
    return shift


def lacks_ground(solid: np.ndarray) -> bool:
    """Return whether most columns have nothing solid in their lower half."""
    half = max(1, (solid.shape[2] + 1) // 2)
    return float(solid[:, :, :half].any(axis=2).mean()) < 0.5


def missing_layers(solid: np.ndarray, cell_m: float) -> int:
    """Return how many free layers a world needs on top: some if it is too flat to fly in, as bare ground is."""
    return math.ceil(HEADROOM_M / cell_m) if solid.shape[2] * cell_m < LOW_M else 0
