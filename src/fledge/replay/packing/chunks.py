"""Bit-packed chunks: rows of many numbers over time, from which single rows can be decoded.

This replaces `storage.format.codecs` because a batch of 256 random frames comes from 256 chunks: a general codec takes
5 to 60 us of set-up for each and decodes a whole chunk for one row. Here one kernel call serves the batch and reads only
the bits of the requested rows (docs/storage/replay.md has the measured sizes and rates).

Contract
    A table is [rows, columns] uint32. A chunk is up to `MAX_ROWS` consecutive rows, as a stream of bits in
    little-endian uint32 words, in this order:

        1 bit per column           0: the column is zero in every row, and nothing follows for it
        then for each other column
        6 bits  width              of the codes below, 0 to 32
        2 bits  order              0: value - base, 1: difference to the previous value, 2: difference of differences,
                                   3: value - line, the line being base + slope * (column before)
        1 bit   masked             some rows are zero (order 3: other rows than in the column before)
        32 bits base               smallest value (order 0), first value (order 1, 2), height of the line (order 3)
        rows bits                  only if masked: which rows are not zero
        6 bits + that many bits    only for order 2: the first difference, zig-zag
        22 bits slope, 5 grain     only for order 3: slope in units of 2^-20; both columns hold multiples of 2^-grain
        codes                      one per row that is not zero, zig-zag for 1, 2, 3; without the first row for order 1,
                                   the first two for order 2

    Zero rows cost one bit; a column takes the order that is smallest. Order 3 is for correlated floats, such as LiDAR beams
    one above the other that hit the same obstacle. Words are mapped to the order of the numbers they encode (float, signed)
    before differences are taken, modulo 2^32: every bit is restored, including NaN payloads and negative zero.

    `pack` and `unpack` do not keep the caller's arrays. `unpack` trusts its chunks: `check` untrusted ones first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import warp as wp

from fledge.replay.packing import reader, writer
from fledge.replay.packing.words import FLOAT, SIGNED, UNSIGNED
from fledge.replay.schema import KeySpec
from fledge.replay.workers import Workers

MAX_ROWS = 32  # a mask is one word
AHEAD = 8  # bytes that the reader reads beyond a chunk
LEAST_SPANS = 256  # half a millisecond of work: a thread for less costs more than it saves (measured)
_WARP: dict[Any, Any] = {np.dtype(n): getattr(wp, n) for n in ("uint8", "uint32", "uint64", "int32", "int64")}


class Columns:
    """Columns of each key in a table [rows, columns], and their number formats (`kinds`).

    An 8-byte word takes two columns (low, high); smaller words are widened to 4 bytes. `table` copies words into a
    table and `read` copies them out, bit for bit.
    """

    def __init__(self, specs: Mapping[Any, KeySpec]) -> None:
        self.specs = dict(specs)
        self.place: dict[Any, slice] = {}
        self.kinds = np.zeros(0, np.int32)
        for key, spec in specs.items():
            begin = len(self.kinds)
            self.kinds = np.append(self.kinds, self._kinds(spec)).astype(np.int32)
            self.place[key] = slice(begin, len(self.kinds))

    @staticmethod
    def count(spec: KeySpec) -> int:
        """Return the number of columns of a key."""
        return math.prod(spec.shape) * (2 if spec.dtype.itemsize == 8 else 1)

    @staticmethod
    def _kinds(spec: KeySpec) -> np.ndarray:
        size, cells = spec.dtype.itemsize, math.prod(spec.shape)
        signed = str(spec.dtype).startswith("torch.int")
        kind = FLOAT if spec.dtype.is_floating_point else SIGNED if signed else UNSIGNED
        if size == 8:
            return np.tile([UNSIGNED, UNSIGNED if spec.dtype.is_complex else kind], cells)
        return np.full(cells, kind if size == 4 else UNSIGNED)

    def table(self, words: Mapping[Any, np.ndarray]) -> np.ndarray:
        """Return words [rows, *shape] of each key as a table; a key with fewer rows is filled up with its last row."""
        table = np.empty((max(len(words[key]) for key in self.place), len(self.kinds)), np.uint32)
        for key, columns in self.place.items():
            flat = np.ascontiguousarray(words[key]).reshape(len(words[key]), -1)
            part = table[:, columns]
            part[: len(flat)] = flat.view(np.uint32) if flat.itemsize == 8 else flat
            part[len(flat) :] = part[len(flat) - 1]
        return table

    def read(self, table: np.ndarray, key: Any, places: Any) -> np.ndarray:
        """Return a copy of a key's words [n, *shape] in the table rows `places`."""
        spec = self.specs[key]
        part = table[places, self.place[key]]
        if spec.dtype.itemsize == 8:
            part = np.ascontiguousarray(part).view(np.uint64)
        return np.array(part, dtype=spec.word, order="C").reshape(len(part), *spec.shape)


