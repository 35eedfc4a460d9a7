"""IntQueue: a queue of integers with a NumPy view.

Contract
    `extend` appends at the back, `drop` removes from the front, both amortised O(1) per number; `view()` is the numbers
    in order, int64, sharing memory until the next `extend`. `dropped` counts all removed numbers, so number i of the queue
    is number `dropped + i` of all that were ever appended.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


class IntQueue:
    """First in, first out."""

    def __init__(self, numbers: Iterable[int] | np.ndarray = (), dropped: int = 0) -> None:
        self._data = np.zeros(16, np.int64)
        self._head = self._tail = 0
        self.dropped = dropped
        self.extend(np.asarray(numbers if isinstance(numbers, np.ndarray) else list(numbers), np.int64))

    def __len__(self) -> int:
        return self._tail - self._head

    @property
    def nbytes(self) -> int:
        """Allocated memory."""
        return self._data.nbytes

    def view(self) -> np.ndarray:
        """Return the numbers, oldest first; read-only, and valid until the next `extend`."""
        return self._data[self._head : self._tail]

    def append(self, number: int) -> None:
        self.extend(np.array([number]))

    def extend(self, numbers: np.ndarray) -> None:
        if self._tail + len(numbers) > len(self._data):
            self._make_room(len(numbers))
        self._data[self._tail : self._tail + len(numbers)] = numbers
        self._tail += len(numbers)

    def drop(self, count: int = 1) -> None:
        """Remove the oldest `count` numbers."""
        assert count <= len(self)
        self._head += count
        self.dropped += count

    def _make_room(self, count: int) -> None:
        """Move the numbers to the front of an array a quarter larger, which is O(1) per number on average."""
        kept = self.view().copy()
        size = max(16, 5 * (len(kept) + count) // 4)
        if size > len(self._data) or size < len(self._data) // 2:
            self._data = np.zeros(size, np.int64)
        self._data[: len(kept)] = kept
        self._head, self._tail = 0, len(kept)
