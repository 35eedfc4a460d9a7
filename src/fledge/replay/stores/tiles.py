"""TileStore: images of one key, as differences to a reference image, in tiles of 64 cells.

One native call decodes all requested frames of a batch, each without its neighbours in time: there are no chains.

Contract: see `base`. A frame is [outer, stack, unit] words (unsigned integers of 1, 2 or 4 bytes). If frames are stacks of
the last `stack` images, newest last, an image is stored once: plane s is the cells [:, s, :], and the frames of a chunk
share planes. Otherwise `stack` is 1, and a frame is a plane. Numbers are little-endian; a chunk of up to `rows` frames is

    1 byte              1 if all cells are 0 or 1 (binary)
    1 byte              1 if plane 0 is the reference: the median of three planes, which is in no frame
    1 byte per frame    only of stacks: planes that it adds: 1 if the others are those of the frame before, else `stack`
    4 bytes per plane   where the plane ends, counted from the start of the chunk
    the planes

    a plane     1 byte, the base: 0 the row above (the cells begin as 0, and at the end each is added to the one `above`
                cells before), 1 the reference; then one bit per tile: 1 if it differs from the base; these bits as
                bytes without the zero ones, after one bit per byte; then the tiles that differ
    a tile      1 byte, not if binary: the width of its codes, plus 128 if some cells have values instead
       codes    if the width is not 0, 64 zig-zag codes of differences to the base: of bytes, for each group of 8 cells `width`
                bytes, each with one bit of all codes; of larger words one code after the other
       values   1 byte: one bit per group of 8 cells; 1 byte for each group in it: one bit per cell; then the values of those
                cells, which replace those from base and codes (not if binary: they are the other value)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge.replay.checks import damaged
from fledge.replay.packing.chunks import launch
from fledge.replay.packing.tile_reader import MAX_STACK, decode_rows
from fledge.replay.packing.tile_writer import MAX_CELLS, MAX_PLANES, encode_chunks
from fledge.replay.schema import KeySpec
from fledge.replay.stores.base import Encoded, Pick, Store, chunk_rows
from fledge.replay.workers import Workers

MAX_ROWS, MIN_ROWS, CHUNK_BYTES = 32, 8, 2**18  # frames per chunk, and bytes of different planes in it
CHUNKS = 16  # to encode in one call
LEAST_BYTES = 2**20  # to decode, per thread: a third of a millisecond
MAX_CHANNELS = 4  # a last axis of this length or less holds channels
TILE = 64


class TileStore(Store):
    """Store of one key with images; `stack` is (outer, stack, unit), see the module."""

    codec = "tiles"

    def __init__(self, key: str, spec: KeySpec, rows: int, stack: tuple[int, int, int]) -> None:
        super().__init__([key], rows)
        self.spec, self.stack, self.step = spec, stack, rows
        outer, _, unit = stack
        self.cells, word = outer * unit, spec.dtype.itemsize
        self.whole = -(-self.cells // TILE) * TILE  # cells of a plane in whole tiles
        line = spec.shape[-1] if outer == 1 else unit
        if len(spec.shape) > 1 and line <= MAX_CHANNELS:
            line *= spec.shape[-2]
        self.above = line if line < self.cells else 1
        self.arguments = [*stack, word, self.above]

    @staticmethod
    def fits(spec: KeySpec, stack: tuple[int, int, int] | None = None) -> bool:
        """Return whether frames can be stored, as stacks if `stack` is given."""
        cells = math.prod(spec.shape)
        outer, count, unit = stack or (1, 1, cells)
        sound = outer >= 1 and unit >= 1 and 1 <= count <= MAX_STACK and outer * count * unit == cells <= 4 * MAX_CELLS
        return sound and outer * unit <= MAX_CELLS and spec.dtype.itemsize in (1, 2, 4) and len(spec.shape) > 0

    def plan(self) -> dict[str, Any]:
        return {**super().plan(), "stack": list(self.stack)}

    def encode(self, words: Mapping[str, np.ndarray]) -> Encoded:
        frames, word = np.ascontiguousarray(words[self.keys[0]]), self.spec.dtype.itemsize
        planes, lead = self.step * self.stack[1] + 1, -(-self.above // TILE) * TILE
        scratch = np.empty(planes * (lead + self.whole), self.spec.word)
        # most bytes of a chunk: every tile packed at full width, and the headers
        room = 2 + self.step + planes * (21 + word * self.whole + self.whole // TILE * 2)
        out = np.empty((min(-(-len(frames) // self.step), CHUNKS), room), np.uint8)
        parts = []
        for begin in range(0, len(frames), CHUNKS * self.step):
            counts = chunk_rows(min(len(frames) - begin, CHUNKS * self.step), self.step)
            at = np.arange(len(counts))
            source = frames.ctypes.data + (begin + at * self.step) * self.spec.frame_bytes
            jobs = np.stack([source, counts, out.ctypes.data + at * room, 0 * at], 1)
            table = np.array([*self.arguments, jobs.ctypes.data, scratch.ctypes.data])
            launch(encode_chunks, len(jobs), [table.ctypes.data])
            parts += [chunk[:size].copy() for chunk, size in zip(out, jobs[:, 3].tolist(), strict=False)]
        return Encoded(len(frames), np.concatenate(parts), np.cumsum([0, *map(len, parts)]))

    def take(self, episode: np.ndarray, row: np.ndarray, workers: Workers) -> Pick:
        lengths = self.length.view()[episode]
        row = np.minimum(row, lengths - 1)
        number, inside = self.first.view()[episode] + row // self.step, row % self.step
        held = np.minimum(lengths - row + inside, self.step)
        frames = self._decode(number, held, inside, workers).reshape(len(row), *self.spec.shape)
        return lambda key, places: np.ascontiguousarray(frames[places])  # a slice is not copied

    def _decode(self, number: np.ndarray, held: np.ndarray, inside: np.ndarray, workers: Workers) -> np.ndarray:
        """Decode frame `inside[i]` of chunk `number[i]`, which has `held[i]` frames."""
        order = np.argsort(number * self.step + inside)  # frames that share planes come one after the other
        number = number[order]
        sizes = self.blobs.sizes()[number - self.blobs.next_number + len(self.blobs)]
        addresses = self.blobs.addresses(number).view(np.int64)
        jobs = np.stack([addresses, sizes, held[order], inside[order], order], 1)
        out = np.empty((len(jobs), self.cells * self.stack[1]), self.spec.word)
        good = np.empty(len(jobs), np.uint8)

        def decode(begin: int, end: int) -> None:
            planes, word = self.stack[1] + 1, self.spec.dtype.itemsize
            scratch = np.zeros(planes + 1 + -(-planes * self.whole * word // 8), np.int64)
            table = np.array([*self.arguments, *(array.ctypes.data for array in (jobs, scratch, out, good))])
            launch(decode_rows, end - begin, [table.ctypes.data], begin)

        workers.share(len(jobs), decode, -(-LEAST_BYTES // max(self.spec.frame_bytes, 1)))
        if not good.all():
            raise damaged(f"has images of {self.keys[0]!r} with an invalid structure")
        return out

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        counts = [chunk_rows(int(n), self.step) for n in self.length.view()]
        rows = np.concatenate([*counts, np.zeros(0, np.int32)]).astype(np.int64)
        number = np.repeat(np.arange(len(rows)), rows) + self.blobs.next_number - len(rows)
        inside = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
        workers, step = Workers(1), max(2**22 // max(self.spec.frame_bytes, 1), 1)
        for a in range(0, len(number), step):  # decode everything once
            part = slice(a, a + step)
            self._decode(number[part], np.repeat(rows, rows)[part], inside[part], workers)


def find_stack(spec: KeySpec, words: np.ndarray) -> tuple[int, int, int] | None:
    """Return how frames [rows, *shape] are stacks of images, as (outer, stack, unit); None if they are not.

    Either along the last axis, as in [height, width, stack], or along the first, as in [stack, height, width].
    """
    cells = math.prod(spec.shape)
    flat = words.reshape(len(words), cells)
    if len(spec.shape) < 2 or not cells or (flat[1:] == flat[:-1]).all():  # nothing moves: no way to tell
        return None
    ways = [(cells // spec.shape[-1], spec.shape[-1]), (1, cells)]
    for (outer, length), axis in zip(ways, (spec.shape[-1], spec.shape[0]), strict=True):
        for count in range(min(axis, MAX_STACK), 1, -1):
            if axis % count:
                continue
            frames = flat.reshape(len(flat), outer, count, length // count)
            if (frames[1:, :, :-1] == frames[:-1, :, 1:]).reshape(len(flat) - 1, -1).all(1).mean() > 0.5:
                return outer, count, length // count
    return None


def tile_rows(spec: KeySpec, layout: str, stack: tuple[int, int, int]) -> int:
    """Return the number of frames per chunk."""
    plane = stack[0] * stack[2] * spec.dtype.itemsize
    rows = min(max(CHUNK_BYTES // max(plane, 1), MIN_ROWS), MAX_ROWS)
    return 1 if layout == "frame" else min(rows, MAX_PLANES // stack[1])
