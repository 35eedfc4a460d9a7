"""Gazebo worlds (.sdf, .world) of boxes, cylinders, spheres, planes and local meshes. Everything in them stands still."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import numpy as np

from fledge.core.errors import FormatError
from fledge.tasks.navigation.worlds.content import ReadOptions, Surface
from fledge.tasks.navigation.worlds.readers.limits import MAX_FACES, check_count, read_text
from fledge.tasks.navigation.worlds.readers.meshes import load_triangles
from fledge.tasks.navigation.worlds.readers.primitives import box, cylinder, plane, sphere

MAX_DEPTH = 64  # nested elements
MAX_INCLUDES = 1000
MESHES = (".stl", ".obj", ".glb", ".ply", ".off")


def read_sdf(path: Path, options: ReadOptions, notes: list[str]) -> Surface:
    """Read the collision shapes of a Gazebo world; of a link without any, its visual shapes."""
    scene = _Scene(notes)
    scene.add(path, parse_xml(path), np.eye(4), 0)
    triangles = scene.triangles()
    if not len(triangles):
        why = " ".join(notes[:3]) or "Check the file."
        raise FormatError(f"{path} has no box, cylinder, sphere, plane or mesh that can be read. {why}")
    return Surface(triangles, metres=True)


def parse_xml(path: Path) -> Element:
    """Return the root of an XML file; raise FormatError for document types and entities, which could fill the memory."""
    builder, depth = TreeBuilder(), 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise FormatError(f"{path} is nested deeper than {MAX_DEPTH} levels: it is damaged.")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    def refuse(*_: object) -> None:
        raise FormatError(f"{path} declares a document type or entities, which are not read: remove them.")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, builder.data
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(read_text(path), True)
    except expat.ExpatError as error:
        raise FormatError(f"{path} is not valid XML ({error}): it is damaged or of another kind.") from error
    return builder.close()


class _Scene:
    """Triangles of all shapes of a world and of the models that it includes."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes
        self.parts: list[np.ndarray] = []
        self.planes: list[tuple[np.ndarray, np.ndarray]] = []  # pose and half size
        self.faces = self.includes = 0

    def triangles(self) -> np.ndarray:
        """Return all triangles, [T, 3, 3]; planes are as large as everything else, and at least as their own size."""
        corners = [part.reshape(-1, 3) for part in self.parts]
        reach = 1.0 + max((float(np.abs(part[:, :2]).max()) for part in corners), default=0.0)
        flat = [_moved(plane(np.maximum(half, reach)), pose) for pose, half in self.planes]
        return np.concatenate([*self.parts, *flat]) if self.parts or flat else np.zeros((0, 3, 3))

    def add(self, path: Path, element: Element, pose: np.ndarray, depth: int) -> None:
        """Add the shapes of an element and of everything below it."""
        if element.tag in ("model", "link"):
            pose = pose @ _pose(path, element, self.notes)
        if element.tag == "link":
            shapes = element.findall("collision") or element.findall("visual")
            for shape in shapes:
                self._add_shape(path, shape, pose @ _pose(path, shape, self.notes))
            return
        for child in element:
            if child.tag in ("sdf", "world", "model", "link"):
                self.add(path, child, pose, depth)
            elif child.tag == "include":
                self._include(path, child, pose, depth)
            elif child.tag in ("actor", "population"):
                self._say(f"<{child.tag}> is left out.")

    def _say(self, note: str) -> None:
        if note not in self.notes and len(self.notes) < 20:
            self.notes.append(note)

    def _add(self, triangles: np.ndarray, pose: np.ndarray) -> None:
        self.faces += len(triangles)
        check_count(Path("The world"), self.faces, "triangles", MAX_FACES)
        self.parts.append(_moved(triangles, pose))

    def _add_shape(self, path: Path, shape: Element, pose: np.ndarray) -> None:
        geometry = shape.find("geometry")
        for kind in geometry if geometry is not None else ():
            if kind.tag == "box":
                self._add(box(_numbers(path, kind, "size", 3, 1.0)), pose)
            elif kind.tag == "cylinder":
                radius, length = (float(_numbers(path, kind, name, 1, 1.0)[0]) for name in ("radius", "length"))
                self._add(cylinder(radius, length), pose)
            elif kind.tag == "sphere":
                self._add(sphere(float(_numbers(path, kind, "radius", 1, 1.0)[0])), pose)
            elif kind.tag == "plane":
                normal = _numbers(path, kind, "normal", 3, (0.0, 0.0, 1.0))
                if abs(normal[2]) < 0.999 * np.linalg.norm(normal):
                    self._say("A plane that is not horizontal is left out.")
                else:
                    self.planes.append((pose, _numbers(path, kind, "size", 2, 1.0) / 2))
            elif kind.tag == "mesh":
                self._add_mesh(path, kind, pose)
            else:
                self._say(f"A shape of kind {kind.tag[:40]} is left out.")

    def _add_mesh(self, path: Path, mesh: Element, pose: np.ndarray) -> None:
        uri = (mesh.findtext("uri") or "").strip()
        found = next((each for each in _local_files(path, uri) if each.is_file()), None)
        if found is None or found.suffix.lower() not in MESHES:
            what = "was not found beside the world" if found is None else f"is not one of {', '.join(MESHES)}"
            self._say(f"The mesh {uri[:100]} is left out, because it {what}.")
            return
        self._add(load_triangles(found) * _numbers(path, mesh, "scale", 3, 1.0), pose)

    def _include(self, path: Path, include: Element, pose: np.ndarray, depth: int) -> None:
        uri = (include.findtext("uri") or "").strip()
        self.includes += 1
        if depth >= 8 or self.includes > MAX_INCLUDES:
            raise FormatError(f"{path} includes too many models, or models that include each other: check the file.")
        for found in _local_files(path, uri):
            model = next((m for m in (found, found / "model.sdf") if m.is_file()), None)
            if model is not None:
                self.add(model, parse_xml(model), pose @ _pose(path, include, self.notes), depth + 1)
                return
        self._say(f"The model {uri[:100]} is left out, because it was not found beside the world.")


