"""Tools of generators: random numbers that depend on (generator, seed, index) alone, and shapes in a grid of voxels."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from fledge.core.random import Purpose, uniform
from fledge.tasks.navigation.worlds.voxels import CELL_M, World

HEIGHT_M = 4.0  # of the space to fly in


class Draws:
    """A stream of random numbers, a pure function of the generator's name, the seed and the index."""

    def __init__(self, generator: str, seed: int, index: int) -> None:
        self.seed, self.index, self._count = seed, index, 0
        self._generator = zlib.crc32(generator.encode())

    def units(self, count: int) -> np.ndarray:
        """Return `count` numbers in [0, 1), float64."""
        blocks = np.arange(-(-count // 4), dtype=np.uint64) + np.uint64(self._count)
        self._count += len(blocks)
        counter = np.empty((len(blocks), 4), np.uint64)
        counter[:] = (self.index, 0, int(Purpose.GENERATED_WORLD), self._generator)
        counter[:, 1] = blocks
        return uniform(counter, self.seed).reshape(-1)[:count].astype(np.float64)

    def between(self, low: float, high: float) -> float:
        """Return a number from `low` to `high`."""
        return low + (high - low) * float(self.units(1)[0])

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return low + int(float(self.units(1)[0]) * (high - low + 1))

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return float(self.units(1)[0]) < share

    def order(self, count: int) -> list[int]:
        """Return 0, ..., count - 1 in random order."""
        return [int(place) for place in np.argsort(self.units(count), kind="stable")]

    def size(self) -> float:
        """Return a width of a world, 20 to 40 m, a whole number of voxels."""
        return self.whole(200, 400) / 10


class Canvas:
    """A grid with a solid floor; x runs from 0 to `width`, y from 0 to `depth`, z from 0 at the floor's top to `height`, m."""

    def __init__(self, width: float, depth: float, height: float = HEIGHT_M, *, ceiling: bool, walls: bool) -> None:
        self.width, self.depth, self.height = width, depth, height
        shape = [round(length / CELL_M) for length in (width, depth, height)]
        self.solid = np.zeros((shape[0], shape[1], shape[2] + 1 + ceiling), bool)
        self.solid[:, :, 0] = True
        if ceiling:
            self.solid[:, :, -1] = True
        if walls:
            self.solid[[0, -1]] = True
            self.solid[:, [0, -1]] = True

    def box(self, low: Sequence[float], high: Sequence[float], solid: bool = True) -> None:
        """Fill or empty a box given by two corners, m; the floor below z = 0 stays."""
        part = tuple(
            slice(max(0, round(a / CELL_M)) + lift, max(0, round(b / CELL_M)) + lift)
            for a, b, lift in zip(low, high, (0, 0, 1), strict=True)
        )
        self.solid[part] = solid

    def post(self, x: float, y: float, radius: float, top: float | None = None) -> None:
        """Fill an upright cylinder from the floor to `top`, or to the ceiling; a voxel is filled if its centre is inside."""
        reach = math.ceil(radius / CELL_M) + 1
        i, j = round(x / CELL_M), round(y / CELL_M)
        part = self.solid[max(0, i - reach) : i + reach, max(0, j - reach) : j + reach]
        a = (np.arange(part.shape[0]) + max(0, i - reach) + 0.5) * CELL_M - x
        b = (np.arange(part.shape[1]) + max(0, j - reach) + 0.5) * CELL_M - y
        inside = np.hypot(a[:, None], b) <= radius
        part[inside, : None if top is None else round(top / CELL_M) + 1] = True

    def is_free(self, low: Sequence[float], high: Sequence[float]) -> bool:
        """Return whether a box is inside the grid and holds nothing solid."""
        if min(low) < 0 or any(b > side for b, side in zip(high, (self.width, self.depth, self.height), strict=True)):
            return False
        (x0, y0, z0), (x1, y1, z1) = ([round(value / CELL_M) for value in corner] for corner in (low, high))
        return not bool(self.solid[x0:x1, y0:y1, z0 + 1 : z1 + 1].any())

    def world(self, name: str) -> World:
        """Return the world: centred at x = y = 0, with the top of its floor at z = 0."""
        return World(name, self.solid, np.array([-self.width / 2, -self.depth / 2, -CELL_M]), CELL_M)


def spread_out(
    draws: Draws, width: float, depth: float, count: int, gap: float, radii: np.ndarray
) -> list[tuple[float, float, float]]:
    """Return at most `count` discs (x, y, radius) in a rectangle, at least `gap` apart from each other and from its sides."""
    placed: list[tuple[float, float, float]] = []
    spots = draws.units(2 * count).reshape(-1, 2)
    for (u, v), radius in zip(spots.tolist(), radii.tolist(), strict=True):
        x, y = (gap + radius + (side - 2 * (gap + radius)) * share for side, share in ((width, u), (depth, v)))
        if all(math.hypot(x - a, y - b) >= radius + r + gap for a, b, r in placed):
            placed.append((x, y, radius))
    return placed


def smooth_noise(draws: Draws, shape: tuple[int, ...], sizes: Sequence[float]) -> np.ndarray:
    """Return smooth random values of any number of axes; `sizes` are the widths of bumps along each axis, in voxels."""
    lattice = [math.ceil(n / size) + 2 for n, size in zip(shape, sizes, strict=True)]
    values = draws.units(math.prod(lattice)).reshape(lattice)
    for axis, (n, size) in enumerate(zip(shape, sizes, strict=True)):
        place = np.arange(n) / size
        left = place.astype(np.int64)
        share = place - left
        share = (share * share * (3.0 - 2.0 * share)).reshape([-1 if k == axis else 1 for k in range(len(shape))])
        values = np.take(values, left, axis) * (1.0 - share) + np.take(values, left + 1, axis) * share
    return values
