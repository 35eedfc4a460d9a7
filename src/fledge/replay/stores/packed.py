"""The store of keys with small frames: side by side in one table, bit-packed in chunks of a few frames.

Contract: see `base`. A row is decoded without the rest of its chunk, so `take` costs what it returns. A key with fewer
rows than others of its episode (no final frame) is continued with its last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge.replay.packing import chunks as packing
from fledge.replay.packing.chunks import Packed
from fledge.replay.packing.columns import Columns
from fledge.replay.saved import damaged
from fledge.replay.schema import KeySpec
from fledge.replay.stores.base import Store, chunk_rows
from fledge.replay.workers import Workers


class PackedRows:
    """Rows decoded from packed chunks."""

    def __init__(self, columns: Columns, table: np.ndarray) -> None:
        self.columns, self.table = columns, table

    def pick(self, key: str, places: Any) -> np.ndarray:
        return self.columns.read(self.table, key, places)


class PackedStore(Store):
    """Keys with small frames, packed side by side in chunks of `rows` frames (see `packing.chunks`)."""

    codec = "packed"

    def __init__(self, specs: Mapping[str, KeySpec], rows: int) -> None:
        super().__init__(list(specs), rows)
        self.columns, self.step = Columns(specs), rows
        self.added = np.zeros(len(self.columns.kinds), np.int64)  # bits per column of all that was ever added

    def encode(self, words: Mapping[str, np.ndarray]) -> tuple[int, Packed]:
        rows = max(len(words[key]) for key in self.keys)
        table = np.empty((rows, len(self.columns.kinds)), np.uint32)
        for key in self.keys:
            self.columns.fill(table, key, words[key])
        return rows, packing.pack(table, self.columns.kinds, chunk_rows(rows, self.step))

    def append(self, encoded: Any) -> None:
        rows, packed = encoded  # from `encode`
        first = self.blobs.extend(packed.words.view(np.uint8), 4 * packed.offsets)
        self._appended(first, rows, packed.words.nbytes)
        self.added += packed.column_bits

    def take(self, episode: np.ndarray, row: np.ndarray, workers: Workers) -> PackedRows:
        row = np.minimum(row, self.length.view()[episode] - 1)
        chunk, inside = row // self.step, row % self.step
        number = self.first.view()[episode] + chunk
        # consecutive rows of one chunk are one span
        continues = (number[1:] == number[:-1]) & (inside[1:] == inside[:-1] + 1)
        head = np.flatnonzero(np.concatenate([[True], ~continues]))
        spans = np.empty((len(head), 4), np.int32)
        spans[:, 0] = np.minimum(self.length.view()[episode[head]] - chunk[head] * self.step, self.step)
        spans[:, 1] = inside[head]
        spans[:-1, 2] = head[1:] - head[:-1]
        spans[-1, 2] = len(row) - head[-1]
        spans[:, 3] = head
        table = np.zeros((len(row), len(self.columns.kinds)), np.uint32)
        packing.unpack(self.blobs.addresses(number[head]), self.columns.kinds, spans, table, workers)
        return PackedRows(self.columns, table)

    def bytes_per_frame(self, key: str) -> float:
        """Average size of the key's frames, of all that were added; the chunk's own bits are shared evenly."""
        part = self.columns.place[key]
        bits = self.added[part].sum() + (part.stop - part.start) * -(-self.added_rows // self.step)
        return float(bits / 8 / max(self.added_rows, 1))

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        # what each key took is no longer known: an even share
        self.added[:] = 8 * self.blobs.nbytes // max(len(self.added), 1)
        if (self.blobs.lengths() % 4).any() or not self.blobs.aligned(4):
            raise damaged("has packed chunks of odd lengths")
        for data, edges, rows in self.chunks(4096):
            if not packing.check(np.frombuffer(data, np.uint32), edges // 4, rows, len(self.columns.kinds)):
                raise damaged("has packed chunks that no version writes")
