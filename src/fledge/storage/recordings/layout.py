"""File format of recordings (see docs/storage/recordings.md): scenes and frames of many episodes of any task.

A file is a line with name and version, then records, each a head of 32 bytes and its payload. Written data never changes, so
a file may be read while it grows, and a truncated one plays up to its end. Readers trust nothing: every head and payload has
a checksum, every size is checked before memory is allocated, and every fault raises a FormatError. There is no pickle; a file
never makes a reader run code or open other files.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xxhash

from fledge.core.errors import FormatError, InputError
from fledge.storage.format import codecs

NAME, VERSION = b"fledge-recording ", 1
LINE = NAME + b"%d\n" % VERSION
HEADER, ARRAY, BEGIN, FRAMES, END, CLOSE = KINDS = range(1, 7)
CODECS = ("raw", "lz4-shuffle", "zstd-shuffle", "zstd-bytedelta", "pco")  # by the number in a file

MAX_BLOCK_BYTES = 64 * 2**20  # size of an array, or of the frames of one record, decompressed
MAX_PAYLOAD, MAX_JSON = MAX_BLOCK_BYTES + 2**16, 4 * 2**20  # incompressible data and its description fit too
LIMITS = dict.fromkeys(KINDS, MAX_JSON) | {ARRAY: MAX_PAYLOAD, FRAMES: MAX_PAYLOAD}
MAX_READ = 2**30  # bytes decompressed by one call
MAX_FIELDS, MAX_DIMS = 256, 8
MAX_FRAME = 2**31  # frames of an episode
MAX_OUTCOME = 64  # characters
_DTYPE = re.compile(r"[<|](b1|[iu][1248]|f[248])")
_FIELD_NAME = re.compile(r"[^\W\d][\w.\-/ ]{0,63}")
_HEAD = struct.Struct("<2sBxIIIIQI")
_SYNC = b"\x89R"
_MEMBER = struct.Struct("<BI")
HEAD_BYTES = _HEAD.size


class Head(NamedTuple):
    """Head of a record."""

    kind: int  # one of KINDS
    episode: int  # number of the episode, or of the array
    first: int  # number of the first frame
    frames: int  # number of frames
    length: int  # bytes of the payload
    check: int  # checksum of the payload


@dataclass(frozen=True)
class Field:
    """Name, dtype and shape of one entry of a frame."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of this entry in one frame."""
        return math.prod(self.shape) * self.dtype.itemsize


def record(kind: int, payload: bytes, episode: int = 0, first: int = 0, count: int = 0) -> bytes:
    """Return a record as bytes: its head, then its payload."""
    if len(payload) > LIMITS[kind]:
        size = f"takes {len(payload)} bytes, but at most {LIMITS[kind]} are allowed"
        raise InputError(f"a scene, its facts or a block of frames {size}: record less.")
    head = _HEAD.pack(_SYNC, kind, episode, first, count, len(payload), xxhash.xxh3_64_intdigest(payload), 0)[:-4]
    return head + struct.pack("<I", xxhash.xxh3_64_intdigest(head) & 0xFFFFFFFF) + payload


def read_head(data: bytes) -> Head:
    """Parse the head of a record; raise FormatError unless it is valid."""
    sync, kind, episode, first, count, length, check, own = _HEAD.unpack(data)
    if sync != _SYNC or xxhash.xxh3_64_intdigest(data[:-4]) & 0xFFFFFFFF != own:
        raise FormatError("there is no valid record")
    if kind not in KINDS or length > LIMITS[kind] or first + count > MAX_FRAME:
        raise FormatError(f"a record has an invalid head: kind {kind}, {length} bytes, {count} frames")
    return Head(kind, episode, first, count, length, check)


def check_dtype(dtype: np.dtype[Any], what: str) -> np.dtype[Any]:
    """Return the little-endian form of a dtype; raise InputError if a recording cannot hold it."""
    dtype = dtype.newbyteorder("<") if dtype.byteorder not in "|<" else dtype
    if not _DTYPE.fullmatch(np.dtype(dtype).str):
        raise InputError(f"{what} has dtype {dtype}, but a recording holds numbers and booleans only: convert it.")
    return dtype


