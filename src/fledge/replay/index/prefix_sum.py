"""PrefixSum: find which of many consecutive ranges contains a number, while the oldest ranges are removed.

    add(3), add(2), add(4)        ranges        0 0 0 1 1 2 2 2 2
                                  numbers       0 1 2 3 4 5 6 7 8        total 9
    get_range_idx(4)           -> 1             number 4 is in range 1
    get_range_relative_idx(4)  -> (1, 1)        ... at offset 1
    get_range_relative_idx(4, 1) -> 1           the same with a known range
    evict()                    -> 3             remove the oldest range (3 long); all numbers shift down
                                  ranges        0 0 1 1 1 1              total 6
    get_range_relative_idx(4)  -> (1, 2)

In the replay buffer a range is an episode and a number is a transition.

Contract
    The oldest range is number 0. Lookups take one number or an array and cost O(log n) each (one vectorised binary search);
    `add` and `evict` are amortised O(1). Adding to `max_len` ranges evicts the oldest, as `collections.deque(maxlen)` does.
    `evicted_total` is the sum of all evicted lengths, so `evicted_total + number` identifies a number permanently.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fledge.core.errors import ConfigError, InputError
from fledge.replay.checks import damaged


class IntQueue:
    """Queue of integers with a NumPy view.

    `extend` and `drop` are amortised O(1) per number. `dropped` counts all removed numbers, so number i of the queue is number
    `dropped + i` of all that were ever appended.
    """

    def __init__(self, numbers: Iterable[int] | np.ndarray = (), dropped: int = 0) -> None:
        self._data = np.zeros(16, np.int64)
        self._head = self._tail = 0
        self.dropped = dropped
        self.extend(np.asarray(numbers if isinstance(numbers, np.ndarray) else list(numbers), np.int64))

    def __len__(self) -> int:
        return self._tail - self._head

    @property
    def nbytes(self) -> int:
        """Allocated memory, bytes."""
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
        """Make room for `count` numbers: move all to the front of an array a quarter larger (amortised O(1) each)."""
        kept = self.view().copy()
        size = max(16, 5 * (len(kept) + count) // 4)
        if size > len(self._data) or size < len(self._data) // 2:
            self._data = np.zeros(size, np.int64)
        self._data[: len(kept)] = kept
        self._head, self._tail = 0, len(kept)


class PrefixSum:
    """A queue of the lengths of at most `max_len` consecutive ranges, which finds the range that contains a number."""

    def __init__(self, max_len: int) -> None:
        if max_len < 1:
            raise ConfigError(f"max_len is {max_len}, but must be at least 1.")
        self.max_len = max_len
        self._ends = IntQueue()  # end of each range, counted from the first number ever
        self.evicted_total = 0

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def total(self) -> int:
        """Sum of the lengths: numbers 0 to total - 1 can be looked up."""
        return int(self._ends.view()[-1]) - self.evicted_total if len(self._ends) else 0

    @property
    def prefix_sum(self) -> np.ndarray:
        """Start of each range, oldest first, and the end of the last one, [len + 1] int64; begins with 0."""
        return np.concatenate([[0], self._ends.view() - self.evicted_total])

    @property
    def values(self) -> np.ndarray:
        """Lengths of the ranges, oldest first, [len] int64."""
        ends = self._ends.view()
        values = ends.copy()
        values[1:] -= ends[:-1]  # np.diff(prepend=) costs ten times as much
        values[:1] -= self.evicted_total
        return values

    ar = values

    def add(self, value: int) -> int:
        """Append a range of length `value`; return the number of ranges evicted for it (0 or 1)."""
        if value < 1 or value != int(value):
            raise InputError(f"The length of a range is {value}, but must be a whole number of at least 1.")
        full = len(self._ends) == self.max_len
        if full:
            self.evict()
        self._ends.append(self.evicted_total + self.total + int(value))
        return int(full)

    def evict(self) -> int:
        """Remove the oldest range; return its length."""
        if not len(self._ends):
            raise InputError("The PrefixSum is empty: add a range before evicting one.")
        length = int(self._ends.view()[0]) - self.evicted_total
        self._ends.drop()
        self.evicted_total += length
        return length

    def get_range_idx(self, number: Any) -> Any:
        """Return the range that contains a number, or the ranges of an array of numbers."""
        return self.get_range_relative_idx(number)[0]

    def get_range_relative_idx(self, number: Any, range_idx: Any = None) -> Any:
        """Return the range that contains a number, and the offset inside that range; for arrays, one of each per number.

        With `range_idx`, the result of `get_range_idx`, return the offset alone.
        """
        numbers = self._checked(number)
        ends = self._ends.view()
        found = np.asarray(np.searchsorted(ends, numbers + self.evicted_total, side="right"))
        if range_idx is not None and not np.array_equal(found, range_idx):
            raise InputError(f"{number} is in range {found}, not {range_idx}: pass the result of get_range_idx.")
        starts = np.where(found > 0, ends[np.maximum(found - 1, 0)], self.evicted_total)
        offset = numbers + self.evicted_total - starts
        both = (int(found), int(offset)) if numbers.ndim == 0 else (found, offset)
        return both if range_idx is None else both[1]

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "evicted_total": self.evicted_total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        values = np.asarray(state["values"], np.int64)
        evicted = int(state["evicted_total"])
        if values.ndim != 1 or (values < 1).any():
            raise damaged("has an index with lengths that are not positive")
        if not 0 <= evicted < 2**62 or values.sum(dtype=np.float64) > 2**53:
            raise damaged("has an index whose lengths are too large")
        if len(values) > self.max_len:
            raise InputError(f"The state has {len(values)} ranges, but at most {self.max_len} fit: raise max_size.")
        self.evicted_total = evicted
        self._ends = IntQueue(np.cumsum(values) + self.evicted_total)

    def _checked(self, number: Any) -> np.ndarray:
        numbers = np.asarray(number)
        if numbers.dtype.kind not in "iu":
            raise InputError(f"The numbers to look up have dtype {numbers.dtype}, but must be integers.")
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.total):
            found = f"{numbers.min()} to {numbers.max()}"
            raise InputError(f"The numbers to look up range from {found}, but only 0 to {self.total - 1} exist.")
        return numbers.astype(np.int64, copy=False)
