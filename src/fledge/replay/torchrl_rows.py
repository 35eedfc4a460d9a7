"""Encoding of single rows of a `CompressedStorage`, the form of its bytes in a saved state, and its checkpointer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fledge.core.errors import InputError
from fledge.core.extras import extra
from fledge.replay.checks import damaged
from fledge.replay.stores.block import BITS, decode_block, encode_block
from fledge.storage.checkpoint import load_checkpoint, save_checkpoint

with extra("torchrl"):
    from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase

Key = str | tuple[str, ...]
FILE = "storage.fledge"
ROW_CODEC = "lz4-shuffle"  # decodes fastest, and others are hardly smaller for a single row


def encode_row(row: np.ndarray) -> bytes:
    """Return a row compressed: a letter for the codec, then the compressed bytes."""
    data = row.reshape(-1).view(np.uint8)
    if row.itemsize == 1 and data.max(initial=0) <= 1:
        return b"b" + encode_block(BITS, data, 1)
    return b"c" + encode_block(ROW_CODEC, data, row.itemsize)


def decode_row(blob: bytes, out: np.ndarray) -> None:
    """Decode a row that `encode_row` returned, into `out`."""
    codec = BITS if blob[:1] == b"b" else ROW_CODEC
    decode_block(codec, memoryview(blob)[1:], out.reshape(-1).view(np.uint8), out.itemsize)


def joined(blobs: Mapping[int, bytes]) -> dict[str, Any]:
    """Return numbered blobs as three arrays: their numbers, their sizes, and their joined bytes."""
    numbers: Sequence[int] = sorted(blobs)
    sizes = np.array([len(blobs[n]) for n in numbers], np.int64)
    data = np.frombuffer(b"".join([blobs[n] for n in numbers]), np.uint8)
    return {"numbers": np.array(numbers, np.int64), "sizes": sizes, "data": data}


def split(state: Mapping[str, Any]) -> dict[int, bytes]:
    """Return the blobs by number from the arrays of `joined`; raise FormatError if the sizes do not match the bytes."""
    numbers, sizes, data = (state[name] for name in ("numbers", "sizes", "data"))
    if len(numbers) != len(sizes) or (sizes < 0).any() or sizes.sum() != len(data):
        raise damaged("has rows whose sizes do not match its data", "storage")
    ends = np.cumsum(sizes)
    view = memoryview(np.ascontiguousarray(data, np.uint8).data)
    return {int(n): bytes(view[e - s : e]) for n, s, e in zip(numbers, sizes.tolist(), ends.tolist(), strict=True)}


class CompressedStorageCheckpointer(StorageCheckpointerBase):
    """Checkpointer for TorchRL's `dumps` and `loads`: writes one fledge file into the folder, without decoding rows.

    `loads` verifies every byte and runs no code; an error leaves the storage unchanged.
    """

    def dumps(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Write the storage durably into a folder."""
        save_checkpoint(storage.state_dict(), Path(path) / FILE)

    def loads(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Load the storage from a folder."""
        storage.load_state_dict(load_checkpoint(Path(path) / FILE))

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Raise InputError: hooks need whole TensorDicts, but the rows are saved compressed."""
        raise InputError("A CompressedStorage is saved without hooks: change the rows before they are added.")

    register_load_hook = register_save_hook
