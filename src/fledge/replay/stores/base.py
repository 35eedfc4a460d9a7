"""Store: base class of the stores, each of which holds some keys of every episode as compressed chunks.

Contract
    `append(encode(words))` adds an episode (words per key, [rows, *shape]); only `encode` can fail, and it changes nothing.
    `evict()` removes the oldest episode; `pick = take(episode, row)` decodes any rows. `pick(key, places)` then
    returns those at the positions `places` (slice or indices) of `row`, as a contiguous array that the caller owns. A
    row number past a key's end means its last row. Episodes are numbered from the oldest kept.
    A `take` decodes each chunk once, on the threads of `workers`; the codecs release the GIL (measured: Warp's launches,
    pcodec, and blosc2 as `storage.format.codecs` sets it).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fledge.replay.checks import damaged
from fledge.replay.index.prefix_sum import IntQueue
from fledge.replay.stores.blobs import BlobStore
from fledge.replay.workers import Workers

Pick = Callable[[str, Any], np.ndarray]


class Encoded(NamedTuple):
    """An episode as chunks: chunk i is data[edges[i]:edges[i + 1]]."""

    rows: int
    data: np.ndarray  # uint8
    edges: np.ndarray
    column_bits: np.ndarray | int = 0  # of packed chunks


class Store(ABC):
    """Base class of stores: some keys of all episodes, in chunks of `rows` frames (None: whole episodes)."""

    codec: str

    def __init__(self, keys: list[str], rows: int | None) -> None:
        self.keys, self.rows = keys, rows
        self.blobs = BlobStore()
        self.first, self.length = IntQueue(), IntQueue()  # first chunk and rows of each episode
        self.added_rows = self.added_bytes = 0  # of all episodes ever added

    @abstractmethod
    def encode(self, words: Mapping[str, np.ndarray]) -> Encoded:
        """Return an episode as chunks for `append`."""

    def append(self, encoded: Encoded) -> None:
        """Add an encoded episode."""
        self.first.append(self.blobs.extend(encoded.data, encoded.edges))
        self.length.append(encoded.rows)
        self.added_rows += encoded.rows
        self.added_bytes += len(encoded.data)

    @abstractmethod
    def take(self, episode: np.ndarray, row: np.ndarray, workers: Workers) -> Pick:
        """Decode frame `row[i]` of `episode[i]` for every i.

        Return a function `pick(key, places)` that returns the key's frames for the given i, a slice or indices.
        """

    def bytes_per_frame(self, key: str) -> float:
        """Return the average compressed size of a frame of the key, over all frames ever added."""
        return self.added_bytes / max(self.added_rows, 1)

    def plan(self) -> dict[str, Any]:
        """Return the entry of a saved state from which `stores.plan` makes the same store, empty."""
        return {"keys": self.keys, "rows": self.rows, "codec": self.codec}

    def evict(self) -> None:
        """Remove the oldest episode."""
        rows = int(self.length.view()[0])
        self.blobs.drop(-(-rows // (self.rows or rows)))
        self.first.drop()
        self.length.drop()

    def state(self) -> dict[str, Any]:
        """Return the chunks (not copied), and the first chunk and length of each episode."""
        first = self.first.view() - self.blobs.next_number + len(self.blobs)
        return {"blobs": self.blobs.state(), "first": first, "length": self.length.view().copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a state into a new store, and check that chunks and episodes agree."""
        blobs = BlobStore()
        blobs.load(dict(state["blobs"]))
        first, length = (np.asarray(state[k], np.int64) for k in ("first", "length"))
        chunks = -(-length // self.rows) if self.rows else np.ones_like(length)
        if first.shape != length.shape or (length < 1).any() or not np.array_equal(first, np.cumsum(chunks) - chunks):
            raise damaged("has episodes whose lengths do not match its chunks")
        if len(blobs) != chunks.sum():
            raise damaged(f"has {len(blobs)} chunks instead of {chunks.sum()}")
        self.blobs, self.length = blobs, IntQueue(length)
        self.first = IntQueue(first + blobs.next_number - len(blobs))
        self.added_rows, self.added_bytes = int(length.sum()), blobs.nbytes

    def chunks(self, at_once: int) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
        """Yield `at_once` chunks at a time, as (joined bytes, offsets where chunks begin and end, number of rows of each)."""
        assert self.rows is not None
        counts = [chunk_rows(int(n), self.rows) for n in self.length.view()]
        rows = np.concatenate([*counts, np.zeros(0, np.int32)])
        oldest = self.blobs.next_number - len(self.blobs)
        for a in range(0, len(rows), at_once):
            part = rows[a : a + at_once]
            data, begins = self.blobs.join(oldest + a + np.arange(len(part)))
            yield data, np.append(begins, len(data)), part


def chunk_rows(rows: int, step: int) -> np.ndarray:
    """Return how many rows each chunk of an episode of `rows` rows has: `step`, and fewer in the last chunk."""
    counts = np.full(-(-rows // step), step, np.int32)
    counts[-1] = rows - step * (len(counts) - 1)
    return counts
