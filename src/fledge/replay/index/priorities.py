"""Priorities of the transitions in a buffer (Schaul et al., Prioritized Experience Replay, 2016).

Transition n, counted from the first ever added, has slot n modulo max_size of a sum tree, which is unique because at most
max_size consecutive transitions are kept. The tree holds priority^alpha. New transitions get the largest priority seen.
Samples are stratified: one from each of B equal parts of the total.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge.core.errors import ConfigError, InputError
from fledge.replay.checks import damaged

WIDTH = 16  # children of a node: few levels, because each costs calls of NumPy
LEAST = 1e-6  # every transition can be sampled
MOST = 1e290  # of priority^alpha, so that the sum stays finite
MAX_EXPONENT = 10.0  # LEAST^alpha and weights stay finite


class SumTree:
    """Priorities of `size` slots, to sample slots in proportion to them and to update many at once.

    Each slot has a priority >= 0 (float64; 0 is never sampled). Level 0 of the tree is the slots, each level above holds the
    sums of `WIDTH` neighbours of the one below; levels are padded with zeros. `update` recomputes the parents from their
    children, not by differences, so rounding errors do not accumulate; `find` descends for all queries at once. Both cost
    O(m log size) for m slots.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise InputError(f"size is {size}, but must be at least 1.")
        self.size = size
        self._levels = [np.zeros((-(-size // WIDTH), WIDTH))]  # [parents, children]
        while len(self._levels[-1]) > 1:
            self._levels.append(np.zeros((-(-len(self._levels[-1]) // WIDTH), WIDTH)))

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._levels[-1].sum())

    @property
    def priorities(self) -> np.ndarray:
        """Priority of each slot; read-only."""
        return self._levels[0].reshape(-1)[: self.size]

    def update(self, slots: np.ndarray, priorities: np.ndarray | float) -> None:
        """Set the priorities of slots; if a slot is given twice, its last priority counts."""
        values = np.broadcast_to(np.asarray(priorities, np.float64), np.shape(slots))
        if not np.isfinite(values).all() or (values < 0).any():
            raise InputError("priorities must be finite numbers of 0 or more, but some are negative, infinite or NaN.")
        self._levels[0].reshape(-1)[slots] = values
        touched = np.asarray(slots)
        for below, level in itertools.pairwise(self._levels):
            touched = np.unique(touched // WIDTH)
            level.reshape(-1)[touched] = below[touched].sum(1)

    def find(self, values: np.ndarray) -> np.ndarray:
        """Return for each value in [0, total) the first slot at which the cumulative sum of priorities exceeds it."""
        rest = np.array(values, np.float64)
        every, node = np.arange(len(rest)), np.zeros(len(rest), np.int64)
        for level in reversed(self._levels):
            children = level[node]
            sums = np.cumsum(children, 1)
            # rounding may leave a rest below 0 or beyond the last child with a priority: never descend into an empty one
            rest = np.minimum(np.maximum(rest, 0.0), np.nextafter(sums[:, -1], 0.0))
            child = np.argmax(sums > rest[:, None], 1)
            rest = rest - sums[every, child] + children[every, child]
            node = node * WIDTH + child
        return node


class Priorities:
    """Samples transitions in proportion to priority^alpha, with importance weights."""

    def __init__(self, max_size: int, alpha: float, beta: float) -> None:
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not isinstance(value, int | float | np.number) or not 0 <= value <= MAX_EXPONENT:
                raise ConfigError(f"{name} is {value!r}, but must be a number from 0 to {MAX_EXPONENT:g}.")
        self.tree, self.alpha, self.beta = SumTree(max_size), alpha, beta
        self.largest = 1.0

    def append(self, numbers: np.ndarray) -> None:
        self.tree.update(numbers % self.tree.size, max(self.largest, LEAST) ** self.alpha)

    def remove(self, numbers: np.ndarray) -> None:
        self.tree.update(numbers % self.tree.size, 0.0)

    def update(self, numbers: np.ndarray, priorities: np.ndarray) -> None:
        if not len(numbers):
            return
        if (priorities < 0).any():
            raise InputError("priorities must be finite numbers of 0 or more: pass absolute values of errors.")
        values = np.maximum(priorities, LEAST)
        with np.errstate(over="ignore"):
            raised = values**self.alpha
        if not (raised <= MOST).all():
            raise InputError(f"priorities must be finite, and priority^alpha (alpha={self.alpha}) below {MOST:g}.")
        self.tree.update(numbers % self.tree.size, raised)
        self.largest = max(self.largest, float(values.max()))

    def draw(self, count: int, begin: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Sample `count` transitions; return their numbers, [count], and importance weights of at most 1, [count].

        Number 0 is the oldest transition kept; `begin` is its number counted from the first ever added.
        """
        values = (np.arange(count) + rng.random(count)) / count * self.tree.total
        slots = self.tree.find(values)
        drawn = self.tree.priorities[slots]
        weight = (drawn.min() / drawn) ** self.beta  # (kept * share)^-beta divided by its maximum
        return (slots - begin) % self.tree.size, weight.astype(np.float32)

    def state(self, begin: int, kept: int) -> dict[str, Any]:
        slots = np.arange(begin, begin + kept) % self.tree.size
        return {"priorities": self.tree.priorities[slots], "largest": self.largest}

    def load(self, state: Mapping[str, Any], begin: int, kept: int) -> None:
        values = np.asarray(state["priorities"], np.float64)
        largest = float(state["largest"])
        sound = values.shape == (kept,) and ((values > 0) & (values <= MOST)).all()
        if not sound or not 0 <= max(largest, LEAST) ** self.alpha <= MOST:
            raise damaged(f"does not have {kept} valid priorities")
        self.tree = SumTree(self.tree.size)
        self.tree.update(np.arange(begin, begin + kept) % self.tree.size, values)
        self.largest = largest
