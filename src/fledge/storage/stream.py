"""Send rollouts between machines: compressed messages over a socket or a file object.

A message is b"FLR1", its length (uint64, little-endian) and that many bytes: the native file that `RolloutStorage` writes, so
every tensor has a checksum. The sender is not trusted: a message may take at most `max_bytes`, compressed and decompressed;
memory is allocated as bytes arrive; no code is run and no file opened; every fault raises a FormatError.
"""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

import torch

from fledge.core.errors import FormatError, InputError
from fledge.storage.checkpoint import check_level, stage_now
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.format.rollout import describe, read_rollout, time_last, to_tree
from fledge.storage.format.tree import unflatten
from fledge.storage.format.writer import write_native

if TYPE_CHECKING:
    from tensordict import TensorDictBase

MAGIC = b"FLR1"
_HEAD = struct.Struct("<4sQ")
MAX_BYTES = 2**30
_PART = 2**20  # bytes read at a time


def send(rollout: TensorDictBase, stream: Any, compression_level: int = 1) -> int:
    """Send one rollout; return the number of bytes sent.

    Args:
        rollout: A TensorDict with batch size [T, N], or with a batch axis named "time"; or a `CompressedBatch` of these.
        stream: A connected socket, or a binary file object.
        compression_level: 0 (no compression) to 9 (smallest); `fledge advise` measures which is best for a connection.
    """
    write = _method(stream, "sendall", "write")
    message = pack_rollout(rollout, compression_level)
    write(_HEAD.pack(MAGIC, len(message)))
    write(message)
    if not hasattr(stream, "sendall") and hasattr(stream, "flush"):
        stream.flush()
    return _HEAD.size + len(message)


def receive(stream: Any, device: torch.device | str = "cpu", max_bytes: int = MAX_BYTES) -> TensorDictBase | None:
    """Wait for one rollout and return it; return None if the stream has ended before the next message began.

    Args:
        stream: A connected socket, or a binary file object.
        device: Where its tensors go.
        max_bytes: The largest size of a message, compressed and decompressed.

    Raises:
        FormatError: The stream ended inside a message, or holds something that is not a rollout.
    """
    read = _method(stream, "recv", "read")
    head = _read(read, _HEAD.size)
    if not head:
        return None
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        raise FormatError("the next bytes of the stream are not a rollout: send only rollouts on it.")
    if len(head) < _HEAD.size:
        raise FormatError("the stream ended inside the head of a message: check the sender.")
    length = _HEAD.unpack(head)[1]
    if length > max_bytes:
        raise FormatError(
            f"a message declares {length} bytes, above max_bytes={max_bytes}: raise max_bytes if you trust the sender."
        )
    message = _read(read, length)
    if len(message) < length:
        raise FormatError(f"the stream ended after {len(message)} of {length} bytes of a message: check the sender.")
    return unpack_rollout(message, device, max_bytes)


def pack_rollout(rollout: TensorDictBase, compression_level: int = 1) -> bytes:
    """Return a rollout as the bytes of a native file."""
    check_level("native", compression_level)
    rollout = rollout.decode() if hasattr(rollout, "decode") else rollout  # a CompressedBatch
    note = describe(rollout)
    node, leaves = stage_now(to_tree(rollout))
    time_last(leaves, note["time_dim"])
    out = io.BytesIO()
    write_native(out, node, leaves, level=compression_level, metadata={"rollout": note})
    return out.getvalue()


def unpack_rollout(message: bytes, device: torch.device | str = "cpu", max_bytes: int = MAX_BYTES) -> TensorDictBase:
    """Decode a rollout from the bytes of `pack_rollout`; they are not trusted, and malformed ones raise a FormatError."""
    with CheckpointFile("the received rollout", stream=io.BytesIO(message)) as opened:
        total = sum(entry.nbytes for entry in opened.entries)
        if total > max_bytes:
            raise FormatError(
                f"a message expands to {total} bytes, above max_bytes={max_bytes}: raise max_bytes if you trust the sender."
            )
        return read_rollout(opened, device)


def pack_state(state: Any, compression_level: int = 1) -> bytes:
    """Return a state (nested dicts and lists of tensors and plain values) as the bytes of a native file."""
    check_level("native", compression_level)
    node, leaves = stage_now(state)
    out = io.BytesIO()
    write_native(out, node, leaves, level=compression_level)
    return out.getvalue()


def unpack_state(message: bytes, what: str = "the received state") -> Any:
    """Decode a state from the bytes of `pack_state`; they are not trusted, and malformed ones raise a FormatError."""
    with CheckpointFile(what, stream=io.BytesIO(message)) as opened:
        return unflatten(opened.tree, opened.read)


def _method(stream: Any, of_socket: str, of_file: str) -> Any:
    found = getattr(stream, of_socket, None) or getattr(stream, of_file, None)
    if found is None:
        raise InputError(f"the stream is a {type(stream).__name__}, but must be a socket or a binary file object.")
    return found


def _read(read: Any, count: int) -> bytes:
    """Read `count` bytes, or fewer at the end of the stream; allocate memory as bytes arrive."""
    found = bytearray()
    while len(found) < count and (part := read(min(count - len(found), _PART))):
        found += part
    return bytes(found)