def describe_fields(frame: dict[str, np.ndarray]) -> list[Field]:
    """Return the fields of an example frame; raise InputError if a recording cannot hold such frames."""
    fields = [Field(k, check_dtype(v.dtype, f"frame entry {k!r}"), v.shape) for k, v in frame.items()]
    wrong = [f.name for f in fields if not _FIELD_NAME.fullmatch(f.name)]
    if wrong:
        allowed = "up to 64 letters, digits, spaces and any of _ . - /, and begin with a letter or _"
        raise InputError(f"the frame has an entry named {wrong[0]!r}, but a name must have {allowed}.")
    if not 1 <= len(fields) <= MAX_FIELDS:
        raise InputError(f"the frame has {len(fields)} entries, but must have 1 to {MAX_FIELDS}.")
    deep = [f for f in fields if len(f.shape) > MAX_DIMS]
    if deep:
        raise InputError(
            f"frame entry {deep[0].name!r} has {len(deep[0].shape)} axes, but may have at most {MAX_DIMS}."
        )
    size = sum(field.nbytes for field in fields)
    if not 0 < size <= MAX_BLOCK_BYTES:
        raise InputError(f"the frame has {size} bytes, but must have 1 to {MAX_BLOCK_BYTES}.")
    return fields


def read_fields(entries: Any) -> list[Field]:
    """Parse and check the list of fields in a recording's header."""
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_FIELDS:
        raise FormatError("its header has no valid list of the fields of a frame")
    fields = []
    for entry in entries:
        named = isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str)
        if not named or not _FIELD_NAME.fullmatch(entry[0]):
            raise FormatError(f"{str(entry)[:60]} is not a field: a field is [name, dtype, shape]")
        fields.append(Field(entry[0], *read_description(*entry[1:])))
    if len({field.name for field in fields}) < len(fields):
        raise FormatError("two of its fields have the same name")
    if not sum(field.nbytes for field in fields):
        raise FormatError("all of its fields are empty")
    return fields


def read_description(dtype: Any, shape: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Parse the dtype and shape of an array in a file; raise FormatError if they are invalid or too large."""
    if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
        raise FormatError(f"{str(dtype)[:40]!r} is not a dtype that a recording may hold")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(type(n) is int and n >= 0 for n in shape):
        raise FormatError(f"{str(shape)[:60]} is not a valid shape")
    if math.prod(n or 1 for n in shape) * np.dtype(dtype).itemsize > MAX_BLOCK_BYTES:
        raise FormatError(f"an array of shape {str(shape)[:60]} is larger than a recording may hold")
    return np.dtype(dtype), tuple(shape)


def pack(array: np.ndarray) -> bytes:
    """Return an array in C order as codec, length and compressed bytes; the same array gives the same bytes."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
    word = array.dtype.itemsize
    # consecutive values are similar, also floats: pass floats=False, so that pcodec looks for differences
    name = codecs.choose(data, word, False, [name for name in CODECS if name != "raw"])
    name, parts = codecs.encode(name, data, word, False)
    packed = b"".join(parts)
    return _MEMBER.pack(CODECS.index(name), len(packed)) + packed


def unpack(member: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return the array that was given to `pack`; `member` holds exactly the bytes that `pack` returned."""
    codec, packed = member[0], member[_MEMBER.size :]
    nbytes = math.prod(shape) * dtype.itemsize
    if codec >= len(CODECS) or nbytes > min(MAX_BLOCK_BYTES, codecs.MAX_EXPANSION * len(packed)):
        raise FormatError(f"{len(packed)} bytes of codec {codec} cannot hold an array of {nbytes} bytes")
    out = np.empty(nbytes, np.uint8)
    codecs.decode(CODECS[codec], packed, out, dtype.itemsize)
    return (out != 0 if dtype == np.bool_ else out.view(dtype)).reshape(shape)


def split(payload: bytes, count: int) -> list[memoryview]:
    """Split a payload into its `count` members, each of which is the result of one call of `pack`."""
    view, place, members = memoryview(payload), 0, []
    for _ in range(count):
        length = _MEMBER.unpack_from(view, place)[1] if place + _MEMBER.size <= len(view) else MAX_PAYLOAD
        if place + _MEMBER.size + length > len(view):
            raise FormatError("a record ends in the middle of a field")
        members.append(view[place : place + _MEMBER.size + length])
        place += _MEMBER.size + length
    if place < len(view):
        raise FormatError("a record has data after its last field")
    return members


def to_json(value: Any) -> bytes:
    """Return a value as JSON; raise InputError if a text in it is not valid Unicode."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        wrong = f"{text[error.start]!r}, half of a surrogate pair"
        raise InputError(f"a text of the recording holds {wrong}, which is not valid Unicode: remove it.") from error


def from_json(payload: bytes, kind: type = dict) -> Any:
    """Parse JSON; raise FormatError unless the value is of type `kind`."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise FormatError("a record's JSON cannot be read") from error
    if not isinstance(value, kind):
        raise FormatError(f"a record's JSON is not a {kind.__name__}")
    return value
