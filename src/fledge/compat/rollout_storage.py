"""The module `rollout_storage` of NavRL's add-on: a folder of rollouts in LZ4 files, and compressed rollouts in memory.

    storage = RolloutStorage(save_dir="./rollout_data", compression_level=9)
    storage.save(data, iteration=100)               # rollout_data/rollout_000100.lz4
    data = storage.load(100, device="cuda:0")

A file is an LZ4 frame around a pickled dict of NumPy arrays [N, T, ...], as scripts without fledge write and read it. Fledge
reads it without unpickling (`fledge.storage.format.numpy_pickle`), so files from others are safe to load.
`fledge.RolloutStorage` writes smaller files, in the background.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import lz4.frame
import torch
from tensordict import TensorDictBase

from fledge.collect.compressed import CompressedBatch
from fledge.compat import rollouts
from fledge.compat.devices import usable_device
from fledge.compat.layout import TIME
from fledge.compat.lz4_images import native_level
from fledge.core.errors import InputError, StorageError
from fledge.storage import RolloutStorage as NativeStorage
from fledge.storage import send
from fledge.storage.checkpoint import find_checkpoint
from fledge.storage.disk.durable import durable_file
from fledge.storage.format.lz4_rollout import read_lz4_rollout

__all__ = ["RolloutStorage", "compress_rollout", "compress_rollout_for_storage", "decompress_minibatch"]
__all__ += ["decompress_rollout", "load_rollout_compressed", "make_batches", "save_rollout_compressed"]
__all__ += ["save_to_disk", "sender_to"]

Rollout: TypeAlias = TensorDictBase | CompressedBatch
PROTOCOL = 4


class RolloutStorage:
    """A folder of rollouts, one LZ4 file each; `save` prints three lines, and `load` one line.

    Args:
        save_dir: Folder of the files; created if missing.
        compression_level: 0 (fastest) to 16 (smallest), as in LZ4.
    """

    def __init__(self, save_dir: str | os.PathLike[str], compression_level: int = 9) -> None:
        native_level(compression_level)
        self.compression_level = compression_level
        self._native = NativeStorage(save_dir)
        self.save_dir = Path(save_dir)

    def save(self, data: Rollout, iteration: int) -> Path:
        """Write a rollout durably and return its path."""
        path, serialized = self._path(iteration), _serialize(data, joined=True)
        compressed = lz4.frame.compress(serialized, compression_level=self.compression_level)
        save_to_disk(compressed, path)
        print(f"[Rollout] Saved: {path.name}")
        print(f"          Size: {len(serialized) / 1e6:.2f} MB → {len(compressed) / 1e6:.2f} MB")
        print(f"          Compression: {len(serialized) / len(compressed):.2f}x", flush=True)
        return path

    def load(self, iteration: int, device: str | torch.device = "auto") -> TensorDictBase:
        """Return a rollout; device "auto" is the GPU if there is one, and "cuda" falls back to the CPU with a warning."""
        place, path = usable_device(device), self._path(iteration)
        if path.is_file():
            data = read_lz4_rollout(path, place)
        else:  # written by fledge.RolloutStorage, or with another number of digits
            data, path = self._native.load(iteration, place), self._native._files().get(iteration, path)
        print(f"[Rollout] Loaded: {path.name}", flush=True)
        return data

    def _path(self, iteration: int) -> Path:
        self._native.path(iteration)  # raises InputError for another iteration than 0, 1, ...
        return self.save_dir / f"rollout_{iteration:06d}.lz4"

    def list(self) -> list[int]:
        """Return the iterations of the stored rollouts, in ascending order."""
        return self._native.list()


def save_rollout_compressed(data: Rollout, path: str | os.PathLike[str]) -> Path:
    """Write a rollout as an LZ4 file, print its size, and return its path."""
    compressed = compress_rollout_for_storage(data)
    save_to_disk(compressed, path)
    print(f"Saved compressed rollout: {len(compressed) / 1e6:.2f} MB", flush=True)
    return Path(path)


def load_rollout_compressed(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> TensorDictBase:
    """Return the rollout in an LZ4 file, or in a file of fledge's own format."""
    found, device = find_checkpoint(path), usable_device(device)
    is_lz4 = found.suffix == ".lz4"
    return read_lz4_rollout(found, device) if is_lz4 else rollouts.load_rollout_compressed(found, device)


