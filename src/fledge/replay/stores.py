"""Where the frames of episodes live: bit-packed together, or one key at a time in blocks of a general codec.

Contract
    A store holds some keys of every episode, in order. `append(encode(words))` adds one (words per key, [rows, *shape];
    all that can fail is in `encode`, which changes nothing); `evict()` removes the oldest; `take(episode, row)` gives any
    rows, as `Rows`, whose `pick(key, places)` is a fresh, contiguous array; a row past a key's end is its last. Episodes are
    numbered from the oldest kept. Every chunk that a `take` touches is decoded once, on the threads of `workers`;
    the codecs let go of the GIL (measured: Warp's launches, pcodec, and blosc2 as `storage.codecs` sets it).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from fledge.core.errors import FormatError
from fledge.replay import packing
from fledge.replay.blobs import BlobStore
from fledge.replay.int_queue import IntQueue
from fledge.replay.packing import FLOAT, SIGNED, UNSIGNED, Packed
from fledge.replay.schema import KeySpec
from fledge.replay.workers import Workers
from fledge.storage import codecs


class Rows(Protocol):
    """Rows taken from a store."""

    def pick(self, key: str, places: Any) -> np.ndarray: ...


class Columns:
    """How keys lie side by side in a table of uint32 columns: 8-byte words take two, smaller ones are widened."""

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
    def _kinds(spec: KeySpec) -> np.ndarray:
        size = spec.dtype.itemsize
        cells = spec.frame_bytes // size
        signed = not (spec.dtype.is_floating_point or spec.dtype.is_complex) and str(spec.dtype).startswith("torch.int")
        kind = FLOAT if spec.dtype.is_floating_point else SIGNED if signed else UNSIGNED
        if size == 8:
            return np.tile([UNSIGNED, UNSIGNED if spec.dtype.is_complex else kind], cells)
        return np.full(cells, kind if size == 4 else UNSIGNED)

    def fill(self, table: np.ndarray, key: str, words: np.ndarray) -> None:
        """Put words [rows, *shape] into the key's columns; the last row is repeated to the end of the table."""
        flat = np.ascontiguousarray(words).reshape(len(words), -1)
        part = table[:, self.place[key]]
        part[: len(words)] = flat.view(np.uint32) if flat.itemsize == 8 else flat
        part[len(words) :] = part[len(words) - 1]

    def read(self, table: np.ndarray, key: str, places: Any) -> np.ndarray:
        """Fresh words [n, *shape] from rows of a table."""
        spec = self.specs[key]
        part = table[places, self.place[key]]
        if spec.dtype.itemsize == 8:
            part = np.ascontiguousarray(part).view(np.uint64)
        return np.array(part, dtype=spec.word, order="C").reshape(len(part), *spec.shape)


class PackedRows:
    """Rows decoded from packed chunks."""

    def __init__(self, columns: Columns, table: np.ndarray) -> None:
        self.columns, self.table = columns, table

    def pick(self, key: str, places: Any) -> np.ndarray:
        return self.columns.read(self.table, key, places)


