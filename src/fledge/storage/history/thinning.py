"""Rewriting a checkpoint in place: fewer tensors, fewer bits, or without a base.

Contract
    The file at a path is replaced, durably and at once, by one with the same metadata. Members that need no change are
    copied as they are, without decoding.
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

_ROUNDED = {"float64", "float32"}  # what fewer bits may stand in for


def write_thin(
    path: Path,
    weights: Sequence[str],
    lossy: str | None = None,
    base: str | os.PathLike[str] | None = None,
    level: int | None = None,
) -> Written:
    """Keep only the weights and plain values of a checkpoint, rounded to `lossy` or as a delta to `base` if given."""
    with CheckpointFile(path) as source:
        node, numbers = renumber(_thin_tree(source.tree, weights))
        note = {**source.metadata.get("history", {}), "thin": True}
        metadata = {**source.metadata, "history": note}
        plain = all(source.entries[number].base_name is None for number in numbers)
        if plain and lossy is None and base is None:
            with durable_file(path, verify=check_opens) as stream:
                return copy_members(source, stream, node, numbers, metadata)
        leaves = [_leaf(source, number, lossy) for number in numbers]
        return write_state(path, "native", node, leaves, level=level, metadata=metadata, base=base)


def rewrite_whole(path: Path, level: int | None = None) -> Written:
    """Make a delta checkpoint stand alone."""
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


def _thin_tree(tree: Node, weights: Sequence[str]) -> Node:
    """The top-level entries named by `weights`, and those without any tensor."""
    kept = [(key, node) for key, node in children(tree) if key in weights or not leaf_numbers(node)]
    return with_children(tree, kept)


def renumber(node: Node) -> tuple[Node, list[int]]:
    """The tree with its leaves numbered from 0 in order, and the old number of each."""
    numbers = leaf_numbers(node)
    new = {old: i for i, old in enumerate(numbers)}
    return _renumber(node, new), numbers


def _renumber(node: Node, new: dict[int, int]) -> Any:
    if isinstance(node, list):
        return [_renumber(item, new) for item in node]
    if not isinstance(node, dict):
        return node
    (tag, body), *_ = node.items()
    if tag == "leaf":
        return {"leaf": new[body]}
    if tag == "dict":
        return {"dict": {key: _renumber(item, new) for key, item in body.items()}}
    if tag == "items":
        return {"items": [[key, _renumber(item, new)] for key, item in body]}
    if tag in ("tuple", "module"):
        return {tag: [_renumber(item, new) for item in body]}
    if tag in ("ordered", "counter"):
        return {tag: _renumber(body, new)}
    if tag == "default":
        return {tag: [body[0], _renumber(body[1], new)]}
    return node
