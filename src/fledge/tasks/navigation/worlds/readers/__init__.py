"""Readers of files, by the ending of the file's name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from fledge.core.errors import ConfigError, FledgeError, FormatError
from fledge.tasks.navigation.worlds.content import Content, ReadOptions
from fledge.tasks.navigation.worlds.readers import arrays, clouds, images, las, meshes, octomap, ply, sdf

Reader = Callable[[Path, ReadOptions, list[str]], Content]

READERS: dict[str, Reader] = {
    ".pcd": clouds.read_pcd,
    ".xyz": clouds.read_xyz,
    ".csv": clouds.read_xyz,
    ".txt": clouds.read_xyz,
    ".las": las.read_las,
    ".laz": las.read_las,
    ".ply": ply.read_ply,
    ".stl": meshes.read_mesh,
    ".obj": meshes.read_mesh,
    ".off": meshes.read_mesh,
    ".glb": meshes.read_mesh,
    ".npy": arrays.read_npy,
    ".npz": arrays.read_npz,
    ".bt": octomap.read_octomap,
    ".yaml": images.read_ros_map,
    ".yml": images.read_ros_map,
    ".png": images.read_height_map,
    ".tif": images.read_height_map,
    ".tiff": images.read_height_map,
    ".sdf": sdf.read_sdf,
    ".world": sdf.read_sdf,
}


def read_file(path: Path, options: ReadOptions, notes: list[str]) -> Content:
    """Return the content of a file; the ending of its name chooses the reader.

    Raises:
        FledgeError: The file is of an unknown kind, damaged, too large, or needs a package that is not installed.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join([".fworld", *READERS])
        if path.suffix.lower() == ".pgm":
            raise ConfigError(f"{path} is the image of a ROS map: pass the .yaml beside it, which has its resolution.")
        raise ConfigError(f"{path} ends in {path.suffix or 'nothing'}, but a world must be one of {known}: convert it.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of NumPy and Pillow, about a file that is then refused
            return reader(path, options, notes)
    except FledgeError:
        raise
    except MemoryError as error:
        raise FormatError(f"{path} needs more memory than there is: it is damaged, or too large.") from error
    except Exception as error:  # a reader, or a package behind it, met something that it does not expect
        if isinstance(error, OSError) and error.errno:  # of the disk; Pillow has some without a number
            raise
        what = " ".join(str(error).split())[:200]
        raise FormatError(
            f"{path} cannot be read ({type(error).__name__}: {what}): it is damaged or of another kind."
        ) from error
