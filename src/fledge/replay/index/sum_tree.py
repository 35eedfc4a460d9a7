"""SumTree: sample slots in proportion to their priorities, and update many at once.

Contract
    Each of `size` slots has a priority >= 0 (float64; 0 is never sampled). Level 0 of the tree is the slots, each level
    above holds the sums of pairs of the one below. `update` recomputes the parents from their children, not by differences,
    so rounding errors do not accumulate; `find` descends for all queries at once. Both cost O(m log size) for m slots.
"""

from __future__ import annotations

import numpy as np

from fledge.core.errors import InputError


class SumTree:
    """Priorities of `size` slots."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise InputError(f"size is {size}, but must be at least 1.")
        self.size = size
        self._levels = [np.zeros(size)]
        while len(self._levels[-1]) > 1:
            self._levels.append(np.zeros(-(-len(self._levels[-1]) // 2)))

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._levels[-1][0])

    @property
    def priorities(self) -> np.ndarray:
        """Priority of each slot; read-only."""
        return self._levels[0]

    def update(self, slots: np.ndarray, priorities: np.ndarray | float) -> None:
        """Set priorities; the last one counts for a slot given twice."""
        values = np.broadcast_to(np.asarray(priorities, np.float64), np.shape(slots))
        if not np.isfinite(values).all() or (values < 0).any():
            raise InputError("priorities must be finite numbers of 0 or more.")
        self._levels[0][slots] = values
        touched = np.unique(slots)
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            touched = np.unique(touched >> 1)
            left = 2 * touched
            right = np.minimum(left + 1, len(below) - 1)
            level[touched] = below[left] + np.where(left + 1 < len(below), below[right], 0.0)

    def find(self, values: np.ndarray) -> np.ndarray:
        """Return the slot of each value in [0, total), with the priorities as consecutive intervals."""
        rest = np.array(values, np.float64)
        node = np.zeros(rest.shape, np.int64)
        for level in reversed(self._levels[:-1]):
            left = 2 * node
            mass = level[left]
            right = np.minimum(left + 1, len(level) - 1)
            # rounding may leave a rest just past the last slot with a priority: never descend into an empty half
            go = (rest >= mass) & (left + 1 < len(level)) & (level[right] > 0)
            rest = np.where(go, rest - mass, np.minimum(rest, np.nextafter(mass, 0.0)))
            node = np.where(go, right, left)
        return node
