"""Meshes by trimesh: .stl, .obj, .off, .glb, and .ply with faces. Materials, textures and other files are not read."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from fledge.core.errors import FormatError
from fledge.core.extras import extra
from fledge.tasks.navigation.worlds.content import ReadOptions, Surface
from fledge.tasks.navigation.worlds.readers.limits import MAX_FACES, check_count, check_fits

Y_UP = (".glb", ".obj")


def read_mesh(path: Path, options: ReadOptions, notes: list[str]) -> Surface:
    """Read the triangles of a mesh; polygons are split into triangles, and instances of parts are copied."""
    return Surface(load_triangles(path), y_up=path.suffix.lower() in Y_UP)


def load_triangles(path: Path) -> np.ndarray:
    """Return the triangles of a mesh in units and axes of the file, [T, 3, 3] float64."""
    with extra("worlds"):
        import trimesh
    kind = path.suffix.lower().removeprefix(".")
    if kind == "glb":
        _check_glb(path)
    with open(path, "rb") as stream:
        loaded = trimesh.load_scene(
            stream, file_type=kind, resolver={}, process=False, skip_materials=True, maintain_order=True
        )
    placed = [(loaded.graph[node], loaded.geometry) for node in loaded.graph.nodes_geometry]
    parts: list[tuple[np.ndarray, Any]] = []
    for (transform, name), geometry in placed:
        part = geometry[name]
        if isinstance(part, trimesh.Trimesh) and len(part.faces):
            parts.append((transform, part))
    check_count(path, sum(len(part.faces) for _, part in parts), "triangles", MAX_FACES)
    if not parts:
        raise FormatError(f"{path} has no triangles: check the file.")
    triangles = []
    for transform, part in parts:
        corners = np.asarray(part.vertices, np.float64)
        if not np.array_equal(transform, np.eye(4)):
            corners = corners @ transform[:3, :3].T + transform[:3, 3]
        triangles.append(corners[np.asarray(part.faces)])
    return np.concatenate(triangles)


def _check_glb(path: Path) -> None:
    """Raise FormatError if a binary glTF file declares more numbers than it has bytes."""
    size = path.stat().st_size
    with open(path, "rb") as stream:
        head = stream.read(20)
        if len(head) < 20 or head[:4] != b"glTF":
            raise FormatError(f"{path} does not begin like a binary glTF file: it is damaged or of another kind.")
        (length,) = struct.unpack("<I", head[12:16])
        check_fits(path, length, size - 20)
        content = json.loads(stream.read(length))
    for accessor in content.get("accessors", []):
        check_count(path, int(accessor["count"]), "values", size)
