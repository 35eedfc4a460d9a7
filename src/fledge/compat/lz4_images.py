"""Images, grid maps and sequences of them as LZ4 frames: any LZ4 reader returns their plain bytes.

A skippable frame after the data, which LZ4 readers ignore, holds shape and dtype, so that they need not be passed to
`decompress_*` and the replay buffer. Frames of other programs lack it; they are read if shape and dtype are passed.
Bytes are not trusted: a malformed or oversized frame raises FormatError. `fledge.compress_image` compresses better, in a
format of its own.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import lz4.frame
import numpy as np
import torch

from fledge.core.errors import ConfigError, FormatError, InputError
from fledge.replay import images as native
from fledge.storage.format.interop import MAX_LZ4_LEVEL

SKIPPABLE = 0x184D2A5F
_HEAD = struct.Struct("<II")
MAX_NOTE = 1024
DAMAGED = (
    "The shape and dtype stored after the LZ4 frame cannot be read: the bytes are damaged. Compress the image again."
)


def compress_image(img: np.ndarray | torch.Tensor, level: int = 9) -> bytes:
    """Return an image as an LZ4 frame, losslessly compressed at a level of 0 (fastest) to 16 (smallest)."""
    return _pack(_as_array(img), level)


def compress_image_seq(images: np.ndarray | torch.Tensor | Sequence[Any], level: int = 9) -> bytes:
    """Return a sequence of images, [T, ...] or a list, as one LZ4 frame."""
    whole = isinstance(images, np.ndarray | torch.Tensor)
    array = _as_array(images) if whole else np.stack([_as_array(image) for image in images])
    if array.ndim < 1:
        raise InputError("images is a single number, but must be a sequence of images.")
    return _pack(array, level)


def decompress_image(
    compressed_data: bytes, output_type: str = "np", dtype: Any = None, shape: Sequence[int] | None = None
) -> np.ndarray:
    """Return the image in an LZ4 frame.

    Args:
        output_type: Must be "np": the result is a NumPy array.
        dtype: Dtype, for a frame that does not contain it; uint8 by default.
        shape: Shape, for a frame that does not contain it; one axis by default.
    """
    if output_type != "np":
        raise InputError(f"output_type is {output_type!r}, but must be 'np': use PIL.Image.fromarray on the array.")
    shape, kind = describe(compressed_data, shape, dtype)
    if shape is None:
        shape = (_content_size(compressed_data) // kind.itemsize,)
    return native.decompress_image(compressed_data, shape, kind)


def decompress_image_seq(
    compressed_data: bytes, image_shape: Sequence[int] | None = None, batch_size: int | None = None, dtype: Any = None
) -> np.ndarray:
    """Return the images in an LZ4 frame, [batch_size, *image_shape].

    Args:
        image_shape: Shape of one image; needed only if the frame does not contain it (`compress_image_seq` adds it).
        batch_size: Number of images; needed in the same case.
        dtype: Dtype, for a frame that does not contain it; uint8 by default.
    """
    if not native.is_lz4(compressed_data):
        return native.decompress_image_seq(compressed_data, image_shape, batch_size)
    given = None if image_shape is None or batch_size is None else (int(batch_size), *image_shape)
    shape, kind = describe(compressed_data, given, dtype)
    if shape is None:
        raise InputError("The LZ4 frame does not contain its shape: pass image_shape, batch_size and dtype.")
    return native.decompress_image_seq(compressed_data, shape[1:], shape[0], kind)


def decompress_single_gridmap(args: tuple[bytes, Sequence[int], int, Any, int]) -> torch.Tensor:
    """Return one frame of a compressed episode as a tensor. It takes one tuple, for `executor.map`.

    Args:
        args: (compressed_data, image_shape, episode_len, dtype, episode_relative_idx).
    """
    compressed_data, image_shape, episode_len, dtype, episode_relative_idx = args
    episode = decompress_image_seq(compressed_data, image_shape, episode_len, dtype=dtype)
    return torch.tensor(episode[episode_relative_idx])


def describe(
    data: bytes, shape: Sequence[int] | None = None, dtype: Any = None
) -> tuple[tuple[int, ...] | None, np.dtype]:
    """Return shape and dtype of a frame: those passed, or else those that the frame contains, or else None and uint8."""
    note = _note(data)
    if note is not None:
        shape, dtype = note["shape"] if shape is None else shape, note["dtype"] if dtype is None else dtype
    return None if shape is None else tuple(shape), np.dtype(np.uint8 if dtype is None else dtype)


def native_level(level: int, name: str = "compression_level") -> int:
    """Return Fledge's compression level (0 to 9) that corresponds to an LZ4 level (0 to 16), called `name` in errors."""
    if not isinstance(level, int | np.integer) or isinstance(level, bool) or not 0 <= level <= MAX_LZ4_LEVEL:
        raise ConfigError(f"{name} is {level!r}, but must be a whole number from 0 to {MAX_LZ4_LEVEL}.")
    return min(int(level), 9)


def _pack(array: np.ndarray, level: int) -> bytes:
    native_level(level, "level")
    frame = lz4.frame.compress(array.tobytes(), compression_level=int(level), store_size=True)
    note = json.dumps({"dtype": array.dtype.str, "shape": array.shape}).encode()
    return b"".join([frame, _HEAD.pack(SKIPPABLE, len(note)), note])


def _note(data: bytes) -> dict[str, Any] | None:
    """Return shape and dtype from the skippable frame at the end; None if there is no such frame."""
    tail = bytes(data[-MAX_NOTE - _HEAD.size :])
    place = tail.rfind(struct.pack("<I", SKIPPABLE))
    if place < 0 or len(tail) < place + _HEAD.size:
        return None
    length = _HEAD.unpack_from(tail, place)[1]
    if place + _HEAD.size + length != len(tail):
        return None
    try:
        note = json.loads(tail[place + _HEAD.size :])
        dtype, shape = np.dtype(str(note["dtype"])), note["shape"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(DAMAGED) from error
    whole = isinstance(shape, list) and all(type(n) is int and 0 <= n < 2**40 for n in shape)
    if dtype.kind not in "biufc" or not whole or math.prod(shape) > 2**48:
        raise FormatError(DAMAGED)
    return {"dtype": dtype, "shape": tuple(shape)}


def _content_size(data: bytes) -> int:
    """Return the uncompressed size that the header of an LZ4 frame states, in bytes."""
    try:
        size = int(lz4.frame.get_frame_info(bytes(data))["content_size"])
    except RuntimeError as error:
        raise FormatError(f"The bytes are not an LZ4 frame ({error}): pass the bytes of compress_image.") from error
    if not size:
        raise InputError("The LZ4 frame does not contain its size: pass shape and dtype.")
    return size


def _as_array(image: Any) -> np.ndarray:
    array = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    if array.dtype.kind not in "biufc":
        raise InputError(f"The image is {array.dtype}, but must hold numbers or booleans.")
    return np.ascontiguousarray(array)
