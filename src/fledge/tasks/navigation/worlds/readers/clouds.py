"""Point clouds: .pcd of the Point Cloud Library, and .xyz text."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO

import numpy as np
import warp as wp

from fledge.core.errors import FormatError
from fledge.tasks.navigation.worlds.content import Points, ReadOptions
from fledge.tasks.navigation.worlds.kernels import shared
from fledge.tasks.navigation.worlds.kernels.decode import decode_lzf
from fledge.tasks.navigation.worlds.readers.limits import check_count, check_fits

PCD_KEYS = ("VERSION", "FIELDS", "SIZE", "TYPE", "COUNT", "WIDTH", "HEIGHT", "VIEWPOINT", "POINTS", "DATA")
PCD_TYPES = {("F", 4): "<f4", ("F", 8): "<f8"} | {
    (sign, size): f"<{kind}{size}" for sign, kind in (("I", "i"), ("U", "u")) for size in (1, 2, 4, 8)
}
MAX_RATIO = 4096  # LZF shortens a run of 264 bytes to 3


def read_pcd(path: Path, options: ReadOptions, notes: list[str]) -> Points:
    """Read a .pcd file: ascii, binary or binary_compressed."""
    size = path.stat().st_size
    with open(path, "rb") as stream:
        header = _pcd_header(path, stream)
        names, counts = header["FIELDS"], [int(count) for count in header.get("COUNT", [])]
        counts = counts or [1] * len(names)
        kinds = list(zip(header["TYPE"], map(int, header["SIZE"]), strict=True))
        if not len(names) == len(kinds) == len(counts) or len(names) > 256 or not all(0 < n <= 4096 for n in counts):
            raise FormatError(f"{path}: FIELDS, SIZE, TYPE and COUNT of the header do not fit together: it is damaged.")
        if missing := [name for name in "xyz" if name not in names]:
            raise FormatError(
                f"{path} has no field {missing[0]}, but needs x, y and z; it has {', '.join(names)[:200]}."
            )
        points = header.get("POINTS") or [str(int(header["WIDTH"][0]) * int(header["HEIGHT"][0]))]
        number = check_count(path, int(points[0]), "points")
        row = np.dtype([(f"f{i}", PCD_TYPES[kind], (counts[i],)) for i, kind in enumerate(kinds)])
        columns = [names.index(name) for name in "xyz"]
        data = header["DATA"][0].lower()
        if data == "binary":
            check_fits(path, number * row.itemsize, size - stream.tell())
            rows = np.fromfile(stream, row, number)
            return Points(np.stack([rows[f"f{i}"][:, 0] for i in columns], axis=1))
        if data == "binary_compressed":
            planes = _decompressed(path, stream, number * row.itemsize)
            return Points(np.stack([_plane(planes, row, number, i) for i in columns], axis=1))
        if data != "ascii":
            raise FormatError(f"{path} has DATA {data[:40]}, but it must be ascii, binary or binary_compressed.")
        check_fits(path, 2 * number * sum(counts), size - stream.tell() + 1)
        starts = np.cumsum([0, *counts])
        xyz = np.loadtxt(stream, usecols=[int(starts[i]) for i in columns], ndmin=2, max_rows=number)
        check_fits(path, number, len(xyz))
        return Points(xyz)


def _pcd_header(path: Path, stream: BinaryIO) -> dict[str, list[str]]:
    header: dict[str, list[str]] = {}
    for _ in range(100):
        words = stream.readline(65536).decode("ascii", "replace").split()
        if not words or words[0].startswith("#"):
            if words or not header:
                continue
            break
        if words[0] not in PCD_KEYS or len(words) < 2:
            break
        header[words[0]] = words[1:]
        if words[0] == "DATA":
            if missing := {"FIELDS", "SIZE", "TYPE"} - header.keys():
                raise FormatError(f"{path}: the header has no {sorted(missing)[0]}: it is damaged.")
            return header
    raise FormatError(f"{path} has no header of a .pcd file: it is damaged or of another kind.")


def _decompressed(path: Path, stream: BinaryIO, expected: int) -> np.ndarray:
    packed_bytes, size = (int(n) for n in np.frombuffer(stream.read(8).ljust(8, b"\0"), "<u4"))
    packed = np.frombuffer(stream.read(), np.uint8)
    check_fits(path, packed_bytes, len(packed))
    if size != expected:
        raise FormatError(f"{path}: the compressed points take {size:,} bytes, not {expected:,}: it is damaged.")
    check_count(path, size, "bytes of points", MAX_RATIO * packed_bytes)
    out, written = np.empty(size, np.uint8), np.zeros(1, np.int64)
    args = [shared(packed[:packed_bytes].copy(), wp.uint8), shared(out, wp.uint8), shared(written, wp.int64)]
    wp.launch(decode_lzf, 1, args, device="cpu")
    if written[0] != size:
        raise FormatError(f"{path}: the compressed points cannot be unpacked: it is damaged.")
    return out


def _plane(planes: np.ndarray, row: np.dtype, number: int, field: int) -> np.ndarray:
    """Return the first column of a field of a compressed file, which stores field after field."""
    before = sum(row[i].itemsize for i in range(field)) * number
    kind = (row[field].subdtype or (row[field],))[0]
    return planes[before : before + row[field].itemsize * number].view(kind).reshape(number, -1)[:, 0]


def read_xyz(path: Path, options: ReadOptions, notes: list[str]) -> Points:
    """Read a text file with x, y, z in the first three columns, separated by spaces, commas, semicolons or tabs."""
    with open(path, encoding="utf-8", errors="replace") as stream:
        head = [stream.readline(65536) for _ in range(20)]
    separator = next((mark for mark in (",", ";") if any(mark in line for line in head)), None)
    skipped = 0
    for line in head:
        text = line.split("#")[0].strip()
        if not text or _is_row(text, separator):
            break
        skipped += 1
    if skipped:
        notes.append(f"Lines at the top without three numbers, which are left out: {skipped}.")
    text_stream = io.TextIOWrapper(open(path, "rb"), encoding="utf-8", errors="replace")  # noqa: SIM115
    with text_stream:
        xyz = np.loadtxt(
            text_stream, delimiter=separator, usecols=(0, 1, 2), ndmin=2, skiprows=skipped, comments=["#", "//"]
        )
    return Points(xyz)


def _is_row(text: str, separator: str | None) -> bool:
    words = text.split(separator)
    try:
        return len([float(word) for word in words[:3]]) == 3
    except ValueError:
        return False
