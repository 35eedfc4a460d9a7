"""What all stores have in common: episodes in order, each a run of chunks.

Contract
    A store holds some keys of every episode, in order. `append(encode(words))` adds one (words per key, [rows, *shape];
    all that can fail is in `encode`, which changes nothing); `evict()` removes the oldest; `take(episode, row)` gives any
    rows, as `Rows`, whose `pick(key, places)` is a contiguous array of the caller's; a row past a key's end is its
    last. Episodes are numbered from the oldest kept. Every chunk that a `take` touches is decoded once, on the threads
    of `workers`; the codecs let go of the GIL (measured: Warp's launches, pcodec, and blosc2 as `storage.format.codecs`
    sets it).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from fledge.replay.index.int_queue import IntQueue
from fledge.replay.saved import damaged
from fledge.replay.stores.blobs import BlobStore
from fledge.replay.workers import Workers


class Rows(Protocol):
    """Rows taken from a store."""

    def pick(self, key: str, places: Any) -> np.ndarray: ...


class Store(ABC):
    """Chunks of `rows` frames (None: the whole episode) of some keys."""

    codec: str

    def __init__(self, keys: list[str], rows: int | None) -> None:
        self.keys, self.rows = keys, rows
        self.blobs = BlobStore()
        self.first, self.length = IntQueue(), IntQueue()  # first chunk and rows of each episode
        self.added_rows = self.added_bytes = 0  # of all that was ever added

    @abstractmethod
    def encode(self, words: Mapping[str, np.ndarray]) -> Any:
        """An episode as chunks, for `append`."""

    @abstractmethod
    def append(self, encoded: Any) -> None:
        """Add what `encode` made."""

    @abstractmethod
    def take(self, episode: np.ndarray, row: np.ndarray, workers: Workers) -> Rows:
        """Frames `row[i]` of `episode[i]`."""

    def bytes_per_frame(self, key: str) -> float:
        """Average size of the key's frames, of all that were added."""
        return self.added_bytes / max(self.added_rows, 1)

    def _appended(self, first: int, rows: int, nbytes: int) -> None:
        """Count an episode whose chunks, `nbytes` in all, are in the blobs from number `first` on."""
        self.first.append(first)
        self.length.append(rows)
        self.added_rows += rows
        self.added_bytes += nbytes

    def evict(self) -> None:
        """Remove the oldest episode."""
        rows = int(self.length.view()[0])
        self.blobs.drop(-(-rows // (self.rows or rows)))
        self.first.drop()
        self.length.drop()

    def state(self) -> dict[str, Any]:
        """Chunks (not copied) and episodes."""
        first = self.first.view() - self.blobs.next_number + len(self.blobs)
        return {"blobs": self.blobs.state(), "first": first, "length": self.length.view().copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state, and check that chunks and episodes agree."""
        blobs = BlobStore()
        blobs.load(dict(state["blobs"]))
        first, length = (np.asarray(state[k], np.int64) for k in ("first", "length"))
        chunks = -(-length // self.rows) if self.rows else np.ones_like(length)
        if first.shape != length.shape or (length < 1).any() or not np.array_equal(first, np.cumsum(chunks) - chunks):
            raise damaged("has episodes that do not fit its chunks")
        if len(blobs) != chunks.sum():
            raise damaged(f"has {len(blobs)} chunks where {chunks.sum()} are due")
        self.blobs, self.length = blobs, IntQueue(length)
        self.first = IntQueue(first + blobs.next_number - len(blobs))
        self.added_rows, self.added_bytes = int(length.sum()), blobs.nbytes

    def chunks(self, at_once: int) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
        """All chunks kept, some at a time so that there is no second copy of them: bytes, edges between, rows of each."""
        assert self.rows is not None
        counts = [chunk_rows(int(n), self.rows) for n in self.length.view()]
        rows = np.concatenate([*counts, np.zeros(0, np.int32)])
        oldest = self.blobs.next_number - len(self.blobs)
        for a in range(0, len(rows), at_once):
            part = rows[a : a + at_once]
            data, begins = self.blobs.join(oldest + a + np.arange(len(part)))
            yield data, np.append(begins, len(data)), part


def chunk_rows(rows: int, step: int) -> np.ndarray:
    """Rows of each chunk of an episode."""
    counts = np.full(-(-rows // step), step, np.int32)
    counts[-1] = rows - step * (len(counts) - 1)
    return counts
