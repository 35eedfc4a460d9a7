"""Polygon files, .ply: a point cloud, or a mesh if there are faces."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fledge.core.errors import FormatError
from fledge.tasks.navigation.worlds.content import Content, Points, ReadOptions
from fledge.tasks.navigation.worlds.readers.limits import MAX_FACES, check_count, check_fits
from fledge.tasks.navigation.worlds.readers.meshes import read_mesh

KINDS = {
    "char": "i1",
    "uchar": "u1",
    "short": "i2",
    "ushort": "u2",
    "int": "i4",
    "uint": "u4",
    "float": "f4",
    "double": "f8",
}
KINDS |= {"int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4"}
KINDS |= {"float32": "f4", "float64": "f8"}
ORDER = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}


@dataclass
class Element:
    """One list of things in a file, as the header declares it."""

    name: str
    count: int
    columns: list[tuple[str, str]] = field(default_factory=list)  # name and type; of a list, the type of its length
    lists: bool = False  # whether a column is a list, so that rows differ in length

    def smallest_row(self, text: bool) -> int:
        """Return the least number of bytes that a row takes."""
        return sum(2 if text else np.dtype(kind).itemsize for _, kind in self.columns)


def read_ply(path: Path, options: ReadOptions, notes: list[str]) -> Content:
    """Read a .ply file."""
    with open(path, "rb") as stream:
        order, elements = _header(path, stream)
        left = path.stat().st_size - stream.tell() + 1
        check_fits(path, sum(e.count * e.smallest_row(order == "") for e in elements), left)
        for element in elements:
            check_count(path, element.count, f"of {element.name}", MAX_FACES if element.lists else 10**9)
        if any(element.name == "face" and element.count for element in elements):
            return read_mesh(path, options, notes)
        before = [element.name for element in elements].index("vertex")
        vertex = elements[before]
        names = [name for name, _ in vertex.columns]
        if not {"x", "y", "z"} <= set(names) or any(element.lists for element in elements[: before + 1]):
            raise FormatError(f"{path}: the vertices need x, y and z and no lists; they have {', '.join(names)[:200]}.")
        check_count(path, vertex.count, "points")
        if order == "":
            columns = [names.index(axis) for axis in "xyz"]
            skipped = sum(element.count for element in elements[:before])
            xyz = np.loadtxt(stream, usecols=columns, ndmin=2, skiprows=skipped, max_rows=vertex.count)
            check_fits(path, vertex.count, len(xyz))
            return Points(xyz)
        stream.seek(sum(e.count * e.smallest_row(False) for e in elements[:before]), 1)
        row = np.dtype([(name, order + kind) for name, kind in vertex.columns])
        rows = np.fromfile(stream, row, vertex.count)
        return Points(np.stack([rows[axis] for axis in "xyz"], axis=1).astype(row["x"].newbyteorder("="), copy=False))


def _header(path: Path, stream: BinaryIO) -> tuple[str, list[Element]]:
    """Return the byte order ("" for text) and the elements that a header declares; the stream is then at the data."""
    order: str | None = None
    elements: list[Element] = []
    if stream.readline(16).strip() != b"ply":
        raise FormatError(f"{path} does not begin with ply: it is damaged or of another kind.")
    for _ in range(2000):
        words = stream.readline(4096).decode("ascii", "replace").split()
        if words[:1] == ["end_header"]:
            break
        if words[:1] == ["format"]:
            order = ORDER[words[1]]
        elif words[:1] == ["element"]:
            elements.append(Element(words[1], int(words[2])))
        elif words[:1] == ["property"]:
            is_list = words[1] == "list"
            elements[-1].lists |= is_list
            elements[-1].columns.append((words[-1], KINDS[words[2 if is_list else 1]]))
    if order is None or not any(element.name == "vertex" for element in elements):
        raise FormatError(f"{path}: the header has no format or no vertices: it is damaged.")
    if any(len(dict(element.columns)) != len(element.columns) for element in elements):
        raise FormatError(f"{path}: the header has two properties of the same name: it is damaged.")
    return order, elements
