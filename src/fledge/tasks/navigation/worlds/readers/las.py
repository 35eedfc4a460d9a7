"""Point clouds of laser scanners: .las and .laz, by laspy. Their unit counts as metres."""

from __future__ import annotations

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
