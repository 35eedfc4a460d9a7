"""Read occupancy maps from replay states of version 1. A state is saved in the present form (`tiles`).

A frame is [cells] uint8, a chunk up to `ROWS` frames:

    bits       cell i is bit i % 8 of byte i / 8, padded to words of 4 bytes
    coded      each byte xor the byte in the row above, if a row of the frame is a whole number of words
    level 1    one bit per coded byte: 1 if it is not zero; level 2 the same for level 1, level 3 for level 2
    a frame    level 3, then the bytes of level 2, level 1 and coded that are not zero
    a chunk    the size of each frame in bytes, uint32 little-endian, then the frames

A frame with other values than 0 and 1 is stored raw, padded to a multiple of 32 cells, and recognised by its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fledge.replay.checks import damaged
from fledge.replay.schema import KeySpec
from fledge.replay.stores.base import Encoded, Pick, Store
from fledge.replay.workers import Workers

CODEC = "bits"
ROWS = 8  # frames per chunk


class _Chunks(Store):
    """Chunks of a saved state, to load and iterate."""

    def encode(self, words: Mapping[str, np.ndarray]) -> Encoded:
        raise NotImplementedError

    def take(self, episode: np.ndarray, row: np.ndarray, workers: Workers) -> Pick:
        raise NotImplementedError


def read_frames(state: Mapping[str, Any], key: str, specs: Mapping[str, KeySpec]) -> Iterator[np.ndarray]:
    """Yield the frames of each episode, [rows, *shape] uint8; raise FormatError if they are damaged."""
    store, shape = _Chunks([key], ROWS), specs[key].shape
    store.load(state)
    chunks = store.chunks(1)
    for length in store.length.view().tolist():
        frames = [frame for _ in range(0, length, ROWS) for frame in _read_chunk(*next(chunks), shape)]
        yield np.stack(frames).reshape(length, *shape)


def _read_chunk(data: bytes, edges: np.ndarray, rows: np.ndarray, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    cells, width, count = int(np.prod(shape)), shape[-1] if shape else 1, int(rows[0])
    sizes = np.frombuffer(data, "<u4", count)
    ends = 4 * count + np.cumsum(sizes, dtype=np.int64)
    if ends[-1] != len(data):
        raise damaged("has bit-packed frames with an invalid structure")
    for size, end in zip(sizes.tolist(), ends.tolist(), strict=True):
        frame = np.frombuffer(data, np.uint8, size, end - size)
        yield frame[:cells] if size == -(-cells // 32) * 32 else _read_frame(frame, cells, width)


def _read_frame(frame: np.ndarray, cells: int, width: int) -> np.ndarray:
    lengths = [-(-cells // 32) * 4]  # bytes of coded, and of levels 1 to 3
    for _ in range(3):
        lengths.append(-(-lengths[-1] // 8))
    level, place = frame[: lengths[-1]], lengths[-1]
    for length in reversed(lengths[:-1]):
        marked = np.flatnonzero(np.unpackbits(level, bitorder="little"))
        level = np.zeros(length, np.uint8)
        level[marked] = frame[place : place + len(marked)]
        place += len(marked)
    if place != len(frame):
        raise damaged("has bit-packed frames with an invalid structure")
    if width % 32 == 0 and width < cells:
        level = np.bitwise_xor.accumulate(level.reshape(-1, width // 8), 0).reshape(-1)
    return np.unpackbits(level, bitorder="little")[:cells]
