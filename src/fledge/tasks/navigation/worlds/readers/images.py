"""Images: maps of ROS's map_server (.yaml with .pgm or .png), extruded, and height maps (.png, .tif)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fledge.core.errors import FormatError
from fledge.core.paths import check_readable
from fledge.core.yaml_text import parse_yaml
from fledge.tasks.navigation.worlds.build import resample
from fledge.tasks.navigation.worlds.content import Grid, ReadOptions
from fledge.tasks.navigation.worlds.readers.heights import grid_of_heights
from fledge.tasks.navigation.worlds.readers.limits import read_text
from fledge.tasks.navigation.worlds.voxels import grid_shape

MAX_PIXELS = 64_000_000
MODES = ("trinary", "scale", "raw")  # of map_server: shades, or in raw the percentage itself, above 100 unknown


def load_image(path: Path) -> np.ndarray:
    """Return the brightness of an image, [rows, columns]; colours become grey."""
    from PIL import Image

    check_readable(path)
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, MAX_PIXELS
    try:
        with Image.open(path, formats=("PNG", "PPM", "TIFF", "BMP", "GIF")) as image:
            if image.width * image.height > MAX_PIXELS:
                raise FormatError(
                    f"{path} has {image.width:,} x {image.height:,} pixels, at most {MAX_PIXELS:,} are read."
                )
            if image.mode not in ("1", "L", "I", "F", "I;16", "I;16B", "I;16L"):
                image = image.convert("L")  # type: ignore[assignment]
            return np.asarray(image)
    finally:
        Image.MAX_IMAGE_PIXELS = limit


def read_height_map(path: Path, options: ReadOptions, notes: list[str]) -> Grid:
    """Read an image of heights: bright is high. x runs to the right and y up, as in the picture.

    Whole numbers are scaled so that the largest value of the image is `height_m` high; real numbers (.tif) are metres.
    """
    image = load_image(path)
    pixel_m = options.scale or options.cell
    if image.dtype.kind == "f":
        heights = image.astype(np.float64)
    else:
        top = int(image.max())
        heights = image.astype(np.float64) * (options.height_m / max(top, 1))
        notes.append(
            f"The brightest pixel ({top}) is taken as {options.height_m:g} m high; pass height_m=METRES for another height."
        )
    if options.scale is None:
        notes.append(f"A pixel is taken as {pixel_m:g} m wide; pass scale=METRES for another width.")
    return grid_of_heights(heights[::-1].T, pixel_m, options, notes, np.zeros(3))


def read_ros_map(path: Path, options: ReadOptions, notes: list[str]) -> Grid:
    """Read a map of map_server and extrude its occupied cells to `height_m` above a floor; unknown cells are free."""
    try:
        about = parse_yaml(read_text(path))
    except yaml.YAMLError as error:
        raise FormatError(f"{path} is not valid YAML ({str(error).splitlines()[0][:200]}): check the file.") from error
    if not isinstance(about, dict) or "image" not in about or "resolution" not in about:
        raise FormatError(f"{path} has no image and resolution, so it is not a map of map_server: check the file.")
    pixel_m = float(about["resolution"])
    origin = [float(value) for value in about.get("origin", [0.0, 0.0, 0.0])]
    if not 1e-4 <= pixel_m <= 100.0 or len(origin) < 2 or not all(map(math.isfinite, origin)):
        raise FormatError(
            f"{path}: resolution must be 0.0001 to 100 m and origin finite numbers, got {pixel_m} and {origin}."
        )
    if len(origin) > 2 and abs(origin[2]) > 1e-3:
        notes.append(
            f"The map's turn of {math.degrees(origin[2]):.0f}° is left out: the world has the axes of the image."
        )
    mode = str(about.get("mode", "trinary")).lower()
    if mode not in MODES:
        raise FormatError(f"{path}: mode is {mode[:40]!r}, but must be {', '.join(MODES)}.")
    image = load_image(_image_of(path, str(about["image"]))).astype(np.float64)
    if mode == "raw":
        occupied = (image > 100.0 * _threshold(path, about)) & (image <= 100.0)
    else:
        image /= 255.0 if image.max() <= 255 else 65535.0
        occupied = (image if int(about.get("negate", 0)) else 1.0 - image) > _threshold(path, about)
    if not occupied.any():
        notes.append("No cell of the map is occupied: check mode, negate and occupied_thresh.")
    shape = grid_shape(
        np.array([n * pixel_m for n in occupied.T.shape] + [options.height_m]), options.cell, options.max_bytes
    )
    ground = occupied[::-1].T
    for axis in range(2):
        ground = resample(ground, axis, pixel_m, options.cell)
    solid = np.repeat(ground[: shape[0], : shape[1], None], shape[2], axis=2)
    notes.append(
        f"Occupied cells are walls of {options.height_m:g} m, unknown cells are free; pass height_m=METRES for others."
    )
    return Grid(solid, options.cell, np.array([*origin[:2], 0.0]))


def _threshold(path: Path, about: dict[str, Any]) -> float:
    """Return the share from which a cell of a map is occupied."""
    threshold = float(about.get("occupied_thresh", 0.65))
    if not 0.0 <= threshold <= 1.0:
        raise FormatError(f"{path}: occupied_thresh is {threshold:g}, but must be 0 to 1.")
    return threshold


def _image_of(path: Path, name: str) -> Path:
    """Return the path of a map's image: as the map names it, else a file of that name beside the map."""
    image = Path(name) if Path(name).is_absolute() else path.parent / name
    beside = path.parent / Path(name).name
    return beside if not image.is_file() and beside.is_file() else image