@dataclass(frozen=True)
class Packed:
    """Chunks, stored one after the other in `words`; chunk i is words[offsets[i]:offsets[i + 1]]."""

    words: np.ndarray  # [W] uint32
    offsets: np.ndarray  # [C + 1] int64
    column_bits: np.ndarray  # [columns] int64: bits of each column over all chunks


def pack(table: np.ndarray, kinds: np.ndarray, counts: np.ndarray) -> Packed:
    """Pack `counts[i]` consecutive rows into chunk i; `kinds[c]` is the number format of column c."""
    chunks, columns = len(counts), len(kinds)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int32)
    plans = np.zeros((chunks, columns, 4), np.uint32)
    bits = np.zeros((chunks, columns), np.int32)
    shared = [as_warp(a) for a in (table, kinds, starts, np.ascontiguousarray(counts, np.int32), plans, bits)]
    launch(writer.plan_columns, chunks * columns, shared)
    sizes = -(-(bits.sum(1, dtype=np.int64) + columns) // 32)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    words = np.zeros(offsets[-1] + 1, np.uint32)
    launch(writer.pack_chunks, chunks, [*shared, as_warp(offsets), as_warp(words)])
    return Packed(words[:-1], offsets, bits.sum(0, dtype=np.int64))


def unpack(addresses: np.ndarray, kinds: np.ndarray, spans: np.ndarray, table: np.ndarray, workers: Workers) -> None:
    """Decode rows of chunks into `table`; the chunks are not copied.

    Args:
        addresses: [S] uint64, memory address of each span's chunk; `AHEAD` bytes after a chunk must be readable.
        kinds: [columns] int32, number format of each column.
        spans: [S, 4] int32: rows of the chunk, first requested row, number of requested rows, first row of `table` to fill.
        table: [rows, columns] uint32, filled with zeros; receives the rows.
    """
    args = [as_warp(addresses), _kinds(kinds.tobytes()), as_warp(spans), as_warp(table)]
    workers.share(len(spans), lambda a, b: launch(reader.unpack_rows, b - a, args, a), LEAST_SPANS)


def check(words: np.ndarray, offsets: np.ndarray, counts: np.ndarray, columns: int) -> bool:
    """Return whether every chunk has a valid structure, so that `unpack` can read it safely."""
    padded = np.concatenate([words, np.zeros(2, np.uint32)])
    good = np.zeros(len(counts), np.int32)
    args = [as_warp(padded), as_warp(offsets), as_warp(np.ascontiguousarray(counts, np.int32)), columns, as_warp(good)]
    launch(reader.check_chunks, len(counts), args)
    return bool(good.all())


@functools.lru_cache(64)
def _kinds(data: bytes) -> Any:
    """Return the int32 number formats in `data` as a Warp array; cached, because it costs as much as decoding ten rows."""
    return wp.array(np.frombuffer(data, np.int32), dtype=wp.int32, device="cpu")


def as_warp(array: np.ndarray) -> Any:
    """Return the array as a Warp array that shares its memory."""
    assert array.flags.c_contiguous
    view: Any = wp.array(ptr=array.ctypes.data, shape=array.shape, dtype=_WARP[array.dtype], device="cpu", copy=False)
    view.owner = array  # Warp keeps only the address: a temporary array would be freed before the launch
    return view


def launch(kernel: Any, count: int, args: Sequence[Any], first: int = 0) -> None:
    """Run a kernel for `count` items from `first`, on the calling thread."""
    if count:
        wp.launch(kernel, dim=count, inputs=[first, *args], device="cpu")
