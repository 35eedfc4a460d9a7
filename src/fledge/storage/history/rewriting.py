"""Rewrite a checkpoint in place, atomically and durably: with weights only, with rounded weights, or without a base.

Members that do not change are copied without decoding.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fledge.storage.checkpoint import write_state
from fledge.storage.disk.durable import durable_file
from fledge.storage.format.leaves import TORCH_DTYPES, Leaf, bytes_of, restore
from fledge.storage.format.reader import CheckpointFile, check_opens
from fledge.storage.format.tree import Node, children, leaf_numbers, with_children
from fledge.storage.format.writer import Written, copy_members
from fledge.storage.history.retention import WEIGHTS_ONLY

_ROUNDED = {"float64", "float32"}  # dtypes that may be rounded


def rewrite_weights_only(
    path: Path,
    weights: Sequence[str],
    lossy: str | None = None,
    base: str | os.PathLike[str] | None = None,
    level: int | None = None,
) -> Written:
    """Reduce a checkpoint to its top-level entries `weights` and its plain values.

    With `lossy`, round the weights to this dtype; with `base`, store them as a delta to that file.
    """
    with CheckpointFile(path) as source:
        kept = [(key, node) for key, node in children(source.tree) if key in weights or not leaf_numbers(node)]
        tree = with_children(source.tree, kept)
        numbers = leaf_numbers(tree)
        node = _renumber(tree, {old: i for i, old in enumerate(numbers)})
        metadata = {**source.metadata, "history": {**source.metadata.get("history", {}), WEIGHTS_ONLY: True}}
        plain = all(source.entries[number].base_name is None for number in numbers)
        if plain and lossy is None and base is None:
            with durable_file(path, verify=check_opens) as stream:
                return copy_members(source, stream, node, numbers, metadata)
        leaves = [_leaf(source, number, lossy) for number in numbers]
        return write_state(path, "native", node, leaves, level=level, metadata=metadata, base=base)


def rewrite_whole(path: Path, level: int | None = None) -> Written:
    """Rewrite a delta checkpoint so that it needs no base."""
    with CheckpointFile(path) as source:
        leaves = [_leaf(source, number, None) for number in range(len(source.entries))]
        return write_state(path, "native", source.tree, leaves, level=level, metadata=source.metadata)


def _leaf(source: CheckpointFile, number: int, lossy: str | None) -> Leaf:
    entry = source.entries[number]
    data, dtype, lossy_from = source.read_bytes(number), entry.dtype, entry.lossy_from
    if lossy is not None and entry.kind == "tensor" and dtype in _ROUNDED:
        tensor = restore("tensor", dtype, entry.shape, data, torch.device("cpu"))
        data = bytes_of(tensor.to(TORCH_DTYPES[lossy]))
        dtype, lossy_from = lossy, lossy_from or dtype
    path = tuple(entry.name.split("/"))
    return Leaf(path, entry.kind, dtype, entry.shape, data.nbytes, data=data, order=entry.order, lossy_from=lossy_from)


def _renumber(node: Node, new: dict[int, int]) -> Any:
    """Return a tree in which each leaf number is replaced by its value in `new`."""
    if isinstance(node, list):
        return [_renumber(item, new) for item in node]
    if not isinstance(node, dict):
        return node
    ((tag, body),) = node.items()
    if tag == "leaf":
        return {"leaf": new[body]}
    if tag == "dict":
        return {"dict": {key: _renumber(item, new) for key, item in body.items()}}
    if tag == "items":
        return {"items": [[key, _renumber(item, new)] for key, item in body]}
    return {tag: _renumber(body, new)}  # a node, or a list of nodes and plain values
