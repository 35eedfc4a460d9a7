"""Inspect a checkpoint: tensors by name, metadata and plain values, without loading a native file's tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from fledge.storage.checkpoint import find_checkpoint, metadata_of, sniff
from fledge.storage.format import interop
from fledge.storage.format.flattening import flatten
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.reader import CheckpointFile, Entry
from fledge.storage.format.tree import unflatten

_LEAF = object()


def inspect_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a file's format, metadata and plain values, and the name, dtype, shape, codec and size of each tensor."""
    found = find_checkpoint(path)
    kind = sniff(found)
    if kind == "native":
        with CheckpointFile(found) as opened:
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
    return info | {"ratio": size / total if total else None} | about | {"values": values, "tensors": rows}


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
