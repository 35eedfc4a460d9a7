"""CompressedStorage: a compressed storage for TorchRL's replay buffers, samplers and writers.

    rb = TensorDictReplayBuffer(storage=CompressedStorage(1_000_000), batch_size=256)

Contract
    Rows are TensorDicts of tensors of fixed shape and dtype, written at any index and read back bit for bit. `ROWS`
    neighbouring indices form a block: keys with small frames are packed per block (see `packing.chunks`), larger ones
    compressed per row by a general codec; rows of an incomplete block stay uncompressed. Neighbouring indices should be
    neighbours in time: extend it with one trajectory after the other, not with interleaved envs.
    Unlike `DictReplayBuffer` it has no episodes, so a "next" entry is stored a second time.
    Calls from several threads wait for each other. A forked child and a copy are independent storages.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor

from fledge.core.errors import ConfigError, FledgeError, InputError
from fledge.core.extras import extra
from fledge.replay import forks
from fledge.replay.checks import damaged, device_of, reading, whole
from fledge.replay.packing import chunks as packing
from fledge.replay.saved_form import SPEC, STORAGE, check_form
from fledge.replay.schema import KeySpec, as_tensor, from_words, to_words
from fledge.replay.stores.block import MOST_EXPANSION
from fledge.replay.stores.plan import MAX_COLUMNS, PACKED_ROWS
from fledge.replay.torchrl_rows import CompressedStorageCheckpointer, Key, decode_row, encode_row, joined, split
from fledge.replay.workers import Workers

with extra("torchrl"):
    from torchrl.data.replay_buffers.storages import LazyStackStorage

ROWS = PACKED_ROWS


class CompressedStorage(LazyStackStorage):
    """TorchRL storage of compressed rows.

    The base class is `LazyStackStorage`, because TorchRL does not stack batches from such a storage again.

    Args:
        max_size: Largest number of rows.
        device: Device of the rows that are read.
        decode_threads: Threads that decode; None derives it from the cores.
    """

    _default_checkpointer = CompressedStorageCheckpointer
    _filled: np.ndarray  # which rows were written
    _len: int

    def __init__(self, max_size: int, *, device: str | torch.device = "cpu", decode_threads: int | None = None) -> None:
        super().__init__(whole("max_size", max_size, 1, ConfigError))
        self.device = device_of(device)
        self.workers = Workers(decode_threads)
        self.lock = threading.RLock()
        self._set_specs({}, {})
        forks.watch(self)

    def forked(self, number: int) -> None:
        """Do nothing in a forked child: TorchRL draws the samples, so there is no random state here (see `forks`)."""

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            self._close(list(self._open))
            own = {"_filled": self._filled.copy(), "_packed": dict(self._packed), "_open": {}}
            own["_single"] = {key: dict(rows) for key, rows in self._single.items()}
            return {name: value for name, value in {**super().__getstate__(), **own}.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "lock": threading.RLock()})
        forks.watch(self)

    # ---- TorchRL's interface -----------------------------------------------------------------------------------

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write rows at `cursor`: an index, a range, a slice, or a sequence or tensor of indices.

        If `set_cursor`, also record `cursor` as the last one written, as TorchRL's own storages do.
        """
        with self.lock:
            rows = self._indices(cursor)
            if not isinstance(data, TensorDictBase):
                raise InputError(f"The rows are a {type(data).__name__}, but must be a TensorDict.")
            if isinstance(cursor, int) or (isinstance(cursor, torch.Tensor) and cursor.ndim == 0):
                data = data.unsqueeze(0)
            words = self._words(data, len(rows))
            for block in np.unique(rows // ROWS).tolist():
                places = np.flatnonzero(rows // ROWS == block)
                arrays = self._open_block(block)
                for key, array in words.items():
                    arrays[key][rows[places] % ROWS] = array[places]
            self._filled[rows] = True
            self._len = max(self._len, int(rows.max(initial=-1)) + 1)
            ends = {block: min(self.max_size, (block + 1) * ROWS) for block in self._open}
            self._close([block for block, end in ends.items() if self._filled[block * ROWS : end].all()])
            if set_cursor:
                self._set_last_cursor(cursor)

    def get(self, index: Any) -> Any:
        """Return the row at an index, or the rows at several indices as one TensorDict."""
        if isinstance(index, tuple) and len(index) == 1:
            index = index[0]
        single = isinstance(index, int | np.integer) or (isinstance(index, torch.Tensor) and index.ndim == 0)
        with self.lock:
            rows = self._indices(index)
            if len(rows) and not self._filled[rows].all():
                raise IndexError(
                    f"Index {rows[~self._filled[rows]][0]} was never written: read only indices that were set."
                )
            found = {key: from_words(words, self.specs[key]) for key, words in self._take(rows).items()}
        out = TensorDict({}, [len(rows)])
        nests = {key: TensorDict({}, [len(rows), *nest]) for key, nest in self._nests.items()}
        for key, value in (nests | found).items():
            out.set(key, value)
        out = out.to(self.device) if self.device.type != "cpu" else out
        shape = np.shape(index) if isinstance(index, list | np.ndarray | torch.Tensor) else ()
        several = len(shape) > 1 and len(rows) == math.prod(shape)  # not a mask
        return out[0] if single else out.reshape(*shape) if several else out

    def __len__(self) -> int:
        return self._len

    def contains(self, item: Any) -> Any:
        """Return whether an index was written, or for a tensor of indices whether each was written."""
        rows = np.asarray(item)
        inside = (rows >= 0) & (rows < self.max_size)
        found = inside & self._filled[np.where(inside, rows, 0)]
        return bool(found) if found.ndim == 0 else torch.from_numpy(found)

    def _empty(self) -> None:
        self._len = 0
        self._filled = np.zeros(-(-self.max_size // ROWS) * ROWS, bool)
        self._packed: dict[int, bytes] = {}
        self._single: dict[Key, dict[int, bytes]] = {k: {} for k in self.specs if k not in self.columns.specs}
        self._open: dict[int, dict[Key, np.ndarray]] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, compressed; for TorchRL's `state_dict` and `fledge.save_checkpoint`."""
        with self.lock:
            self._close(list(self._open))
            names = {key: list(key) if isinstance(key, tuple) else key for key in [*self.specs, *self._nests]}
            return {
                "specs": [[names[key], spec.to_state()] for key, spec in self.specs.items()],
                "nests": [[names[key], list(nest)] for key, nest in self._nests.items()],
                "filled": self._filled.copy(),
                "length": self._len,
                "packed": joined(self._packed),
                "single": [joined(blobs) for blobs in self._single.values()],
            }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a `state_dict`. An error leaves the storage unchanged."""
        with self.lock:
            before = dict(self.__dict__)
            try:
                with reading("storage"):
                    self._load(state_dict)
            except FledgeError:
                self.__dict__.update(before)
                raise
        self._bump_mutation_revision()

    def _load(self, state: Mapping[str, Any]) -> None:
        state_dict = check_form(state, STORAGE, "storage")
        filled = state_dict["filled"]
        if filled.shape != self._filled.shape:
            saved, own = len(filled), len(self._filled)
            raise InputError(
                f"The saved storage has max_size={saved}, but this one has {own}: make it with max_size={saved}."
            )

        def read(entries: Any, form: Any) -> dict[Key, Any]:
            pairs = check_form(entries, [list], "storage")
            return {tuple(k) if isinstance(k, list) else k: check_form(value, form, "storage") for k, value in pairs}

        specs = {key: KeySpec.from_state(spec) for key, spec in read(state_dict["specs"], SPEC).items()}
        self._set_specs(specs, {k: tuple(nest) for k, nest in read(state_dict.get("nests", []), [int]).items()})
        self._filled, self._len = filled.copy(), state_dict["length"]
        self._packed = split(state_dict["packed"])
        self._single = dict(zip(self._single, map(split, state_dict["single"]), strict=True))
        self._check_packed()

    def close(self) -> None:
        """Stop the decoding threads."""
        self.workers.close()

    # ---- blocks ------------------------------------------------------------------------------------------------

    def _indices(self, cursor: Any) -> np.ndarray:
        if isinstance(cursor, slice):
            cursor = range(*cursor.indices(self._len))
        if isinstance(cursor, torch.Tensor):
            cursor = cursor.cpu().numpy()
        cursor = np.asarray(cursor)
        if cursor.dtype == bool:
            if cursor.shape != (self._len,):
                raise IndexError(f"The mask has shape {cursor.shape}, but must have ({self._len},).")
            cursor = np.flatnonzero(cursor)
        rows = np.atleast_1d(cursor.astype(np.int64)).reshape(-1)
        rows = np.where(rows < 0, rows + self._len, rows)
        if len(rows) and (rows.min() < 0 or rows.max() >= self.max_size):
            raise IndexError(
                f"Indices {rows.min()} to {rows.max()} must lie in 0 to max_size - 1 ({self.max_size - 1})."
            )
        return rows

    def _words(self, data: TensorDictBase, count: int) -> dict[Key, np.ndarray]:
        tensors, nests = {}, {}
        for key, value in data.items(include_nested=True):
            if isinstance(value, torch.Tensor):
                tensors[key] = as_tensor(value, str(key))
            elif isinstance(value, TensorDictBase) and not is_non_tensor(value):
                nests[key] = tuple(value.batch_size[1:])
            else:
                raise InputError(f"{key!r} is a {type(value).__name__}, but must be a tensor: leave it out.")
        specs = self.specs or {key: KeySpec(tuple(v.shape[1:]), v.dtype) for key, v in tensors.items()}
        if set(tensors) != set(specs):
            given, expected = sorted(map(str, tensors)), sorted(map(str, specs))
            raise InputError(f"The rows have keys {given}, but the rows before have {expected}: use the same keys.")
        for key, value in tensors.items():
            spec = specs[key]
            if tuple(value.shape) != (count, *spec.shape) or value.dtype != spec.dtype:
                got = f"{tuple(value.shape)} {value.dtype}"
                raise InputError(f"{key!r} is {got}, but must be {(count, *spec.shape)} {spec.dtype}.")
        if not self.specs:  # learned from the first rows
            self._set_specs(specs, nests)
        return {key: to_words(value, specs[key]) for key, value in tensors.items()}

    def _set_specs(self, specs: dict[Key, KeySpec], nests: dict[Key, tuple[int, ...]]) -> None:
        """Empty the storage and set its keys, and the batch sizes of nested TensorDicts (without the row axis)."""
        self.specs, self._nests = specs, nests
        self.columns = packing.Columns({k: s for k, s in specs.items() if packing.Columns.count(s) <= MAX_COLUMNS})
        self._empty()

    def _open_block(self, block: int) -> dict[Key, np.ndarray]:
        """Return the rows of a block as writable arrays, decoded if the block was compressed."""
        if block not in self._open:
            arrays = {key: np.zeros((ROWS, *spec.shape), spec.word) for key, spec in self.specs.items()}
            if len(rows := np.flatnonzero(self._filled[block * ROWS : (block + 1) * ROWS])):
                for key, words in self._take(block * ROWS + rows).items():
                    arrays[key][rows] = words
            self._open[block] = arrays
        return self._open[block]

    def _close(self, blocks: list[int]) -> None:
        """Compress open blocks, and remove their uncompressed rows."""
        if len(self.columns.kinds) and blocks:
            rows = {key: np.concatenate([self._open[b][key] for b in blocks]) for key in self.columns.place}
            packed = packing.pack(self.columns.table(rows), self.columns.kinds, np.full(len(blocks), ROWS))
            for block, begin, end in zip(blocks, packed.offsets[:-1], packed.offsets[1:], strict=True):
                self._packed[block] = packed.words[begin:end].tobytes()
        for block in blocks:
            arrays = self._open.pop(block)
            for i in np.flatnonzero(self._filled[block * ROWS : (block + 1) * ROWS]).tolist():
                for key, blobs in self._single.items():
                    blobs[block * ROWS + i] = encode_row(arrays[key][i])

    def _take(self, rows: np.ndarray) -> dict[Key, np.ndarray]:
        """Return the packed data (words) of some rows, from uncompressed (open) and compressed blocks."""
        out: dict[Key, np.ndarray] = {}
        block, inside = rows // ROWS, rows % ROWS
        opened = np.isin(block, list(self._open)) if self._open else np.zeros(len(rows), bool)
        closed = np.flatnonzero(~opened)
        if len(self.columns.kinds):
            table = np.zeros((len(rows), len(self.columns.kinds)), np.uint32)
            if len(closed):
                self._unpack(block[closed], inside[closed], closed, table)
            out = {key: self.columns.read(table, key, slice(None)) for key in self.columns.place}
        for key in self._single:
            out[key] = np.zeros((len(rows), *self.specs[key].shape), self.specs[key].word)

        def decode_rows(begin: int, end: int) -> None:
            for key, blobs in self._single.items():
                for place in closed[begin:end].tolist():
                    decode_row(blobs[int(rows[place])], out[key][place])

        self.workers.share(len(closed), decode_rows, 16)
        for place in np.flatnonzero(opened).tolist():
            for key, array in self._open[int(block[place])].items():
                out[key][place] = array[inside[place]]
        return out

    def _unpack(self, block: np.ndarray, inside: np.ndarray, places: np.ndarray, table: np.ndarray) -> None:
        blobs = [self._packed[b] for b in block.tolist()]
        sizes = np.array([len(blob) for blob in blobs]) // 4
        ones, full = np.ones_like(block), np.full_like(block, ROWS)
        spans = np.stack([full, inside, ones, places], 1).astype(np.int32)
        words = np.frombuffer(b"".join([*blobs, bytes(packing.AHEAD)]), np.uint32)
        addresses = (words.ctypes.data + 4 * (np.cumsum(sizes) - sizes)).astype(np.uint64)
        packing.unpack(addresses, self.columns.kinds, spans, table, self.workers)

    def _check_packed(self) -> None:
        """Raise FormatError unless every written row can be read."""
        written = np.flatnonzero(self._filled)
        blocks = np.unique(written // ROWS).tolist()
        blobs = [self._packed.get(b, b"") for b in blocks] if len(self.columns.kinds) else []
        edges = np.concatenate([[0], np.cumsum([len(b) for b in blobs])]).astype(np.int64)
        sound = not (edges % 4).any() and written.max(initial=-1) < self._len <= self.max_size
        if sound and blobs:
            words, counts = np.frombuffer(b"".join(blobs), np.uint32), np.full(len(blobs), ROWS)
            sound = packing.check(words, edges // 4, counts, len(self.columns.kinds))
        least = {key: spec.frame_bytes // MOST_EXPANSION for key, spec in self.specs.items()}
        small = any(len(row) < least[key] for key, rows in self._single.items() for row in rows.values())
        if not sound or small or any(set(rows) != set(written.tolist()) for rows in self._single.values()):
            raise damaged("has rows whose compressed data is missing or invalid", "storage")
        try:
            self.get([])
        except RuntimeError as error:  # TensorDict's
            raise damaged(f"has keys that contradict each other ({error})", "storage") from error
