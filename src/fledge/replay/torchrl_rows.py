"""Rows of a `CompressedStorage` that are compressed one by one, and its compressed bytes as a saved state has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fledge.replay.saved import damaged
from fledge.replay.stores.block import BITS, decode_block, encode_block

if TYPE_CHECKING:
    from fledge.replay.torchrl_storage import CompressedStorage

Key = str | tuple[str, ...]
ROW_CODEC = "lz4-shuffle"  # single rows: it decodes fastest, and others are hardly denser at this size


class RowReading:
    """A share of the rows that are compressed one by one, decoded on whatever thread runs it."""

    def __init__(
        self, storage: CompressedStorage, out: dict[Key, np.ndarray], rows: np.ndarray, at: np.ndarray
    ) -> None:
        self.storage, self.out, self.rows, self.at = storage, out, rows, at

    def __call__(self) -> None:
        for key, blobs in self.storage._single.items():
            word = self.storage.specs[key].dtype.itemsize
            for place in self.at.tolist():
                blob = memoryview(blobs[int(self.rows[place])])
                target = self.out[key][place].reshape(-1).view(np.uint8)
                decode_block(BITS if blob[:1] == b"b" else ROW_CODEC, blob[1:], target, word)


def encode_row(row: np.ndarray) -> bytes:
    """One large row: a letter for how, and the compressed bytes."""
    data = row.reshape(-1).view(np.uint8)
    if row.itemsize == 1 and data.max(initial=0) <= 1:
        return b"b" + encode_block(BITS, data, 1)
    return b"c" + encode_block(ROW_CODEC, data, row.itemsize)


def read_key(saved: Any) -> Key:
    return tuple(saved) if isinstance(saved, list) else saved


def joined(blobs: Mapping[int, bytes]) -> dict[str, Any]:
    """Numbered blobs as three arrays."""
    numbers: Sequence[int] = sorted(blobs)
    sizes = np.array([len(blobs[n]) for n in numbers], np.int64)
    data = np.frombuffer(b"".join([blobs[n] for n in numbers]), np.uint8)
    return {"numbers": np.array(numbers, np.int64), "sizes": sizes, "data": data}


def split(state: Mapping[str, Any]) -> dict[int, bytes]:
    numbers, sizes, data = (np.asarray(state[k]) for k in ("numbers", "sizes", "data"))
    if len(numbers) != len(sizes) or (sizes < 0).any() or sizes.sum() != len(data):
        raise damaged("has rows that do not fit its data", "storage")
    ends = np.cumsum(sizes)
    view = memoryview(np.ascontiguousarray(data, np.uint8).data)
    return {int(n): bytes(view[e - s : e]) for n, s, e in zip(numbers, sizes.tolist(), ends.tolist(), strict=True)}
