"""The store of one key with large frames: chunks of whole frames, time-innermost, each through a general codec.

Contract: see `base`. Decoding a chunk decodes all of it, once per `take`. Bytes that are only 0 and 1 (occupancy maps)
are first packed to bits, eight to a byte: a 224 x 224 map then decodes in 21 us instead of 59, from half the bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge.replay.schema import KeySpec
from fledge.replay.stores.base import Store
from fledge.replay.workers import Workers
from fledge.storage.format import codecs

BITS = "bits+lz4-shuffle"  # eight cells to a byte, then LZ4
_AFTER_BITS = "lz4-shuffle"
CODECS = (*codecs.CODEC_NAMES, BITS)


def encode_block(codec: str, data: np.ndarray, word: int) -> bytes:
    """A chunk's bytes (uint8) compressed, or as they are where that saves less than 5 %: the length tells which."""
    if not data.nbytes:
        return b""
    if codec == BITS:
        if data.max() > 1 or data.nbytes == 1:  # a single byte of bits could not be told from the byte itself
            return data.tobytes()
        data, codec = np.packbits(data), _AFTER_BITS
    return b"".join(codecs.encode(codec, data, word, False)[1])


def decode_block(codec: str, blob: memoryview, out: np.ndarray, word: int) -> None:
    """Fill `out` (uint8) from what `encode_block` made; FormatError if it does not fit."""
    if codec != BITS or len(blob) == out.nbytes:
        codecs.decode("raw" if len(blob) == out.nbytes else codec, blob, out, word)
        return
    bits = np.empty(-(-out.nbytes // 8), np.uint8)
    codecs.decode("raw" if len(blob) == bits.nbytes else _AFTER_BITS, blob, bits, 1)
    out[:] = np.unpackbits(bits, count=out.nbytes)


class BlockRows:
    """Rows of one key, already gathered. Picking a run of them does not copy: different runs are different memory."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def pick(self, key: str, places: Any) -> np.ndarray:
        return np.ascontiguousarray(self.array[places])


class BlockStore(Store):
    """One key, in chunks of `rows` frames (None: the whole episode), time-innermost, each through a general codec.

    A chunk that saves less than 5 % is stored raw; its length tells. `cache_bytes` of decoded chunks are kept for later
    batches, the longest unused leave first.
    """

    def __init__(self, key: str, spec: KeySpec, rows: int | None, codec: str, cache_bytes: int = 0) -> None:
        super().__init__([key], rows)
        self.spec, self.codec = spec, codec
        self.cells = spec.frame_bytes // spec.dtype.itemsize
        self.cache_bytes, self._cached = cache_bytes, 0
        self._cache: OrderedDict[int, np.ndarray] = OrderedDict()

    def encode(self, words: Mapping[str, np.ndarray]) -> tuple[int, list[bytes]]:
        array = words[self.keys[0]]
        array = array.reshape(len(array), self.cells)
        step, blobs = self.rows or len(array), []
        for a in range(0, len(array), step):
            data = np.ascontiguousarray(array[a : a + step].T).reshape(-1).view(np.uint8)
            blobs.append(encode_block(self.codec, data, self.spec.dtype.itemsize))
        return len(array), blobs

    def append(self, encoded: Any) -> None:
        rows, blobs = encoded  # from `encode`
        numbers = [self.blobs.append(blob) for blob in blobs]
        self._appended(numbers[0], rows, sum(map(len, blobs)))

    def take(self, episode: np.ndarray, row: np.ndarray, workers: Workers) -> BlockRows:
        lengths = self.length.view()
        row = np.minimum(row, lengths[episode] - 1)
        step = self.rows or int(lengths.max())
        number, inside = self.first.view()[episode] + row // step, row % step
        unique, begin, which = np.unique(number, return_index=True, return_inverse=True)
        order = np.argsort(which, kind="stable")
        edges = np.append(np.searchsorted(which[order], np.arange(len(unique))), len(row)).tolist()
        held = np.minimum(step, lengths[episode] - row // step * step)[begin].tolist()  # rows of each chunk
        chunks = zip(unique.tolist(), held, edges, edges[1:], strict=False)
        jobs = [(number, rows, order[a:b]) for number, rows, a, b in chunks]
        out = np.empty((len(row), self.cells), self.spec.word)
        decoded: list[tuple[int, np.ndarray]] = []
        shards = workers.shards(len(jobs))
        workers.run([_Decoding(self, jobs[a:b], inside, out, decoded) for a, b in shards])
        self._remember(decoded)
        return BlockRows(out.reshape(len(row), *self.spec.shape))

    def decode(self, number: int, rows: int, out: np.ndarray | None = None) -> np.ndarray:
        """Words of a chunk, [cells, rows]; into `out` if that is given."""
        cached = self._cache.get(number)
        if cached is not None:
            return cached
        blob = self.blobs.view(number)
        flat = np.empty(self.cells * rows, self.spec.word) if out is None else out
        data = flat.view(np.uint8)
        decode_block(self.codec, blob, data, self.spec.dtype.itemsize)
        return flat.reshape(self.cells, rows)

    def _remember(self, decoded: list[tuple[int, np.ndarray]]) -> None:
        if not self.cache_bytes:
            return
        for number, array in decoded:
            if number not in self._cache:
                self._cached += array.nbytes
            self._cache[number] = array
            self._cache.move_to_end(number)
        while self._cached > self.cache_bytes:
            self._cached -= self._cache.popitem(last=False)[1].nbytes

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._cache.clear()
        self._cached = 0


class _Decoding:
    """A share of the chunks of one `take`, decoded on whatever thread runs it."""

    def __init__(
        self, store: BlockStore, jobs: list[Any], inside: np.ndarray, out: np.ndarray, seen: list[Any]
    ) -> None:
        self.store, self.jobs, self.inside, self.out, self.seen = store, jobs, inside, out, seen

    def __call__(self) -> None:
        for number, rows, places in self.jobs:
            if rows == 1 and not self.store.cache_bytes:  # one frame: straight to where it goes
                self.store.decode(number, 1, self.out[places[0]])
                self.out[places[1:]] = self.out[places[0]]
                continue
            array = self.store.decode(number, rows)
            self.out[places] = array[:, self.inside[places]].T
            if self.store.cache_bytes:
                self.seen.append((number, array))
