"""PackedStore: keys with small frames, side by side in one table, bit-packed in chunks of a few frames.

Contract: see `base`. `take` decodes only the requested rows of a chunk. A key with fewer rows than others of its episode (no
final frame) is filled up with its last row.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge.replay.checks import damaged
from fledge.replay.packing import chunks as packing
from fledge.replay.schema import KeySpec
from fledge.replay.stores.base import Encoded, Pick, Store, chunk_rows
from fledge.replay.workers import Workers


class PackedStore(Store):
    """Keys packed side by side in chunks of `rows` frames (see `packing.chunks`)."""

    codec = "packed"

    def __init__(self, specs: Mapping[str, KeySpec], rows: int) -> None:
        super().__init__(list(specs), rows)
        self.columns, self.step = packing.Columns(specs), rows
        self.added = np.zeros(len(self.columns.kinds), np.int64)  # bits per column, of all episodes ever added

    def encode(self, words: Mapping[str, np.ndarray]) -> Encoded:
        table = self.columns.table(words)
        packed = packing.pack(table, self.columns.kinds, chunk_rows(len(table), self.step))
        return Encoded(len(table), packed.words.view(np.uint8), 4 * packed.offsets, packed.column_bits)

    def append(self, encoded: Encoded) -> None:
        super().append(encoded)
        self.added += encoded.column_bits

    def take(self, episode: np.ndarray, row: np.ndarray, workers: Workers) -> Pick:
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
        return functools.partial(self.columns.read, table)

    def bytes_per_frame(self, key: str) -> float:
        """Return the average packed size of a frame of the key, with its share of the chunk headers."""
        part = self.columns.place[key]
        bits = self.added[part].sum() + (part.stop - part.start) * -(-self.added_rows // self.step)
        return float(bits / 8 / max(self.added_rows, 1))

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        # the size of each key is not saved: assume an even share
        self.added[:] = 8 * self.blobs.nbytes // max(len(self.added), 1)
        if not self.blobs.aligned(4):
            raise damaged("has packed chunks whose length is not a multiple of 4 bytes")
        for data, edges, rows in self.chunks(4096):
            if not packing.check(np.frombuffer(data, np.uint32), edges // 4, rows, len(self.columns.kinds)):
                raise damaged("has packed chunks with an invalid structure")