def compress_rollout_for_storage(data: Rollout, compression_level: int = 9) -> bytes:
    """Return a rollout as the bytes of an LZ4 file, for `save_to_disk`."""
    native_level(compression_level)
    return lz4.frame.compress(_serialize(data, joined=False), compression_level=compression_level)


def save_to_disk(compressed: bytes, path: str | os.PathLike[str]) -> Path:
    """Write bytes durably to a file; after a crash, the file is complete or does not exist."""
    if not isinstance(compressed, bytes | bytearray | memoryview):
        raise InputError(
            f"compressed is a {type(compressed).__name__}, but must be bytes of compress_rollout_for_storage."
        )
    with durable_file(path) as stream:
        stream.write(compressed)
    return Path(path)


def compress_rollout(data: TensorDictBase, compression_level: int = 9) -> CompressedBatch:
    """Compress every tensor of a rollout in memory, losslessly; the rollout is [N, T], or has an axis named "time".

    Args:
        compression_level: 0 to 16, as in LZ4.
    """
    named = not isinstance(data, TensorDictBase) or (data._has_names() and TIME in data.names)
    if not named and len(data.batch_size) == 2:
        data = data.copy().refine_names(..., TIME)
    return rollouts.compress_rollout(data, native_level(compression_level))


def decompress_rollout(compressed: Rollout, device: str | torch.device | None = None) -> TensorDictBase:
    """Return the rollout that was passed to `compress_rollout`; a rollout that is not compressed is returned as it is."""
    device = usable_device(device)
    if isinstance(compressed, TensorDictBase):
        return compressed if device is None else compressed.to(device)
    return rollouts.decompress_rollout(compressed, device)


def decompress_minibatch(
    compressed: CompressedBatch, minibatch_idx: torch.Tensor | Sequence[int], device: str | torch.device | None = None
) -> TensorDictBase:
    """Return transitions of a compressed rollout, [len(minibatch_idx)]; index env * T + step means this step of this env."""
    return rollouts.decompress_minibatch(compressed, minibatch_idx, usable_device(device))


def make_batches(data: Rollout, num_minibatches: int) -> Iterator[torch.Tensor]:
    """Yield shuffled indices of a rollout's transitions in `num_minibatches` equal parts; a remainder is left out."""
    count = data.batch_size.numel()
    if not 1 <= num_minibatches <= count:
        raise InputError(
            f"num_minibatches is {num_minibatches}, but must lie between 1 and {count}, the number of transitions."
        )
    yield from torch.randperm(count)[: count - count % num_minibatches].chunk(num_minibatches)


def sender_to(host: str, port: int, compression_level: int = 1) -> Callable[[Rollout], int]:
    """Connect to another machine; return a function that sends a rollout there and returns the number of bytes sent.

    The rollout may be compressed or not. On the other machine, `fledge.receive(connection)` returns each rollout.

        send_to_machine_B = sender_to("machine-b", 5555)
        send_to_machine_B(compress_rollout(data))
    """
    try:
        connection = socket.create_connection((host, port))
    except OSError as error:
        raise StorageError(f"{host}:{port} cannot be reached ({error}): start the receiver there first.") from error
    return lambda rollout: send(rollout, connection, compression_level)


def _serialize(data: Rollout, joined: bool) -> bytes:
    """Return a pickled dict of NumPy arrays; keys of nested entries are "a/b" if `joined`, else tuples.

    Entries that share memory (one entry with two names) are stored once.
    """
    data = data.decode() if isinstance(data, CompressedBatch) else data
    if not isinstance(data, TensorDictBase):
        raise InputError(f"data is a {type(data).__name__}, but must be a TensorDict, or a CompressedBatch of one.")
    arrays: dict[Any, Any] = {}
    found: dict[Any, Any] = {}
    for key in data.keys(include_nested=True, leaves_only=True):
        value = data[key]
        name = "/".join(key) if joined and isinstance(key, tuple) else key
        if isinstance(value, torch.Tensor):
            if value.dtype == torch.bfloat16:
                raise InputError(f"{key!r} is bfloat16, which NumPy does not have: convert it to float32.")
            place = (value.data_ptr(), value.dtype, value.shape, value.stride())
            value = arrays.setdefault(place, value.detach().cpu().contiguous().numpy())
        found[name] = value
    return pickle.dumps(found, protocol=PROTOCOL)
