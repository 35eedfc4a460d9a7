"""Images, grid maps and sequences of them as bytes that carry their own description.

Contract
    `compress_image(x)` takes one array or CPU tensor of any shape and dtype; `compress_image_seq(x)` one whose first
    axis is time, stored time-innermost: neighbours in time become neighbours in memory, which is what compresses.
    `decompress_*` gives the same bits, dtype and shape back as a new NumPy array. Bytes from elsewhere are not trusted:
    anything that no version writes raises FormatError, and no more is allocated than `MAX_EXPANSION` times the
    bytes that came. Plain LZ4 frames, which the prior design wrote, are read too; they do not say what they hold, so
    shape and dtype have to be given.

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

import lz4.frame
import numpy as np
import torch

from fledge.core.errors import FormatError, InputError
from fledge.storage.format import codecs
from fledge.storage.format.interop import LZ4_MAGIC
from fledge.storage.format.leaves import word_size

MAGIC = b"FLI1"
MAX_HEADER = 4096
_KINDS = "biufc"
Packed = bytes | bytearray | memoryview


def compress_image(image: np.ndarray | torch.Tensor, level: int = 9) -> bytes:
    """One image, losslessly compressed at a level of 0 (store) to 9 (densest); raw if that saves less than 5 %."""
    return _compress(_as_array(image), level, sequence=False)


def compress_image_seq(images: np.ndarray | torch.Tensor, level: int = 9) -> bytes:
    """A sequence of images [T, ...], losslessly compressed as one."""
    array = _as_array(images)
    if array.ndim < 1:
        raise InputError("the sequence of images is a single number, but must have a first axis for time.")
    return _compress(array, level, sequence=True)


def decompress_image(data: Packed, shape: Sequence[int] | None = None, dtype: Any = np.uint8) -> np.ndarray:
    """The image that `compress_image` was given, or that a plain LZ4 frame holds.

    Args:
        shape: What comes out must have this shape; an LZ4 frame needs it.
        dtype: Of what an LZ4 frame holds.
    """
    if is_lz4(data):
        return _from_lz4(data, shape, dtype)
    return _fitting(_decompress(data, sequence=False), shape)


def decompress_image_seq(
    data: Packed, shape: Sequence[int] | None = None, n: int | None = None, dtype: Any = np.uint8
) -> np.ndarray:
    """The sequence that `compress_image_seq` was given, or that a plain LZ4 frame holds.

    Args:
        shape: Of one image; an LZ4 frame needs it, and `n`.
        n: Number of images.
        dtype: Of what an LZ4 frame holds.
    """
    whole = None if shape is None or n is None else (n, *shape)
    return _from_lz4(data, whole, dtype) if is_lz4(data) else _fitting(_decompress(data, sequence=True), whole)


def is_lz4(data: Packed) -> bool:
    """Whether bytes are an LZ4 frame."""
    return bytes(data[:4]) == LZ4_MAGIC


def is_sequence(data: Packed) -> bool:
    """Whether bytes are what `compress_image_seq` made."""
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    return bytes(view[:4]) == MAGIC and _header(view)[1]


def _fitting(array: np.ndarray, shape: Sequence[int] | None) -> np.ndarray:
    if shape is not None and array.shape != tuple(shape):
        raise InputError(f"the bytes hold images of shape {array.shape}, but {tuple(shape)} was asked for.")
    return array


def _from_lz4(data: Packed, shape: Sequence[int] | None, dtype: Any) -> np.ndarray:
    if shape is None:
        raise InputError(
            "the bytes are a plain LZ4 frame, which does not say what it holds: give shape (n too) and dtype."
        )
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    try:
        unpacker = lz4.frame.LZ4FrameDecompressor()
        content = unpacker.decompress(bytes(data), max_length=nbytes + 1)
    except (RuntimeError, ValueError, EOFError, MemoryError) as error:
        raise FormatError(f"the bytes are not a whole LZ4 frame ({error}): they are torn or altered.") from error
    if len(content) != nbytes or not unpacker.eof:
        raise FormatError(f"the LZ4 frame does not hold the {nbytes} bytes that shape {tuple(shape)} of {kind} has.")
    return np.frombuffer(content, kind).reshape(shape).copy()


def _as_array(image: np.ndarray | torch.Tensor) -> np.ndarray:
    if isinstance(image, torch.Tensor):
        if image.dtype == torch.bfloat16:
            raise InputError(
                "the image is bfloat16, which NumPy does not have: view it as int16 to compress it, and back after."
            )
        image = image.detach().cpu().numpy()
    array = np.asarray(image)
    if array.dtype.kind not in _KINDS or array.dtype.itemsize > 16:
        raise InputError(f"the image is {array.dtype}, but must hold numbers or booleans.")
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


def _decompress(data: Packed, sequence: bool) -> np.ndarray:
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    dtype, shape, name, crc, begin = _read_header(view, sequence)
    nbytes = math.prod(shape) * dtype.itemsize
    member = view[begin:]
    if nbytes > codecs.MAX_EXPANSION * max(len(member), 1):
        raise FormatError(f"the image claims {nbytes} bytes in {len(member)}: it is damaged or hostile.")
    out = np.empty(nbytes, np.uint8)
    codecs.decode(name, member, out, word_size("array", dtype.str))
    if zlib.crc32(out.data) != crc:
        raise FormatError("the image's checksum does not fit its data: it is damaged.")
    array = out.view(dtype)
    if not sequence:
        return array.reshape(shape)
    return np.ascontiguousarray(np.moveaxis(array.reshape([*shape[1:], shape[0]]), -1, 0))


def _header(view: memoryview) -> tuple[dict[str, Any], bool, int]:
    """The header, whether it is of a sequence, and where it ends."""
    if len(view) < 8 or view[:4] != MAGIC:
        raise FormatError("the bytes do not begin with FLI1: they are no compressed image.")
    (length,) = struct.unpack_from("<I", view, 4)
    if length > MAX_HEADER or 8 + length > len(view):
        raise FormatError("the compressed image ends inside its header: it is torn.")
    try:
        header = json.loads(bytes(view[8 : 8 + length]))
        return {key: header[key] for key in ("dtype", "shape", "codec", "crc")}, bool(header["sequence"]), 8 + length
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError("the compressed image's header cannot be read: it is damaged.") from error


def _read_header(view: memoryview, sequence: bool) -> tuple[np.dtype[Any], list[int], str, int, int]:
    header, whole, end = _header(view)
    dtype, shape, name, crc = header.values()
    sizes = isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**40 for n in shape)
    if not sizes or name not in codecs.CODEC_NAMES or type(crc) is not int:
        raise FormatError("the compressed image's header holds values that no version writes: it is damaged.")
    if whole != sequence:
        kind, call = ("a sequence", "decompress_image_seq") if whole else ("one image", "decompress_image")
        raise FormatError(f"the bytes hold {kind}: call {call}.")
    return _read_dtype(dtype, name), shape, name, crc, end


def _read_dtype(text: Any, codec: str) -> np.dtype[Any]:
    known = {np.dtype(c).newbyteorder("<").str: np.dtype(c).newbyteorder("<") for c in "?bBhHiIlLqQefdgFDG"}
    dtype = known.get(text) if isinstance(text, str) else None
    if dtype is None or (dtype.itemsize > 16) or (word_size("array", dtype.str) > 8 and codec != "raw"):
        raise FormatError(f"the compressed image's dtype {str(text)[:20]!r} is none that is written: it is damaged.")
    return dtype
