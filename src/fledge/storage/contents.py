"""Inspect a checkpoint: tensors by name, metadata and plain values, without loading a native file's tensors."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fledge.core.errors import FledgeError
from fledge.storage.checkpoint import find_checkpoint, metadata_of, sniff
from fledge.storage.format import interop
from fledge.storage.format.flattening import flatten
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.reader import CheckpointFile, Entry
from fledge.storage.format.tree import unflatten

_LEAF = object()
_LOCAL = struct.Struct(
    "<4s10xIIIHH"
)  # head of a zip's member: magic, CRC, stored size, size, lengths of name and extra


def inspect_checkpoint(path: str | os.PathLike[str], verify: bool = False) -> dict[str, Any]:
    """Return a file's format, metadata and plain values, and the name, dtype, shape, codec and size of each tensor.

    Args:
        path: Path of a checkpoint, of any format.
        verify: Also read every tensor of a native file; files of other formats are always read completely. The entry
            `damaged` is a dict from each tensor that cannot be read to the reason, or None if no tensors were read.
    """
    found = find_checkpoint(path)
    kind = sniff(found)
    damaged: dict[str, str] | None = {} if verify or kind != "native" else None  # of other formats, everything is read
    if kind == "native":
        with CheckpointFile(found) as opened:
            if damaged is not None:
                damaged |= dict(_damaged_tensors(opened))
            rows = [
                _row(entry, entry.name, f"{entry.codec}, delta" if entry.base_name else entry.codec, entry.stored)
                | {"checksum": entry.checksum}
                for entry in opened.entries
            ]
            about = {"id": opened.id, "base": opened.base_file, "depth": opened.depth, "metadata": opened.metadata}
            tree = opened.tree
    else:
        tree, leaves = flatten(interop.load(found, kind))
        sizes = [None if kind == "lz4" else leaf.nbytes for leaf in leaves]
        rows = [_row(leaf, "/".join(map(str, leaf.path)), "raw", n) for leaf, n in zip(leaves, sizes, strict=True)]
        about = {"metadata": metadata_of(found)}
    values = dict(_plain_values(unflatten(tree, lambda number: _LEAF), ()))
    size, total = found.stat().st_size, sum(row["bytes"] for row in rows)
    info: dict[str, Any] = {"path": str(found), "format": kind, "file_bytes": size, "tensor_bytes": total}
    info |= {"ratio": size / total if total else None, "damaged": damaged}
    return info | about | {"values": values, "tensors": rows}


def complete_members(path: Path) -> list[dict[str, Any]]:
    """Return the names and sizes of the tensors that are complete in a truncated native file, in the file's order."""
    rows, place = [], 0
    with open(path, "rb") as stream:
        while len(head := stream.read(_LOCAL.size)) == _LOCAL.size:
            magic, crc, stored, _, name_bytes, extra_bytes = _LOCAL.unpack(head)
            name = stream.read(name_bytes).decode(errors="replace")
            place = stream.seek(extra_bytes, os.SEEK_CUR)
            if (
                magic != interop.ZIP_MAGIC
                or stored > path.stat().st_size - place
                or zlib.crc32(stream.read(stored)) != crc
            ):
                break
            rows.append({"name": name, "stored": stored})
    return rows


def _damaged_tensors(opened: CheckpointFile) -> Iterator[tuple[str, str]]:
    for number, entry in enumerate(opened.entries):
        try:
            opened.read(number)
        except FledgeError as error:
            yield entry.name, str(error)


def _row(leaf: Leaf | Entry, name: str, codec: str, stored: int | None) -> dict[str, Any]:
    about = {"name": name, "kind": leaf.kind, "dtype": leaf.dtype, "shape": list(leaf.shape), "codec": codec}
    return about | {"bytes": leaf.nbytes, "stored": stored, "lossy_from": leaf.lossy_from}


def _plain_values(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of everything that is not a tensor; a list of plain values counts as one value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _plain_values(item, (*path, str(key)))
    elif isinstance(value, list | tuple) and any(
        item is _LEAF or isinstance(item, dict | list | tuple) for item in value
    ):
        for number, item in enumerate(value):
            yield from _plain_values(item, (*path, str(number)))
    elif value is not _LEAF:
        yield "/".join(path), value
