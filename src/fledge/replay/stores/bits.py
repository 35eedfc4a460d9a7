"""BitStore: large frames of only 0 and 1 (occupancy maps), stored as bits; bytes equal to the row above are left out.

One kernel call decodes all requested frames of a batch; one LZ4 call per frame would take longer.

Contract: see `base`. A frame is [cells] uint8, a chunk up to `ROWS` frames:

    bits       cell i is bit i % 8 of byte i / 8, padded to words of 4 bytes
    coded      each byte xor the byte in the row above, if a row of the frame is a whole number of words (`stride`), so
               that only the outline of a solid area is left
    level 1    one bit per coded byte: 1 if it is not zero; level 2 the same for level 1, level 3 for level 2
    a frame    level 3, then the bytes of level 2, level 1 and coded that are not zero
    a chunk    the size of each frame in bytes, uint32 little-endian, then the frames

A frame with other values than 0 and 1 is stored raw, padded to a multiple of 32 cells, and recognised by its length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge.replay.checks import damaged
from fledge.replay.packing.chunks import as_warp, launch
from fledge.replay.schema import KeySpec
from fledge.replay.stores import bit_kernels as kernels
from fledge.replay.stores.base import Encoded, Pick, Store
from fledge.replay.workers import Workers

ROWS = 8  # frames per chunk; the index takes 24 bytes per chunk
LEAST_FRAMES = 16  # per thread


class BitStore(Store):
    """Store of one key with one byte per cell, from which single frames can be decoded."""

    codec = "bits"

    def __init__(self, key: str, spec: KeySpec) -> None:
        super().__init__([key], ROWS)
        self.spec, self.cells = spec, spec.frame_bytes
        self.size = -(-self.cells // 32)  # words of bits
        self.top = -(-4 * self.size // 512)  # bytes of level 3
        width = spec.shape[-1] if spec.shape else 1
        self.stride = width // 32 if width % 32 == 0 and width < self.cells else 0

    def encode(self, words: Mapping[str, np.ndarray]) -> Encoded:
        frames = words[self.keys[0]].reshape(-1, self.cells)
        parts = [pack_frames(frames[a : a + ROWS], self.stride) for a in range(0, len(frames), ROWS)]
        return Encoded(len(frames), np.concatenate(parts), np.cumsum([0, *map(len, parts)]))

    def take(self, episode: np.ndarray, row: np.ndarray, workers: Workers) -> Pick:
        lengths = self.length.view()[episode]
        row = np.minimum(row, lengths - 1)
        chunk, which = np.unique(self.first.view()[episode] + row // ROWS, return_inverse=True)
        data, offsets = self.blobs.join(chunk)
        frames = np.minimum(lengths - row // ROWS * ROWS, ROWS)
        spans = np.stack([offsets[which], frames, row % ROWS], 1)
        out = np.zeros((len(row), 4 * self.size), np.uint64)
        bits = np.zeros((len(row), self.size), np.uint32)
        args = [as_warp(np.frombuffer(data, np.uint8)), as_warp(spans), self.size, self.top, self.stride]
        args += [as_warp(bits), as_warp(out)]
        workers.share(len(row), lambda a, b: launch(kernels.unpack_frames, b - a, args, a), LEAST_FRAMES)
        cells = out.view(np.uint8)[:, : self.cells].reshape(len(row), *self.spec.shape)
        return lambda key, places: np.ascontiguousarray(cells[places])  # a slice is not copied

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        for data, edges, frames in self.chunks(512):
            good = np.zeros(len(frames), np.int32)
            args = [as_warp(np.frombuffer(data, np.uint8)), as_warp(edges), as_warp(frames.astype(np.int64))]
            launch(kernels.check_chunks, len(frames), [*args, self.size, self.top, as_warp(good)])
            if not good.all():
                raise damaged("has bit-packed frames with an invalid structure")


def pack_frames(frames: np.ndarray, stride: int) -> np.ndarray:
    """Return a chunk of frames [n, cells] uint8 as bytes; a row of a frame has `stride` words of 32 cells (0: no xor)."""
    bits = np.packbits(frames, axis=1, bitorder="little")
    bits = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 4)))
    coded = bits.copy()
    if stride:
        coded[:, 4 * stride :] ^= bits[:, : -4 * stride]
    levels = [coded]
    for _ in range(3):
        levels.insert(0, np.packbits(levels[0] != 0, axis=1, bitorder="little"))
    table = np.concatenate(levels, 1)
    keep = table != 0
    keep[:, : levels[0].shape[1]] = True
    parts = [row[kept] for row, kept in zip(table, keep, strict=True)]
    for i in np.flatnonzero(frames.max(1, initial=0) > 1).tolist():
        parts[i] = np.pad(frames[i], (0, 8 * bits.shape[1] - frames.shape[1]))
    sizes = np.array([len(part) for part in parts], "<u4")
    return np.concatenate([sizes.view(np.uint8), *parts])