def _local_files(path: Path, uri: str) -> Iterator[Path]:
    """Yield where a file that a world names may be: beside the world, in models/, or above."""
    scheme, mark, rest = uri.partition("://")
    name = Path(unquote(rest if mark else uri))
    if not uri or "\0" in uri or (mark and scheme not in ("model", "file")) or ".." in name.parts:
        return
    if name.is_absolute():
        if name.is_relative_to(path.parent.resolve()):
            yield name
        return
    for folder in (path.parent, path.parent / "models", path.parent.parent, path.parent.parent / "models"):
        yield folder / name


def _numbers(path: Path, element: Element, name: str, count: int, default: float | tuple[float, ...]) -> np.ndarray:
    text = element.findtext(name)
    if text is None or not text.strip():
        return np.broadcast_to(np.asarray(default, np.float64), (count,))
    try:
        values = np.array([float(word) for word in text.split()])
    except ValueError:
        values = np.zeros(0)
    if values.shape != (count,) or not np.isfinite(values).all():
        raise FormatError(f"{path}: <{name}> must be {count} finite numbers, but is {text[:60]!r}.")
    return values


def _pose(path: Path, element: Element, notes: list[str]) -> np.ndarray:
    """Return the pose of an element, x y z roll pitch yaw, as a matrix [4, 4]."""
    node = element.find("pose")
    if node is not None and node.get("relative_to"):
        note = "Poses with relative_to are taken as relative to the parent."
        if note not in notes:
            notes.append(note)
    x, y, z, roll, pitch, yaw = (float(value) for value in _numbers(path, element, "pose", 6, 0.0))
    if node is not None and node.get("degrees") == "true":
        roll, pitch, yaw = map(math.radians, (roll, pitch, yaw))
    turn = _turn(2, yaw) @ _turn(1, pitch) @ _turn(0, roll)
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = turn, (x, y, z)
    return pose


def _turn(axis: int, angle: float) -> np.ndarray:
    c, s = math.cos(angle), math.sin(angle)
    i, j = (axis + 1) % 3, (axis + 2) % 3
    turn = np.eye(3)
    turn[[i, i, j, j], [i, j, i, j]] = (c, -s, s, c)
    return turn


def _moved(triangles: np.ndarray, pose: np.ndarray) -> np.ndarray:
    return triangles @ pose[:3, :3].T + pose[:3, 3]
