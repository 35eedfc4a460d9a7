"""The content of a file before it becomes a world, and the options that a user may give for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fledge.core.errors import ConfigError
from fledge.tasks.navigation.worlds.voxels import CELL_M, MAX_BYTES, check_cell

UP = ("auto", "z", "y")
FLOOR = ("auto", "add", "none")


@dataclass(frozen=True)
class ReadOptions:
    """How to read a file; None stands for a guess or for what the file says."""

    cell_m: float | None = None
    """Side of a voxel, m. None: what the file says, else 0.1."""
    scale: float | None = None
    """Metres per unit of the file; per voxel or pixel if it is an array or an image. None: guessed."""
    up: str = "auto"
    """Axis of the file that points up: z, y or auto."""
    height_m: float = 3.0
    """Height of the walls of a ROS map, and of the brightest pixel of a height map, m."""
    floor: str = "auto"
    """Solid layer at the lower bound: add, none, or auto (where most columns have no ground)."""
    max_bytes: int = MAX_BYTES
    """Largest size of the voxels, a byte each."""

    def __post_init__(self) -> None:
        if self.up not in UP:
            raise ConfigError(f"up={self.up!r} is not an axis: choose one of {', '.join(UP)}.")
        if self.floor not in FLOOR:
            raise ConfigError(f"floor={self.floor!r} is not known: choose one of {', '.join(FLOOR)}.")
        if self.scale is not None and not 1e-6 <= self.scale <= 1e6:
            raise ConfigError(f"scale is {self.scale:g}, but must be 0.000001 to 1000000 metres per unit.")
        if not 0.1 <= self.height_m <= 1000.0:
            raise ConfigError(f"height_m is {self.height_m:g}, but must be 0.1 to 1000.")
        if self.cell_m is not None:
            check_cell(self.cell_m)

    @property
    def cell(self) -> float:
        """Side of a voxel, m, of a file that does not have any."""
        return self.cell_m or CELL_M


@dataclass
class Points:
    """A point cloud."""

    xyz: np.ndarray  # [N, 3 or more] float, in units of the file
    y_up: bool = False  # by the convention of the file format
    metres: bool = False  # the format fixes the unit


@dataclass
class Surface:
    """A mesh."""

    triangles: np.ndarray  # [T, 3, 3] float, in units of the file
    y_up: bool = False
    metres: bool = False


@dataclass
class Grid:
    """Voxels that are already known; z is up."""

    solid: np.ndarray  # [X, Y, Z] bool
    cell_m: float
    origin: np.ndarray = field(default_factory=lambda: np.zeros(3))  # [3] m


Content = Points | Surface | Grid
