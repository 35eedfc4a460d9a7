"""Load the table for the physics of a config: from the package, from the cache folder, or newly built.

A file's name has a hash of all that determines its numbers: the physics, the axes, the fly-outs' step, and VERSION, which must
change when code of `physics/` or of this folder changes ranges. Several processes may build the same table; damaged files
are built again. If the folder cannot be written, the table is kept in this process only.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import warp as wp

from fledge.core.errors import StorageError
from fledge.core.terminal import counting, make_console, say
from fledge.storage.disk.durable import durable_file
from fledge.tasks.aircombat.config import AircombatConfig
from fledge.tasks.aircombat.physics.structs import Physics, physics_of
from fledge.tasks.aircombat.spacetime.build import AXES, DT, PARTS, SHAPE, Ranges, build_table, complete
from fledge.tasks.aircombat.spacetime.flyout import NEAREST
from fledge.tasks.aircombat.spacetime.table import Axis, ReachTable

VERSION = 1
MARGIN = 0.005  # share added to r_max and r_tr; measured by `fledge envelope --check 10000`
_TABLES: dict[tuple[str, str], ReachTable] = {}
SHIPPED = Path(__file__).parent / "default.npz"


def load_table(cfg: AircombatConfig, device: str = "cpu", quiet: bool = False) -> ReachTable:
    """Return the table for the physics of these settings; all callers on a device share it."""
    physics = physics_of(cfg)
    key = key_of(physics), device
    if key not in _TABLES:
        _TABLES[key] = make_table(*complete(*find_ranges(physics, device, quiet)), device)
    return _TABLES[key]


def make_table(middle: np.ndarray, square: np.ndarray, device: str) -> ReachTable:
    """Return the table as the struct that kernels read.

    Args:
        middle, square: The two arrays that `complete` returns, each of shape [own speeds, target's speeds, off-boresights,
            aspects, 4].
    """
    table = ReachTable()
    table.own, table.target = (make_axis(nodes, 1.0, device) for nodes in AXES[:2])
    table.off_boresight, table.aspect = (make_axis(nodes, 180.0 / np.pi, device) for nodes in AXES[2:])
    pairs = np.stack([middle, square], axis=-1).astype(np.float32)  # [..., range, 2]
    table.turning = wp.array(pairs[..., 1:3, :].reshape(*SHAPE, 4), dtype=wp.vec4, device=device)
    table.others = wp.array(pairs[..., 0::3, :].reshape(*SHAPE, 4), dtype=wp.vec4, device=device)
    table.margin, table.nearest = MARGIN, float(NEAREST)
    return table


def make_axis(nodes: Sequence[int], per_unit: float, device: str) -> Axis:
    """Return an axis of the table.

    Args:
        nodes: Its grid nodes, in whole m/s or degrees.
        per_unit: Factor from the unit of lookups (m/s or rad) to the unit of `nodes`.
    """
    axis = Axis()
    axis.origin, axis.per_unit = nodes[0] / per_unit, per_unit
    places = np.array(nodes) - nodes[0]
    index = np.searchsorted(places, np.arange(places[-1] + 1), side="right") - 1
    axis.index = wp.array(np.minimum(index, len(nodes) - 2).astype(np.int32), dtype=wp.int32, device=device)
    axis.nodes = wp.array(places.astype(np.float32), dtype=wp.float32, device=device)
    return axis


def find_ranges(physics: Physics, device: str = "cpu", quiet: bool = False) -> Ranges:
    """Return the ranges of all nodes: shipped with the package, from the cache, or built now and cached."""
    key = key_of(physics)
    kept = cache_folder() / f"reach-{key}.npz"
    for path in (SHIPPED, kept):
        if (found := read_ranges(path, key)) is not None:
            return found
    console = make_console(stderr=True)
    if not quiet:
        say(console, "Building the space-time table of these env settings. This takes a minute or two, once.")
    with counting(console, "space-time table", PARTS, quiet) as on_progress:
        found = build_table(physics, device, on_progress)
    try:
        write_ranges(kept, key, found)
    except StorageError as error:
        warnings.warn(f"The space-time table is not cached: {error}", stacklevel=2)
    return found


def key_of(physics: Physics) -> str:
    """Return a short hash of everything that determines a table's numbers."""
    frame = ("cd0", "k", "rmin", "thrust", "max_load")
    motor = ("navigation", "burn", "min_speed", "kill_radius")
    numbers = {
        "version": VERSION,
        "axes": [list(axis) for axis in AXES],
        "dt": DT,
        "fighter": {name: float(getattr(physics.fighter, name)) for name in frame},
        "missile": {name: float(getattr(physics.motor.frame, name)) for name in frame}
        | {name: float(getattr(physics.motor, name)) for name in motor},
        "rudder_rate": float(physics.rudder_rate),
    }
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Return Fledge's cache folder on this system."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "fledge"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fledge"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "fledge"
    return Path.home() / ".cache" / "fledge"


def read_ranges(path: Path, key: str) -> Ranges | None:
    """Return the ranges in a file; None unless it is intact and has this key."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if bytes(file["key"]).decode() != key:
                return None
            nodes, digest = file["ranges"], bytes(file["digest"])
    except Exception:  # a damaged file fails in zlib, zipfile, NumPy or here, with different errors
        return None
    if nodes.shape != (2, *SHAPE, 4) or hashlib.sha256(nodes.tobytes()).digest() != digest:
        return None
    return tuple(1000 * nodes.astype(np.float32))


def write_ranges(path: Path, key: str, ranges: Ranges) -> None:
    """Write ranges and their key to a file, atomically."""
    nodes = (np.stack(ranges) / 1000).astype(np.float16)  # km, to 0.05 %
    arrays: dict[str, Any] = {"ranges": nodes, "key": np.frombuffer(key.encode(), np.uint8)}
    arrays["digest"] = np.frombuffer(hashlib.sha256(nodes.tobytes()).digest(), np.uint8)
    with durable_file(path) as file:
        np.savez_compressed(file, **arrays)
