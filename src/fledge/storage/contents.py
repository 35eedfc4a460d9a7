"""What is inside a checkpoint: tensors by name, metadata and plain values, without loading a native file's tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fledge.storage.checkpoint import find_checkpoint, load_foreign, sniff
from fledge.storage.format.flattening import flatten
from fledge.storage.format.leaves import Leaf
from fledge.storage.format.reader import CheckpointFile, Entry
from fledge.storage.format.tree import Node, unflatten

_LEAF = object()


def inspect_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file holds: format, metadata, plain values, and per tensor its name, dtype, shape, codec and bytes."""
    found = find_checkpoint(path)
    kind = sniff(found)
    if kind != "native":
        return _inspect_foreign(found, kind)
    with CheckpointFile(found) as opened:
        rows = [
            {
                "name": entry.name,
                "kind": entry.kind,
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "codec": f"{entry.codec}, delta" if entry.base_name else entry.codec,
                "bytes": entry.nbytes,
                "stored": entry.stored,
                "lossy_from": entry.lossy_from,
                "checksum": entry.checksum,
            }
            for entry in opened.entries
        ]
        info = _sizes(found, kind, opened.entries)
        info |= {"id": opened.id, "base": opened.base_file, "depth": opened.depth}
        return info | {"metadata": opened.metadata, "values": plain_values(opened.tree), "tensors": rows}


def _inspect_foreign(path: Path, kind: str) -> dict[str, Any]:
    node, leaves = flatten(load_foreign(path, kind))
    rows = [
        {
            "name": "/".join(map(str, leaf.path)),
            "kind": leaf.kind,
            "dtype": leaf.dtype,
            "shape": list(leaf.shape),
            "codec": "raw",
            "bytes": leaf.nbytes,
            "stored": None if kind == "lz4" else leaf.nbytes,
            "lossy_from": None,
        }
        for leaf in leaves
    ]
    return _sizes(path, kind, leaves) | {"metadata": {}, "values": plain_values(node), "tensors": rows}


def _sizes(path: Path, kind: str, leaves: Sequence[Leaf | Entry]) -> dict[str, Any]:
    size, total = path.stat().st_size, sum(leaf.nbytes for leaf in leaves)
    info: dict[str, Any] = {"path": str(path), "format": kind, "file_bytes": size, "tensor_bytes": total}
    return info | {"ratio": size / total if total else None}


def plain_values(node: Node) -> dict[str, Any]:
    """Values of a tree that are no tensors, by their paths; a list without tensors is one value."""
    return dict(_walk(unflatten(node, lambda number: _LEAF), ()))


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, (*path, str(key)))
    elif isinstance(value, list | tuple) and any(
        item is _LEAF or isinstance(item, dict | list | tuple) for item in value
    ):
        for number, item in enumerate(value):
            yield from _walk(item, (*path, str(number)))
    elif value is not _LEAF:
        yield "/".join(path), value
