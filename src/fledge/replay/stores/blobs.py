"""BlobStore: a queue of byte strings in a few large segments of memory.

Contract
    `extend` copies blobs to the back, `drop` removes the oldest. A blob is identified by its number, counted from the first
    ever added, and never moves or changes: `view(number)` and the arrays of `state()` share the store's memory and stay
    valid while more is added. A segment is freed when all of its blobs are gone. `AHEAD` bytes after every blob can be read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fledge.replay.checks import damaged
from fledge.replay.index.prefix_sum import IntQueue
from fledge.replay.packing.chunks import AHEAD

SEGMENT_BYTES = 2**20  # largest segment; a new one is a 32nd of the kept bytes, and at least 16 KiB


class BlobStore:
    """Queue of byte strings (blobs): new ones are added at the back, the oldest removed."""

    def __init__(self) -> None:
        self._segments: dict[int, np.ndarray] = {}
        self._views: dict[int, memoryview] = {}
        self._bases = IntQueue()  # address of each segment
        self._newest, self._used = -1, 0  # segment being filled, and its used bytes
        self._segment, self._begin, self._end = IntQueue(), IntQueue(), IntQueue()
        self.nbytes = 0  # of all blobs

    def __len__(self) -> int:
        return len(self._segment)

    @property
    def next_number(self) -> int:
        """Number that the next added blob gets."""
        return self._segment.dropped + len(self._segment)

    @property
    def held_bytes(self) -> int:
        """Allocated memory of segments and index, bytes."""
        index = sum(queue.nbytes for queue in (self._segment, self._begin, self._end))
        return index + sum(segment.nbytes for segment in self._segments.values())

    def extend(self, data: np.ndarray, edges: np.ndarray) -> int:
        """Add the blobs data[edges[i]:edges[i + 1]] (uint8), and return the number of the first of them."""
        number, done, count = self.next_number, 0, len(edges) - 1
        while done < count:
            room = len(self._segments[self._newest]) - AHEAD - self._used if self._newest >= 0 else -1
            fits = int(np.searchsorted(edges, edges[done] + room, side="right")) - 1
            if fits <= done:
                self._add_segment(int(edges[done + 1] - edges[done]))
                continue
            begin, end = int(edges[done]), int(edges[fits])
            self._segments[self._newest][self._used : self._used + end - begin] = data[begin:end]
            self._segment.extend(np.full(fits - done, self._newest))
            self._begin.extend(edges[done:fits] - begin + self._used)
            self._end.extend(edges[done + 1 : fits + 1] - begin + self._used)
            self._used += end - begin
            self.nbytes += end - begin
            done = fits
        return number

    def _add_segment(self, least: int) -> None:
        if self._newest >= 0:
            self._segments[self._newest][self._used :] = 0  # so that equal contents are saved as equal bytes
        self._used = 0
        self._take_over(np.empty(max(min(SEGMENT_BYTES, max(self.nbytes // 32, 2**14)), least) + AHEAD, np.uint8))

    def _take_over(self, segment: np.ndarray) -> None:
        self._newest += 1
        self._segments[self._newest], self._views[self._newest] = segment, segment.data
        self._bases.append(segment.ctypes.data)

    def drop(self, count: int) -> None:
        """Remove the oldest `count` blobs."""
        self.nbytes -= int((self._end.view()[:count] - self._begin.view()[:count]).sum())
        for queue in (self._segment, self._begin, self._end):
            queue.drop(count)
        oldest = int(self._segment.view()[0]) if len(self._segment) else self._newest
        while (number := next(iter(self._segments), oldest)) < oldest:  # dicts keep the order of insertion
            del self._segments[number], self._views[number]
            self._bases.drop()

    def view(self, number: int) -> memoryview:
        """Return the bytes of one blob."""
        i = number - self._segment.dropped
        return self._views[int(self._segment.view()[i])][int(self._begin.view()[i]) : int(self._end.view()[i])]

    def addresses(self, numbers: np.ndarray) -> np.ndarray:
        """Return the memory addresses of blobs, [n] uint64; valid until one of them is dropped."""
        i = numbers - self._segment.dropped
        bases = self._bases.view()[self._segment.view()[i] - self._bases.dropped]
        return (bases + self._begin.view()[i]).view(np.uint64)

    def sizes(self) -> np.ndarray:
        """Return the size of each blob in bytes, [n] int64."""
        return self._end.view() - self._begin.view()

    def aligned(self, word: int) -> bool:
        """Return whether every blob begins and ends at a multiple of `word` bytes of its segment."""
        return not ((self._begin.view() | self._end.view()) % word).any()

    def join(self, numbers: np.ndarray) -> tuple[bytes, np.ndarray]:
        """Return the blobs with these numbers as one byte string, and the offset of each in it, [n] int64."""
        i = numbers - self._segment.dropped
        begins, ends = self._begin.view()[i], self._end.view()[i]
        parts = zip(self._segment.view()[i].tolist(), begins.tolist(), ends.tolist(), strict=True)
        data = b"".join([self._views[s][a:b] for s, a, b in parts])
        sizes = ends - begins
        return data, np.cumsum(sizes) - sizes

    def state(self) -> dict[str, Any]:
        """Return the segments (not copied) and the positions of the blobs."""
        numbers = sorted(self._segments)
        used = {n: self._used if n == self._newest else len(self._segments[n]) for n in numbers}
        return {
            "segments": [self._segments[n][: used[n]] for n in numbers],
            "segment": self._segment.view() - (numbers[0] if numbers else 0),
            "begin": self._begin.view().copy(),
            "end": self._end.view().copy(),
            "dropped": self._segment.dropped,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Load a state into a new store, using its arrays without a copy; raise FormatError if a blob lies outside of them."""
        segments = [np.ascontiguousarray(s, np.uint8) for s in state["segments"]]
        segment, begin, end = (np.asarray(state[k], np.int64) for k in ("segment", "begin", "end"))
        sizes = np.array([len(s) for s in segments], np.int64)
        sound = len(segment) == len(begin) == len(end) and segment.ndim == begin.ndim == end.ndim == 1
        if sound and len(segment):
            sound = bool((segment >= 0).all() and (segment < len(segments)).all() and (np.diff(segment) >= 0).all())
            sound = sound and bool((begin >= 0).all() and (begin <= end).all() and (end <= sizes[segment]).all())
        if not sound:
            raise damaged("has chunks outside its data")
        dropped = int(state["dropped"])
        if not 0 <= dropped < 2**62:
            raise damaged("has chunk numbers that are too large")
        assert not self._segments, "a state is loaded into a new store"
        used = np.zeros(len(segments), np.int64)
        np.maximum.at(used, segment, end)
        for data, filled in zip(segments, used.tolist(), strict=True):  # only the newest lacks room for AHEAD
            self._take_over(data if filled + AHEAD <= len(data) else np.pad(data, (0, AHEAD)))
            self._used = len(self._segments[self._newest]) - AHEAD  # full: shared memory is not written to
        self._segment, self._begin, self._end = (IntQueue(q, dropped) for q in (segment, begin, end))
        self.nbytes = int((end - begin).sum())
