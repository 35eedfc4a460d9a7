"""Columns: frames of several keys as rows of one uint32 table, the input of `chunks.pack`.

8-byte words take two columns (low, high), smaller ones are widened. `table` copies in, `read` out, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge.replay.packing.words import FLOAT, SIGNED, UNSIGNED
from fledge.replay.schema import KeySpec


class Columns:
    """Columns of each key in a table, and their number formats (`kinds`)."""

    def __init__(self, specs: Mapping[str, KeySpec]) -> None:
        self.specs = dict(specs)
        self.place: dict[str, slice] = {}
        kinds: list[np.ndarray] = []
        begin = 0
        for key, spec in specs.items():
            kind = self._kinds(spec)
            self.place[key] = slice(begin, begin + len(kind))
            kinds.append(kind)
            begin += len(kind)
        self.kinds = np.concatenate([*kinds, np.zeros(0, np.int32)]).astype(np.int32)

    @staticmethod
    def count(spec: KeySpec) -> int:
        """Return the number of columns of a key."""
        return math.prod(spec.shape) * (2 if spec.dtype.itemsize == 8 else 1)

    @staticmethod
    def _kinds(spec: KeySpec) -> np.ndarray:
        size = spec.dtype.itemsize
        cells = spec.frame_bytes // size
        signed = not (spec.dtype.is_floating_point or spec.dtype.is_complex) and str(spec.dtype).startswith("torch.int")
        kind = FLOAT if spec.dtype.is_floating_point else SIGNED if signed else UNSIGNED
        if size == 8:
            return np.tile([UNSIGNED, UNSIGNED if spec.dtype.is_complex else kind], cells)
        return np.full(cells, kind if size == 4 else UNSIGNED)

    def table(self, words: Mapping[Any, np.ndarray]) -> np.ndarray:
        """Return words [rows, *shape] of each key as a table; the last row of a key with fewer rows is repeated."""
        table = np.empty((max(len(words[key]) for key in self.place), len(self.kinds)), np.uint32)
        for key, columns in self.place.items():
            flat = np.ascontiguousarray(words[key]).reshape(len(words[key]), -1)
            part = table[:, columns]
            part[: len(flat)] = flat.view(np.uint32) if flat.itemsize == 8 else flat
            part[len(flat) :] = part[len(flat) - 1]
        return table

    def read(self, table: np.ndarray, key: str, places: Any) -> np.ndarray:
        """Copy words [n, *shape] out of rows of a table."""
        spec = self.specs[key]
        part = table[places, self.place[key]]
        if spec.dtype.itemsize == 8:
            part = np.ascontiguousarray(part).view(np.uint64)
        return np.array(part, dtype=spec.word, order="C").reshape(len(part), *spec.shape)
