"""Zip archives: deterministic writing, strict reading.

`ArchiveWriter` writes stored (not deflated) members in one pass without seeking, with fixed dates and attributes, so equal
content gives equal bytes. `unzip`, `zipinfo` and Python's zipfile read the result, also beyond 4 GiB.
`open_archive` checks the directory of an untrusted zip: names unique, relative and plain; nothing encrypted, linked or
overlapping; every member inside the file.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import BinaryIO

from fledge.core.errors import FormatError
from fledge.storage.format.codecs import Block, size_of

_DATE = 0x0021  # 1980-01-01, the first date of the format
_UTF8 = 0x0800
_SIZES_AFTER = 0x0008
_LIMIT = 0xFFFFFFFF
MAX_MEMBERS = 1_000_000


class ArchiveWriter:
    """Writes a zip to a stream without seeking."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.offset = 0
        self._directory: list[bytes] = []

    def add(self, name: str, blocks: Sequence[Block], deflate: Callable[[int], bool] | None = None) -> None:
        """Append one member; compress it by deflate if `deflate(compressed size)` returns True."""
        crc, method, size = 0, 0, size_of(blocks)
        stored = size
        for block in blocks:
            crc = zlib.crc32(block, crc)
        if deflate is not None:
            packer = zlib.compressobj(9, zlib.DEFLATED, -15)
            packed = b"".join([*(packer.compress(block) for block in blocks), packer.flush()])
            if deflate(len(packed)):
                method, stored, blocks = 8, len(packed), [packed]
        encoded = name.encode()
        big = size >= _LIMIT or stored >= _LIMIT
        extra = struct.pack("<HHQQ", 1, 16, size, stored) if big else b""
        short = (_LIMIT, _LIMIT) if big else (stored, size)
        common = struct.pack("<HHHHHIIIHH", 45, _UTF8, method, 0, _DATE, crc, *short, len(encoded), len(extra))
        offset = self.offset
        self._write(b"PK\x03\x04" + common + encoded + extra)
        for block in blocks:
            self._write(block)
        self._directory.append(self._entry(encoded, common[:-4], size, stored, offset))

    def _entry(self, name: bytes, common: bytes, size: int, stored: int, offset: int) -> bytes:
        """Return an entry of the central directory; sizes beyond 32 bits go to the zip64 field."""
        wide = b"".join(struct.pack("<Q", value) for value in (size, stored, offset) if value >= _LIMIT)
        if max(size, stored) >= _LIMIT:  # the local header has both sizes in zip64, so the directory has too
            wide = struct.pack("<QQ", size, stored) + (struct.pack("<Q", offset) if offset >= _LIMIT else b"")
        extra = struct.pack("<HH", 1, len(wide)) + wide if wide else b""
        tail = struct.pack("<HHHHHII", len(name), len(extra), 0, 0, 0, 0o644 << 16, min(offset, _LIMIT))
        return b"PK\x01\x02" + struct.pack("<H", 3 << 8 | 45) + common + tail + name + extra

    def finish(self, comment: bytes) -> None:
        """Write the central directory; the file ends with `comment`."""
        start, count = self.offset, len(self._directory)
        for entry in self._directory:
            self._write(entry)
        size = self.offset - start
        if count >= 0xFFFF or start >= _LIMIT or size >= _LIMIT:
            end = self.offset
            self._write(b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, size, start))
            self._write(b"PK\x06\x07" + struct.pack("<IQI", 0, end, 1))
        short = min(count, 0xFFFF)
        numbers = struct.pack("<HHHHIIH", 0, 0, short, short, min(size, _LIMIT), min(start, _LIMIT), len(comment))
        self._write(b"PK\x05\x06" + numbers + comment)

    def _write(self, block: Block) -> None:
        self.stream.write(block)
        self.offset += len(block)


def open_archive(stream: BinaryIO, label: str, ours: bool = True) -> zipfile.ZipFile:
    """Open an archive and check its directory; raise FormatError if it is not a plain, safe zip.

    If `ours` is False, the zip may also be one of torch.save, which writes the size of a member after its data.
    """
    try:
        archive = zipfile.ZipFile(stream)
    except Exception as error:  # BadZipFile, struct.error, UnicodeDecodeError, ...: zipfile has many
        size = f"it has {stream.seek(0, os.SEEK_END):,} bytes"
        raise FormatError(
            f"{label} is truncated or damaged: {size}, without the directory that a whole file ends with ({error})."
        ) from error
    stream.seek(0, os.SEEK_END)
    file_size, flags = stream.tell(), _UTF8 if ours else _UTF8 | _SIZES_AFTER
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise FormatError(
            f"{label} has {len(members)} members, but at most {MAX_MEMBERS} are allowed: use another file."
        )
    if len({member.filename for member in members}) != len(members):
        raise FormatError(f"{label} has two members of the same name: it is damaged or was altered.")
    place = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        where = f"{label}: member {member.filename[:80]!r}"
        if not safe_name(member.filename) or "\x00" in member.orig_filename:
            raise FormatError(
                f"{where} has an unsafe name: only plain relative names are allowed. Do not trust the file."
            )
        if member.flag_bits & ~flags or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FormatError(
                f"{where} is encrypted or compressed in a way that Fledge does not read: use another file."
            )
        end = member.header_offset + 30 + member.compress_size
        if member.header_offset < place or end > file_size:
            raise FormatError(f"{where} lies outside the file or overlaps another member: the file is damaged.")
        place = end
    return archive


def safe_name(name: str) -> bool:
    """Return True if unpacking a member of this name cannot write outside the target folder."""
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") for part in parts) and "\\" not in name and ":" not in name
    return plain and len(name) <= 512 and name.isprintable()


def read_member(archive: zipfile.ZipFile, name: str, limit: int, label: str) -> bytes:
    """Return the content of a member, after checking its CRC; raise FormatError if it has more than `limit` bytes."""
    try:
        with archive.open(name) as member:
            content = member.read(limit + 1)
    except Exception as error:  # CRC, zlib, KeyError, overlap, wrong local header
        raise FormatError(f"{label}: member {name!r} cannot be read ({error}): the file is damaged.") from error
    if len(content) > limit:
        raise FormatError(f"{label}: member {name!r} has more than the {limit} bytes allowed: the file is damaged.")
    return content
