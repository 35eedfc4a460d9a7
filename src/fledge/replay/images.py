"""Compress images, grid maps and sequences of them to self-describing bytes.

`compress_image(x)` takes one array or CPU tensor of any shape and dtype; `compress_image_seq(x)` one whose first axis is time,
which is stored innermost, because neighbours in time compress well. `decompress_*` returns the same bits, dtype and shape as
a new NumPy array. Bytes are not trusted: malformed ones raise FormatError, and no more than `MAX_EXPANSION` times their size
is allocated. Plain LZ4 frames are read too; they do not describe their content, so shape and dtype have to be passed.

Layout: magic b"FLI1", uint32 length of a JSON header, header {dtype, shape, codec, sequence, crc}, then one member
as `storage.format.codecs` writes it.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fledge.core.errors import FormatError, InputError
from fledge.storage.format import codecs
from fledge.storage.format.interop import LZ4_MAGIC, lz4_frame
from fledge.storage.format.leaves import word_size

MAGIC = b"FLI1"
MAX_HEADER = 4096
_KINDS = "biufc"
Packed = bytes | bytearray | memoryview


def compress_image(image: np.ndarray | torch.Tensor, level: int = 9) -> bytes:
    """Compress one image losslessly at a level of 0 (store) to 9 (smallest); raw if compressing saves less than 5 %."""
    return _compress(_as_array(image), level, sequence=False)


def compress_image_seq(images: np.ndarray | torch.Tensor, level: int = 9) -> bytes:
    """Compress a sequence of images [T, ...] losslessly."""
    array = _as_array(images)
    if array.ndim < 1:
        raise InputError("The sequence of images is a single number, but its first axis must be time.")
    return _compress(array, level, sequence=True)


def decompress_image(data: Packed, shape: Sequence[int] | None = None, dtype: Any = np.uint8) -> np.ndarray:
    """Return the image from the bytes of `compress_image`, or from a plain LZ4 frame.

    Args:
        shape: Expected shape; required for an LZ4 frame.
        dtype: Dtype of an LZ4 frame.
    """
    return _decompress(data, shape, dtype, sequence=False)


def decompress_image_seq(
    data: Packed, shape: Sequence[int] | None = None, n: int | None = None, dtype: Any = np.uint8
) -> np.ndarray:
    """Return the images from the bytes of `compress_image_seq`, or from an LZ4 frame of `n` images of `shape`."""
    return _decompress(data, None if shape is None or n is None else (n, *shape), dtype, sequence=True)


def is_lz4(data: Packed) -> bool:
    """Return whether bytes are an LZ4 frame."""
    return bytes(data[:4]) == LZ4_MAGIC


def _from_lz4(data: Packed, shape: Sequence[int] | None, dtype: Any) -> np.ndarray:
    if shape is None:
        raise InputError("The bytes are a plain LZ4 frame: pass shape and dtype (and n for a sequence).")
    kind, nbytes = np.dtype(dtype), math.prod(shape) * np.dtype(dtype).itemsize
    unpacker = lz4_frame().LZ4FrameDecompressor()
    try:
        content = unpacker.decompress(bytes(data), max_length=nbytes + 1)
    except (RuntimeError, ValueError, EOFError, MemoryError) as error:
        raise FormatError(f"The LZ4 frame cannot be read ({error}): it is cut off or damaged.") from error
    if len(content) != nbytes or not unpacker.eof:
        raise FormatError(
            f"The LZ4 frame does not hold the {nbytes} bytes of shape {tuple(shape)} and dtype {kind}: pass the shape "
            "and dtype of the original."
        )
    return np.frombuffer(content, kind).reshape(shape).copy()


def _as_array(image: np.ndarray | torch.Tensor) -> np.ndarray:
    if isinstance(image, torch.Tensor):
        if image.dtype == torch.bfloat16:
            raise InputError("The image is bfloat16, which NumPy does not have: compress image.view(torch.int16).")
        image = image.detach().cpu().numpy()
    array = np.asarray(image)
    if array.dtype.kind not in _KINDS or array.dtype.itemsize > 16:
        raise InputError(f"The image is {array.dtype}, but must hold numbers or booleans.")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _compress(array: np.ndarray, level: int, sequence: bool) -> bytes:
    names = codecs.candidates(level, 0)
    turned = np.moveaxis(array, 0, -1) if sequence else array
    data = np.ascontiguousarray(turned).reshape(-1).view(np.uint8)
    word = word_size("array", array.dtype.str)
    name = codecs.choose(data, word, False, names) if word <= 8 else "raw"
    name, blocks = codecs.encode(name, data, word, False)
    header = {"dtype": array.dtype.str, "shape": list(array.shape), "codec": name, "sequence": sequence}
    text = json.dumps({**header, "crc": zlib.crc32(data.data)}).encode()
    return b"".join([MAGIC, struct.pack("<I", len(text)), text, *blocks])


def _decompress(data: Packed, expected: Sequence[int] | None, lz4_dtype: Any, sequence: bool) -> np.ndarray:
    if is_lz4(data):
        return _from_lz4(data, expected, lz4_dtype)
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    dtype, shape, name, crc, begin = _read_header(view, sequence)
    nbytes = math.prod(shape) * dtype.itemsize
    member = view[begin:]
    if nbytes > codecs.MAX_EXPANSION * max(len(member), 1):
        raise FormatError(f"The image is damaged: {len(member)} compressed bytes cannot hold {nbytes} bytes.")
    out = np.empty(nbytes, np.uint8)
    codecs.decode(name, member, out, word_size("array", dtype.str))
    if zlib.crc32(out.data) != crc:
        raise FormatError("The image is damaged: its content does not match its checksum.")
    if expected is not None and tuple(shape) != tuple(expected):
        raise InputError(
            f"The bytes hold an image of shape {tuple(shape)}, but the argument shape is {tuple(expected)}: correct "
            "it or leave it out."
        )
    if not sequence:
        return out.view(dtype).reshape(shape)
    return np.ascontiguousarray(np.moveaxis(out.view(dtype).reshape([*shape[1:], shape[0]]), -1, 0))


def _read_header(view: memoryview, sequence: bool) -> tuple[np.dtype[Any], list[int], str, int, int]:
    """Return dtype, shape, codec, checksum, and the position of the first byte after the header."""
    if len(view) < 8 or view[:4] != MAGIC:
        raise FormatError(
            "The bytes are not a compressed image: pass what compress_image or compress_image_seq returned."
        )
    (length,) = struct.unpack_from("<I", view, 4)
    if length > MAX_HEADER or 8 + length > len(view):
        raise FormatError("The compressed image ends inside its header: it is cut off.")
    try:
        header = json.loads(bytes(view[8 : 8 + length]))
        text, shape, codec, crc, whole = (header[key] for key in ("dtype", "shape", "codec", "crc", "sequence"))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError("The compressed image's header cannot be read: it is damaged.") from error
    sizes = isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**40 for n in shape)
    if not sizes or codec not in codecs.CODEC_NAMES or type(crc) is not int:
        raise FormatError("The compressed image's header has invalid values: it is damaged.")
    if bool(whole) != sequence:
        kind, call = ("a sequence", "decompress_image_seq") if whole else ("one image", "decompress_image")
        raise FormatError(f"The bytes hold {kind}: call {call}.")
    known = {dtype.str: dtype for dtype in (np.dtype(c).newbyteorder("<") for c in "?bBhHiIlLqQefdgFDG")}
    dtype = known.get(str(text))
    if dtype is None or dtype.itemsize > 16 or (word_size("array", dtype.str) > 8 and codec != "raw"):
        raise FormatError(f"The compressed image's dtype {str(text)[:20]!r} is invalid: it is damaged.")
    return dtype, shape, codec, crc, 8 + length
