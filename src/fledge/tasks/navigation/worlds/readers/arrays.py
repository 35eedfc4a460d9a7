"""NumPy arrays: point clouds, occupancy grids and height maps in .npy and .npz files. Nothing is unpickled."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from fledge.core.errors import FormatError
from fledge.tasks.navigation.worlds.content import Content, Grid, Points, ReadOptions
from fledge.tasks.navigation.worlds.readers.heights import grid_of_heights
from fledge.tasks.navigation.worlds.readers.limits import MAX_POINTS, check_count, check_fits

MAX_COLUMNS = 16  # of an array that is taken as points
MAX_FILE = 4 * 2**30  # bytes of an array
MAX_RATIO, SLACK = (
    256,
    2**29,
)  # bytes that a compressed array may take: so many times its size in the file, and some more


def read_npy(path: Path, options: ReadOptions, notes: list[str]) -> Content:
    """Read an array: [N, 3 to 16] points, [X, Y, Z] occupancy, or [X, Y] heights in metres."""
    with open(path, "rb") as stream:
        shape, fortran, dtype = _array_header(path, stream)
        check_fits(path, int(np.prod(shape, dtype=object)) * dtype.itemsize, path.stat().st_size - stream.tell())
        values = np.fromfile(stream, dtype, int(np.prod(shape)))
    values = values.reshape(shape[::-1]).T if fortran else values.reshape(shape)
    return content_of(path, values, options, notes, {})


def read_npz(path: Path, options: ReadOptions, notes: list[str]) -> Content:
    """Read the array of an .npz file: the only one, or the one named points, solid, occupancy, voxels, grid or heights.

    Numbers named origin (m) and cell_m or resolution are used if they are there.
    """
    with zipfile.ZipFile(path) as archive:
        names = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
        about: dict[str, Any] = {
            key: _member(path, archive, names.pop(key)) for key in ("origin", "cell_m", "resolution") if key in names
        }
        known = [key for key in ("points", "solid", "occupancy", "voxels", "grid", "heights") if key in names]
        if not known and len(names) != 1:
            listed = ", ".join(list(names)[:8]) or "none"
            raise FormatError(f"{path} has to hold one array, or one named solid, points or heights; it has {listed}.")
        values = _member(path, archive, names[known[0] if known else next(iter(names))])
    return content_of(path, values, options, notes, about)


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(name) as stream:
        shape, _, dtype = _array_header(path, stream)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        member = archive.getinfo(name)
        check_fits(path, size, member.file_size)
        check_count(path, size, "bytes", SLACK + MAX_RATIO * member.compress_size)
    with archive.open(name) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _array_header(path: Path, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, Fortran order and dtype of an array; the stream is then at its data."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject or dtype.kind not in "biuf":
        raise FormatError(f"{path} holds values of type {str(dtype)[:60]}, but numbers or booleans are needed.")
    check_count(path, int(np.prod(shape, dtype=object)) * dtype.itemsize, "bytes", MAX_FILE)
    return shape, fortran, dtype


def content_of(
    path: str | os.PathLike[str], values: np.ndarray, options: ReadOptions, notes: list[str], about: dict[str, Any]
) -> Content:
    """Return the points, voxels or heights that an array means, judged by its shape."""
    if not values.size:
        raise FormatError(f"{path} holds an empty array: check the file.")
    if values.ndim == 2 and 3 <= values.shape[1] <= MAX_COLUMNS < values.shape[0]:
        check_count(Path(path), len(values), "points", MAX_POINTS)
        notes.append(f"An array of {len(values):,} rows with {values.shape[1]} columns is taken as points x, y, z.")
        return Points(values)
    sides = np.unique(about.get("cell_m", about.get("resolution", options.cell)))
    if len(sides) != 1:
        raise FormatError(
            f"{path}: cell_m must be one number, in metres, but is {sides.tolist()[:4]}: voxels are cubes."
        )
    cell_m = float(options.scale or sides[0])
    origin = np.ravel(about.get("origin", np.zeros(3))).astype(np.float64)
    if origin.shape != (3,) or not np.isfinite(origin).all():
        raise FormatError(f"{path}: origin must be three finite numbers, in metres.")
    if values.ndim == 3:
        solid = solid_values(values, notes)
        if options.up == "y":
            solid = np.ascontiguousarray(solid.transpose(0, 2, 1)[:, ::-1])
        return Grid(solid, cell_m, origin)
    if values.ndim != 2:
        shape = " x ".join(map(str, values.shape))
        raise FormatError(
            f"{path} holds an array of {shape}: points [N, 3], voxels [X, Y, Z] or heights [X, Y] are needed."
        )
    return grid_of_heights(np.asarray(values, np.float64), cell_m, options, notes, origin)


def solid_values(values: np.ndarray, notes: list[str]) -> np.ndarray:
    """Return which values of an occupancy array mean solid."""
    if values.dtype == bool:
        return values
    low, high = values.min(), values.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        values = np.nan_to_num(values, nan=-1.0, posinf=np.inf, neginf=-1.0)  # unknown counts as free
        low, high = values.min(), values[np.isfinite(values)].max(initial=0.0)
    if high <= 1 and values.dtype.kind == "f":
        limit, meaning = 0.5, "probabilities"
    elif high <= 1:
        limit, meaning = 1, "0 and 1"
    elif high <= 100 and low >= -1:
        limit, meaning = 50, "percent, as in ROS"
    elif low >= 0 and high <= 255:
        limit, meaning = 128, "bytes"
    else:
        limit, meaning = np.nextafter(0, 1), "any numbers"
    notes.append(f"Values of {low:g} to {high:g} are taken as {meaning}: from {limit:g} up they are solid.")
    return values >= limit
