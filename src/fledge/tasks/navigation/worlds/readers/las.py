"""Point clouds of laser scanners: .las and .laz, by laspy. Their unit counts as metres."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from fledge.core.extras import extra
from fledge.tasks.navigation.worlds.content import Points, ReadOptions
from fledge.tasks.navigation.worlds.readers.limits import check_count, check_fits

CHUNK = 1_000_000


def read_las(path: Path, options: ReadOptions, notes: list[str]) -> Points:
    """Read a .las or .laz file."""
    with extra("worlds"):
        import laspy
    _check_records(path)
    with laspy.open(path) as reader:
        count = check_count(path, reader.header.point_count, "points")
        if not reader.header.are_points_compressed:
            size = path.stat().st_size - reader.header.offset_to_point_data
            check_fits(path, count * reader.header.point_format.size, size)
        xyz, done = np.empty((count, 3)), 0
        for part in reader.chunk_iterator(CHUNK):
            for axis, values in enumerate((part.x, part.y, part.z)):
                xyz[done : done + len(part), axis] = values
            done += len(part)
    check_fits(path, count, done)
    return Points(xyz, metres=True)


def _check_records(path: Path) -> None:
    """Raise FormatError if the header declares more records beside the points than the file can hold; laspy reads each."""
    with open(path, "rb") as stream:
        head = stream.read(247).ljust(247, b"\0")
    (records,) = struct.unpack_from("<I", head, 100)
    (extended,) = struct.unpack_from("<I", head, 243) if head[24:26] >= bytes([1, 4]) else (0,)
    check_fits(path, 54 * records + 60 * extended, path.stat().st_size)
