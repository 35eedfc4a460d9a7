"""Write the native checkpoint file (docs/reference/checkpoint_format.md): a zip with one member per tensor and a manifest.

Checksums are XXH3 of 128 bits over a leaf's decoded bytes. A CRC would detect bit rot as well, but deltas identify their base
by checksum, and among 10^5 tensors two would share a CRC-32. XXH3 takes 0.1 s per GB (SHA-256: 0.7) without the GIL. It does
not protect against forgery, and neither would a SHA-256 in the same file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from fledge.core.errors import InputError
from fledge.storage.format import codecs
from fledge.storage.format.flattening import flatten
from fledge.storage.format.leaves import Leaf, is_float, permute, word_size
from fledge.storage.format.reader import FORMAT, MANIFEST, VERSION, CheckpointFile, checksum, manifest_limit
from fledge.storage.format.tree import Node, unflatten
from fledge.storage.format.zip_archive import ArchiveWriter

MAX_CHAIN = 8  # files that must be read to restore one delta checkpoint, itself not counted
REPLAN_EVERY = 32  # saves after which the choice of a codec is repeated


@dataclass
class Plans:
    """Codecs chosen for the leaves of a state, kept from one save to the next."""

    chosen: dict[tuple[Any, ...], tuple[str, int]] = field(default_factory=dict)  # codec and age of the choice, by leaf
    speed_bias: int = 0  # steps towards faster codecs, for frequent saves; see `codecs.candidates`


@dataclass(frozen=True)
class Written:
    """Sizes of a checkpoint that was written, the hash that identifies it, and the length of its chain of deltas."""

    bytes_in: int  # of all leaves, uncompressed
    bytes_out: int  # of the file
    id: str  # hash of the manifest
    depth: int  # number of deltas in the chain that ends with this file; 0 if it is no delta


def write_native(
    stream: BinaryIO,
    node: Node,
    leaves: Sequence[Leaf],
    *,
    level: int | None = None,
    metadata: dict[str, Any] | None = None,
    base: CheckpointFile | None = None,
    plans: Plans | None = None,
) -> Written:
    """Write the tree of `flatten` and its leaves, whose `data` must be set, as one checkpoint file.

    With `base`, an earlier checkpoint in the same folder, each tensor is stored as a difference to it if that is smaller. A
    base that already ends a chain of `MAX_CHAIN` deltas is ignored. `plans` holds the codecs chosen at earlier saves of the
    same state, and is updated.
    """
    if base is not None and base.depth >= MAX_CHAIN:
        base = None
    plans = Plans() if plans is None else plans
    total = sum(leaf.nbytes for leaf in leaves)
    names = codecs.candidates(level, total, plans.speed_bias)
    encoder = _Encoder(names, base, plans)
    archive, entries = ArchiveWriter(stream), []
    for name, leaf in zip(member_names(leaves), leaves, strict=True):
        entry, blocks = encoder.encode(name, leaf)
        archive.add(name, blocks)
        entries.append(entry)
    reference = None
    if base is not None and any("base_name" in entry for entry in entries):
        reference = {"file": base.path.name, "id": base.id, "depth": base.depth + 1}
    return _finish(archive, total, node, entries, metadata or {}, reference, deflate=level != 0)


def _finish(
    archive: ArchiveWriter,
    total: int,
    node: Node,
    entries: list[dict[str, Any]],
    metadata: dict[str, Any],
    base: dict[str, Any] | None,
    deflate: bool,
) -> Written:
    """Write the manifest, the zip's directory, and the comment that ends the file."""
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "chunk_bytes": codecs.CHUNK_BYTES,
        "metadata": plain_node(metadata),
        "base": base,
        "tree": node,
        "leaves": entries,
    }
    text = json.dumps(manifest, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > (limit := manifest_limit(len(text))):
        sizes = f"take {len(text) / 2**20:.0f} MiB, but at most {limit // 2**20} are allowed"
        raise InputError(f"the plain values of this state {sizes}: put long lists of numbers into tensors.")
    archive.add(MANIFEST, [text], deflate=(lambda packed: len(text) <= manifest_limit(packed)) if deflate else None)
    identity = hashlib.sha256(text).hexdigest()[:32]
    archive.finish(f"{FORMAT} {VERSION} {identity}".encode())
    return Written(total, archive.offset, identity, base["depth"] if base else 0)


class _Encoder:
    """Encodes leaves as members of the zip, each with the codec chosen for it."""

    def __init__(self, names: Sequence[str], base: CheckpointFile | None, plans: Plans) -> None:
        self.names, self.base, self.plans = names, base, plans

    def encode(self, name: str, leaf: Leaf) -> tuple[dict[str, Any], list[codecs.Block]]:
        """Return the manifest's entry for a leaf, and the blocks of its member."""
        assert leaf.data is not None, f"leaf {name} was not staged"
        entry: dict[str, Any] = {"name": name, "kind": leaf.kind, "dtype": leaf.dtype, "shape": list(leaf.shape)}
        if leaf.lossy_from:
            entry["lossy_from"] = leaf.lossy_from
        if leaf.order is not None:
            entry["order"] = list(leaf.order)
        entry["checksum"] = checksum(leaf.data)
        stored = _in_order(leaf.data, leaf)
        word = word_size(leaf.kind, leaf.dtype)
        floats = is_float(leaf.kind, leaf.dtype) and leaf.order is None  # in time order, neighbours are related
        codec, blocks = self._smallest(name, leaf, stored, word, floats, False)
        old = self._base_bytes(name, leaf)
        if old is not None:
            changed = codecs.difference(stored, _in_order(old[0], leaf), word)
            delta_codec, delta_blocks = self._smallest(name, leaf, changed, word, True, True)
            if codecs.size_of(delta_blocks) < codecs.size_of(blocks):
                codec, blocks = delta_codec, delta_blocks
                entry["base_name"], entry["base_checksum"] = name, old[1]
        entry["codec"] = codec
        return entry, blocks

    def _smallest(
        self, name: str, leaf: Leaf, data: np.ndarray, word: int, floats: bool, is_delta: bool
    ) -> tuple[str, list[codecs.Block]]:
        key = (name, leaf.dtype, leaf.shape, is_delta, self.names)
        codec, age = self.plans.chosen.get(key, ("", REPLAN_EVERY))
        if age >= REPLAN_EVERY:
            codec, age = codecs.choose(data, word, floats, self.names), 0
        self.plans.chosen[key] = (codec, age + 1)
        return codecs.encode(codec, data, word, floats)

    def _base_bytes(self, name: str, leaf: Leaf) -> tuple[np.ndarray, str] | None:
        """Return bytes and checksum of the same leaf in the base; None if there is no such leaf, or a delta saves nothing."""
        if self.base is None or not self.names or leaf.nbytes < codecs.SMALL:
            return None
        index = self.base.by_name.get(name)
        if index is None:
            return None
        old = self.base.entries[index]
        if (old.kind, old.dtype, old.shape) != (leaf.kind, leaf.dtype, leaf.shape):
            return None
        return self.base.read_bytes(index), old.checksum


def _in_order(data: np.ndarray, leaf: Leaf) -> np.ndarray:
    return data if leaf.order is None else permute(data, leaf.dtype, leaf.shape, leaf.order)


def member_names(leaves: Sequence[Leaf], reserved: str = MANIFEST) -> list[str]:
    """Return one readable, unique and safe member name per leaf, from its path in the state; none is `reserved`."""
    taken = {reserved}
    copies: dict[str, int] = {}  # last number per name; searching from 1 would take quadratic time
    names = []
    for leaf in leaves:
        parts = [re.sub(r"[^A-Za-z0-9._+~-]", "_", str(key)) for key in leaf.path] or ["state"]
        parts = "/".join(parts)[-200:].split("/")  # the cut may leave an empty first part, or ".."
        stem = "/".join("_" if part in ("", ".", "..") else part for part in parts)
        name, copy = stem, copies.get(stem, 1)
        while name in taken:
            copy += 1
            name = f"{stem}~{copy}"
        copies[stem] = copy
        taken.add(name)
        names.append(name)
    return names


def plain_node(metadata: dict[str, Any]) -> Node:
    """Return metadata as a JSON node; raise InputError if it holds anything but plain values."""
    node, leaves = flatten(metadata)
    if leaves:
        raise InputError(
            "metadata holds a tensor, array or bytes, but may hold plain values only: put it into the state."
        )
    return node


def plain_copy(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return a deep copy of metadata; raise InputError if it holds anything but plain values."""
    if not metadata:
        return {}
    copied: dict[str, Any] = unflatten(plain_node(dict(metadata)), lambda number: None)
    return copied


def copy_members(
    source: CheckpointFile, stream: BinaryIO, node: Node, numbers: Sequence[int], metadata: dict[str, Any]
) -> Written:
    """Copy the leaves `numbers` of a checkpoint into a new file with the tree `node`, without decoding them.

    Leaf i of `node` is leaf `numbers[i]` of `source`.
    """
    archive, entries, total = ArchiveWriter(stream), [], 0
    for number in numbers:
        entry = source.entries[number]
        assert entry.base_name is None, "a delta cannot be copied without its base"
        archive.add(entry.name, [source.stored_bytes(number)])
        entries.append(entry.raw)
        total += entry.nbytes
    return _finish(archive, total, node, entries, metadata, None, deflate=True)
