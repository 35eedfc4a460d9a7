"""Encoding of single rows of a `CompressedStorage`, and the form of its bytes in a saved state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fledge.replay.checks import damaged
from fledge.replay.stores.block import BITS, decode_block, encode_block

Key = str | tuple[str, ...]
ROW_CODEC = "lz4-shuffle"  # decodes fastest, and others are hardly smaller for a single row


def encode_row(row: np.ndarray) -> bytes:
    """Compress one row: a letter for the codec, then the bytes."""
    data = row.reshape(-1).view(np.uint8)
    if row.itemsize == 1 and data.max(initial=0) <= 1:
        return b"b" + encode_block(BITS, data, 1)
    return b"c" + encode_block(ROW_CODEC, data, row.itemsize)


def decode_row(blob: bytes, out: np.ndarray) -> None:
    """Decode what `encode_row` returned into `out`."""
    codec = BITS if blob[:1] == b"b" else ROW_CODEC
    decode_block(codec, memoryview(blob)[1:], out.reshape(-1).view(np.uint8), out.itemsize)


def read_key(saved: Any) -> Key:
    return tuple(saved) if isinstance(saved, list) else saved


def joined(blobs: Mapping[int, bytes]) -> dict[str, Any]:
    """Return numbered blobs as three arrays."""
    numbers: Sequence[int] = sorted(blobs)
    sizes = np.array([len(blobs[n]) for n in numbers], np.int64)
    data = np.frombuffer(b"".join([blobs[n] for n in numbers]), np.uint8)
    return {"numbers": np.array(numbers, np.int64), "sizes": sizes, "data": data}


def split(state: Mapping[str, Any]) -> dict[int, bytes]:
    numbers, sizes, data = (np.asarray(state[k]) for k in ("numbers", "sizes", "data"))
    if len(numbers) != len(sizes) or (sizes < 0).any() or sizes.sum() != len(data):
        raise damaged("has rows that do not match its data", "storage")
    ends = np.cumsum(sizes)
    view = memoryview(np.ascontiguousarray(data, np.uint8).data)
    return {int(n): bytes(view[e - s : e]) for n, s, e in zip(numbers, sizes.tolist(), ends.tolist(), strict=True)}