class PackedStore:
    """Keys with small frames, packed side by side in chunks of `rows` frames (see `packing`)."""

    def __init__(self, specs: Mapping[str, KeySpec], rows: int) -> None:
        self.columns, self.rows = Columns(specs), rows
        self.keys = list(specs)
        self.blobs = BlobStore()
        self.first, self.length = IntQueue(), IntQueue()  # first chunk and rows of each episode
        self.added = np.zeros(len(self.columns.kinds), np.int64)  # bits per column of all that was ever added
        self.added_rows = 0

    def encode(self, words: Mapping[str, np.ndarray]) -> tuple[int, Packed]:
        rows = max(len(words[key]) for key in self.keys)
        table = np.empty((rows, len(self.columns.kinds)), np.uint32)
        for key in self.keys:
            self.columns.fill(table, key, words[key])
        return rows, packing.pack(table, self.columns.kinds, chunk_rows(rows, self.rows))

    def append(self, encoded: Any) -> None:
        rows, packed = encoded  # from `encode`
        self.first.append(self.blobs.extend(packed.words.view(np.uint8), 4 * packed.offsets))
        self.length.append(rows)
        self.added += packed.column_bits
        self.added_rows += rows

    def evict(self) -> None:
        self.blobs.drop(-(-int(self.length.view()[0]) // self.rows))
        self.first.drop()
        self.length.drop()

    def take(self, episode: np.ndarray, row: np.ndarray, workers: Workers) -> PackedRows:
        row = np.minimum(row, self.length.view()[episode] - 1)
        chunk, inside = row // self.rows, row % self.rows
        number = self.first.view()[episode] + chunk
        # consecutive rows of one chunk are one span
        follows = (number[1:] == number[:-1]) & (inside[1:] == inside[:-1] + 1)
        head = np.flatnonzero(np.concatenate([[True], ~follows]))
        data, offsets = self.blobs.join(number[head], tail=bytes(8))
        spans = np.empty((len(head), 5), np.int32)
        spans[:, 0] = offsets // 4
        spans[:, 1] = np.minimum(self.length.view()[episode[head]] - chunk[head] * self.rows, self.rows)
        spans[:, 2] = inside[head]
        spans[:, 3] = np.diff(head, append=len(row))
        spans[:, 4] = head
        table = np.zeros((len(row), len(self.columns.kinds)), np.uint32)
        packing.unpack(np.frombuffer(data, np.uint32), self.columns.kinds, spans, table, workers)
        return PackedRows(self.columns, table)

    def bytes_per_frame(self, key: str) -> float:
        """Average size of the key's frames, of all that were added; the chunk's own bits are shared evenly."""
        part = self.columns.place[key]
        bits = self.added[part].sum() + (part.stop - part.start) * -(-self.added_rows // self.rows)
        return float(bits / 8 / max(self.added_rows, 1))

    def state(self) -> dict[str, Any]:
        first = self.first.view() - self.blobs.next_number + len(self.blobs)
        return {"blobs": self.blobs.state(), "first": first, "length": self.length.view().copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        load_episodes(self, state, self.rows)
        counts = [chunk_rows(int(n), self.rows) for n in self.length.view()]
        rows = np.concatenate([*counts, np.zeros(0, np.int32)])
        sizes = self.blobs.lengths()
        self.added_rows = int(rows.sum())
        self.added[:] = (
            8 * sizes.sum() // max(len(self.added), 1)
        )  # what each key took is no longer known: an even share
        if (sizes % 4).any():
            raise FormatError("the saved replay has packed chunks of odd lengths: it is damaged.")
        step = 4096  # check a few megabytes at a time: no second copy of the buffer
        for a in range(0, len(sizes), step):
            part = np.arange(a, min(a + step, len(sizes)))
            data, offsets = self.blobs.join(part + self.blobs.next_number - len(self.blobs))
            edges = np.append(offsets, len(data)) // 4
            if not packing.check(np.frombuffer(data, np.uint32), edges, rows[part], len(self.columns.kinds)):
                raise FormatError("the saved replay has packed chunks that no version writes: it is damaged.")


class BlockRows:
    """Rows of one key, already gathered."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def pick(self, key: str, places: Any) -> np.ndarray:
        return np.array(self.array[places], order="C")


class BlockStore:
    """One key, in chunks of `rows` frames (None: the whole episode), time-innermost, each through a general codec.

    A chunk that saves less than 5 % is stored raw; its length tells. `cache_bytes` of decoded chunks are kept for later
    batches, the longest unused leave first.
    """

    def __init__(self, key: str, spec: KeySpec, rows: int | None, codec: str, cache_bytes: int = 0) -> None:
        self.keys, self.spec, self.rows, self.codec = [key], spec, rows, codec
        self.cells = spec.frame_bytes // spec.dtype.itemsize
        self.blobs = BlobStore()
        self.first, self.length = IntQueue(), IntQueue()
        self.cache_bytes, self._cached = cache_bytes, 0
        self._cache: OrderedDict[int, np.ndarray] = OrderedDict()
        self.added_bytes = self.added_rows = 0

    def encode(self, words: Mapping[str, np.ndarray]) -> tuple[int, list[bytes]]:
        array = words[self.keys[0]]
        array = array.reshape(len(array), self.cells)
        step, blobs = self.rows or len(array), []
        for a in range(0, len(array), step):
            data = np.ascontiguousarray(array[a : a + step].T).reshape(-1).view(np.uint8)
            blocks = codecs.encode(self.codec, data, self.spec.dtype.itemsize, False) if data.nbytes else [b""]
            blobs.append(data.tobytes() if blocks is None else b"".join(blocks))
        return len(array), blobs

    def append(self, encoded: Any) -> None:
        rows, blobs = encoded  # from `encode`
        self.first.append(self.blobs.next_number)
        self.length.append(rows)
        for blob in blobs:
            self.blobs.append(blob)
            self.added_bytes += len(blob)
        self.added_rows += rows

    def evict(self) -> None:
        rows = int(self.length.view()[0])
        self.blobs.drop(-(-rows // (self.rows or rows)))
        self.first.drop()
        self.length.drop()

    def take(self, episode: np.ndarray, row: np.ndarray, workers: Workers) -> BlockRows:
        lengths = self.length.view()
        row = np.minimum(row, lengths[episode] - 1)
        step = self.rows or int(lengths.max())
        number, inside = self.first.view()[episode] + row // step, row % step
        wanted, which = np.unique(number, return_inverse=True)
        order = np.argsort(which, kind="stable")
        edges = np.append(np.searchsorted(which[order], np.arange(len(wanted))), len(row)).tolist()
        jobs = [(n, order[a:b]) for n, a, b in zip(wanted.tolist(), edges, edges[1:], strict=False)]
        out = np.empty((len(row), self.cells), self.spec.word)
        decoded: list[tuple[int, np.ndarray]] = []
        shards = workers.shards(len(jobs))
        workers.run([_Decoding(self, jobs[a:b], inside, out, decoded) for a, b in shards])
        self._remember(decoded)
        return BlockRows(out.reshape(len(row), *self.spec.shape))

    def decode(self, number: int) -> np.ndarray:
        """Words of a chunk, [cells, rows]."""
        cached = self._cache.get(number)
        if cached is not None:
            return cached
        blob = self.blobs.view(number)
        rows = self._rows_of(number)
        out = np.empty(self.cells * rows * self.spec.dtype.itemsize, np.uint8)
        name = "raw" if len(blob) == out.nbytes else self.codec
        codecs.decode(name, blob, out, self.spec.dtype.itemsize)
        return out.view(self.spec.word).reshape(self.cells, rows)

    def _rows_of(self, number: int) -> int:
        i = int(np.searchsorted(self.first.view(), number, side="right")) - 1
        rows = int(self.length.view()[i])
        step = self.rows or rows
        return min(step, rows - (number - int(self.first.view()[i])) * step)

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

    def bytes_per_frame(self, key: str) -> float:
        return self.added_bytes / max(self.added_rows, 1)

    def state(self) -> dict[str, Any]:
        first = self.first.view() - self.blobs.next_number + len(self.blobs)
        return {"blobs": self.blobs.state(), "first": first, "length": self.length.view().copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        load_episodes(self, state, self.rows)
        self.added_bytes, self.added_rows = self.blobs.nbytes, int(self.length.view().sum())
        self._cache.clear()
        self._cached = 0


class _Decoding:
    """A share of the chunks of one `take`, decoded on whatever thread runs it."""

    def __init__(
        self, store: BlockStore, jobs: list[Any], inside: np.ndarray, out: np.ndarray, seen: list[Any]
    ) -> None:
        self.store, self.jobs, self.inside, self.out, self.seen = store, jobs, inside, out, seen

    def __call__(self) -> None:
        for number, places in self.jobs:
            array = self.store.decode(number)
            self.out[places] = array[:, self.inside[places]].T
            if self.store.cache_bytes:
                self.seen.append((number, array))


Store = PackedStore | BlockStore


def chunk_rows(rows: int, step: int) -> np.ndarray:
    """Rows of each chunk of an episode."""
    counts = np.full(-(-rows // step), step, np.int32)
    counts[-1] = rows - step * (len(counts) - 1)
    return counts


def load_episodes(store: Store, state: Mapping[str, Any], step: int | None) -> None:
    """Take over blobs and episodes, and check that they agree."""
    blobs = BlobStore()
    blobs.load(dict(state["blobs"]))
    first, length = (np.asarray(state[k], np.int64) for k in ("first", "length"))
    chunks = -(-length // step) if step else np.ones_like(length)
    if first.shape != length.shape or (length < 1).any() or not np.array_equal(first, np.cumsum(chunks) - chunks):
        raise FormatError("the saved replay's episodes do not fit its chunks: it is damaged.")
    if len(blobs) != chunks.sum():
        raise FormatError(f"the saved replay has {len(blobs)} chunks where {chunks.sum()} are due: it is damaged.")
    store.blobs = blobs
    store.first = IntQueue(first + blobs.next_number - len(blobs))
    store.length = IntQueue(length)
