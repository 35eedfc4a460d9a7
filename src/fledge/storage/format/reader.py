"""Read an untrusted native checkpoint file.

`CheckpointFile(path)` checks a file's directory, manifest and every declared size, and reads leaves (tensors, arrays and
bytes) one by one, each verified against its checksum. Memory: all leaves together take at most 256 times the file's size
plus 64 MiB; reading a tensor takes up to three times its size in addition; the manifest up to 256 MiB. If the file is a delta,
its base in the same folder is opened too, but no other file. Every fault raises a FormatError with the file's name. If
`stream` is given, the bytes are read from it, `path` is only a label, and a delta raises a FormatError.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import xxhash

from fledge.core.closing import Closing
from fledge.core.errors import FormatError, StorageError
from fledge.storage.format import codecs
from fledge.storage.format.leaves import TORCH_DTYPES, check_description, permute, restore, unpermute, word_size
from fledge.storage.format.tree import Node, leaf_numbers, select, unflatten
from fledge.storage.format.zip_archive import open_archive, read_member, safe_name

FORMAT = "fledge-checkpoint"
VERSION = 3  # version 2 has only plain dicts
VERSIONS = (2, VERSION)
_READ = " and ".join(map(str, VERSIONS))
CHECKSUM = "xxh3:"  # prefix of every checksum
MANIFEST = "manifest.json"
MAX_MANIFEST = 32 * 2**20  # bytes
HARD_MAX_CHAIN = 64
LOSSY = (("bfloat16", "float32"), ("bfloat16", "float64"))  # stored dtype, original dtype
SLACK = 64 * 2**20  # bytes that the leaves of any file may take, however small it is


def manifest_limit(stored: int) -> int:
    """Return how many bytes a manifest may have after decompression, if it takes `stored` bytes in the file.

    Without a limit, a small file could fill the memory: deflate compresses up to a thousandfold, and JSON grows up to a
    hundredfold when it is parsed. A manifest that compresses better than this limit is stored uncompressed.
    """
    return min(MAX_MANIFEST, 2 * 2**20 + 2 * stored)


def checksum(data: np.ndarray) -> str:
    """Return the checksum of a leaf's bytes, as written in the manifest."""
    return CHECKSUM + xxhash.xxh3_128(data.data).hexdigest()


@dataclass(frozen=True)
class Entry:
    """A leaf as the manifest describes it, after checks."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    codec: str
    checksum: str
    nbytes: int  # size when decoded
    stored: int  # size in the file
    word: int
    order: tuple[int, ...] | None
    lossy_from: str | None
    base_name: str | None
    base_checksum: str | None
    raw: dict[str, Any]  # the entry as it is in the manifest

    @property
    def loaded_bytes(self) -> int:
        """Size in bytes after loading; larger than `nbytes` if a rounded tensor gets its original dtype back."""
        if self.lossy_from is None:
            return self.nbytes
        return self.nbytes // TORCH_DTYPES[self.dtype].itemsize * TORCH_DTYPES[self.lossy_from].itemsize


class CheckpointFile(Closing):
    """An open checkpoint file: tree and metadata are read when it is opened, leaves on request."""

    def __init__(
        self, path: str | os.PathLike[str], depth_left: int = HARD_MAX_CHAIN, stream: BinaryIO | None = None
    ) -> None:
        self.path = Path(path)
        self._base: CheckpointFile | None = None
        self._stream = self._open() if stream is None else stream
        try:
            with _named(str(self.path)):
                self._load(0 if stream is not None else depth_left)
        except BaseException as error:
            self.close()
            if isinstance(error, RecursionError):
                raise self._bad("is nested too deep") from error
            if isinstance(error, ValueError | TypeError | LookupError | ArithmeticError | AttributeError):
                raise self._bad(f"has a value that cannot be read ({type(error).__name__})") from error
            raise

    def _open(self) -> BinaryIO:
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise FormatError(f"{self.path} is not a regular file: give the name of a checkpoint.")
            return open(self.path, "rb")
        except OSError as error:
            raise StorageError(f"{self.path} cannot be opened ({error.strerror}): check the name.") from error

    def _load(self, depth_left: int) -> None:
        label = str(self.path)
        self._archive = open_archive(self._stream, label)
        manifest = self._read_manifest(label)
        self.tree: Node = manifest.get("tree")
        if leaf_numbers(manifest.get("metadata")):
            raise self._bad("has an array in its metadata")
        self.metadata: dict[str, Any] = unflatten(manifest.get("metadata"), lambda number: None)
        if not isinstance(self.metadata, dict):
            raise self._bad("has no metadata")
        rows = manifest.get("leaves")
        if not isinstance(rows, list):
            raise self._bad("has no list of leaves")
        self.entries = [self._entry(row) for row in rows]
        total = sum(entry.loaded_bytes for entry in self.entries)
        if total > codecs.MAX_EXPANSION * self._stream.seek(0, os.SEEK_END) + SLACK:
            raise self._bad(f"declares {total} bytes in all, more than {codecs.MAX_EXPANSION} times the file's size")
        self.by_name = {entry.name: i for i, entry in enumerate(self.entries)}
        if len(self.by_name) != len(rows):
            raise self._bad("has two leaves of the same name")
        for number in leaf_numbers(self.tree):
            if not 0 <= number < len(self.entries):
                raise self._bad(f"refers to leaf {number}, but has {len(self.entries)} leaves, counted from 0")
        self._check_base(manifest.get("base"), depth_left)

    def _read_manifest(self, label: str) -> dict[str, Any]:
        try:
            info = self._archive.getinfo(MANIFEST)
        except KeyError as error:
            raise FormatError(f"{label} is a zip without {MANIFEST}: it is not a Fledge checkpoint.") from error
        text = read_member(self._archive, MANIFEST, manifest_limit(info.compress_size), label)
        self.id = hashlib.sha256(text).hexdigest()[:32]
        try:
            manifest = json.loads(text)
        except ValueError as error:
            raise FormatError(f"{label}: {MANIFEST} is not JSON ({error}): the file is damaged.") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise FormatError(
                f"{label}: {MANIFEST} does not name the format {FORMAT!r}: it is not a Fledge checkpoint."
            )
        version = manifest.get("version")
        if version == 1:
            raise self._too_old("has format version 1")
        if type(version) is not int or version not in VERSIONS:
            found = f"has format version {str(version)[:20]}"
            raise FormatError(f"{label} {found}; this Fledge reads versions {_READ}: update Fledge.")
        if manifest.get("chunk_bytes") != codecs.CHUNK_BYTES:
            raise self._bad(
                f"declares chunks of {str(manifest.get('chunk_bytes'))[:20]} bytes, not {codecs.CHUNK_BYTES}"
            )
        if self._archive.comment != f"{FORMAT} {version} {self.id}".encode():
            raise self._bad("does not match the comment at the end of the zip")
        return manifest

    def _entry(self, row: Any) -> Entry:
        if not isinstance(row, dict):
            raise self._bad(f"describes a leaf by {str(row)[:60]!r}, which is not a dict")
        fields: tuple[Any, ...] = tuple(row.get(key) for key in ("kind", "dtype", "shape", "codec", "name", "checksum"))
        kind, dtype, shape, codec, name, digest = fields
        order, nbytes = row.get("order"), check_description(kind, dtype, shape)
        if not isinstance(name, str) or not safe_name(name) or name == MANIFEST or name not in self._archive.NameToInfo:
            raise self._bad(f"names a member {str(name)[:60]!r} that is not in the file")
        if codec not in codecs.CODEC_NAMES:
            raise self._bad(f"uses the unknown codec {str(codec)[:40]!r}; known are {', '.join(codecs.CODEC_NAMES)}")
        axes = order if isinstance(order, list) and all(type(axis) is int for axis in order) else [-1]
        if order is not None and (kind != "tensor" or sorted(axes) != list(range(len(shape)))):
            given = f"the axis order {str(order)[:60]}"
            raise self._bad(
                f"has {given}, which is not a permutation of the axes of a tensor of shape {str(shape)[:60]}"
            )
        lossy, base_name, base_digest = row.get("lossy_from"), row.get("base_name"), row.get("base_checksum")
        texts = (digest, *(text for text in (lossy, base_name, base_digest) if text is not None))
        if not all(isinstance(text, str) and len(text) <= 512 for text in texts):
            raise self._bad(f"has an entry {name!r} whose checksum or base is not a string of at most 512 characters")
        if digest.startswith("sha256:"):  # copied from a file of version 1
            raise self._too_old(f"stores {name!r} in format version 1")
        if not digest.startswith(CHECKSUM):
            raise self._bad(f"has a checksum {digest[:60]!r} that does not begin with {CHECKSUM!r}")
        if lossy is not None and (kind != "tensor" or (dtype, lossy) not in LOSSY):
            raise self._bad(f"says that a {kind} of {dtype} was rounded from {lossy[:40]!r}, which Fledge never does")
        info = self._archive.NameToInfo[name]
        if info.compress_type != 0 or info.compress_size != info.file_size:
            raise self._bad(f"has member {name!r} with zip compression, which tensors must not have")
        if nbytes > codecs.MAX_EXPANSION * info.file_size or (codec == "raw" and nbytes != info.file_size):
            raise self._bad(
                f"declares {nbytes} bytes for {name!r}, which do not fit its {info.file_size} bytes in the file"
            )
        return Entry(
            name, kind, dtype, tuple(shape), codec, digest, nbytes, info.file_size, word_size(kind, dtype),
            None if order is None else tuple(order), lossy, base_name, base_digest, row,
        )  # fmt: skip

    def _check_base(self, base: Any, depth_left: int) -> None:
        self.depth, self.base_file = 0, None
        if base is None:
            if any(entry.base_name is not None for entry in self.entries):
                raise self._bad("has a delta without a base")
            return
        if not isinstance(base, dict):
            raise self._bad("describes its base by something that is not a dict")
        name, identity, depth = base.get("file"), base.get("id"), base.get("depth")
        if not isinstance(name, str) or not safe_name(name) or "/" in name or not isinstance(identity, str):
            raise self._bad(f"names a base {str(name)[:60]!r}; it must be a file in the same folder")
        if type(depth) is not int or not 1 <= depth <= depth_left:
            raise self._bad(
                f"says that it is delta number {str(depth)[:20]} of a chain, but only 1 to {depth_left} are allowed"
            )
        self.depth, self.base_file = depth, name

    def _bad(self, what: str) -> FormatError:
        return FormatError(f"{self.path}: the manifest {what}: the file is damaged or was altered.")

    def _too_old(self, what: str) -> FormatError:
        advice = "convert it with Fledge 0.1 (fledge convert OLD.fledge NEW.fledge)"
        return FormatError(f"{self.path} {what}, but this Fledge reads only versions {_READ}: {advice}.")

    def base(self) -> CheckpointFile:
        """Open and return the base: the checkpoint that the deltas in this file refer to."""
        assert self.base_file is not None, "asked for the base of a whole checkpoint"
        if self._base is None:
            path = self.path.parent / self.base_file
            try:
                self._base = CheckpointFile(path, self.depth - 1)
            except StorageError as error:
                raise FormatError(
                    f"{self.path} needs its base {self.base_file!r} in the same folder: {error}"
                ) from error
        return self._base

    def stored_bytes(self, number: int) -> bytes:
        """Return the bytes of a leaf as they are stored in the file, after checking their CRC."""
        entry = self.entries[number]
        return read_member(self._archive, entry.name, entry.stored, str(self.path))

    def read_bytes(self, number: int) -> np.ndarray:
        """Return the verified bytes of a leaf, in C order and the stored dtype."""
        entry = self.entries[number]
        member = memoryview(self.stored_bytes(number))
        if len(member) != entry.stored:
            raise self._bad(f"has a member {entry.name!r} whose size differs from the zip's directory")
        out = np.empty(entry.nbytes, np.uint8)
        with _named(f"{self.path}: {entry.name!r}"):
            codecs.decode(entry.codec, member, out, entry.word)
        if entry.base_name is not None:
            out = codecs.apply_difference(out, self._base_bytes(entry), entry.word)
        out = out if entry.order is None else unpermute(out, entry.dtype, entry.shape, entry.order)
        if checksum(out) != entry.checksum:
            raise FormatError(f"{self.path}: {entry.name!r} does not match its checksum: it is damaged or was altered.")
        return out

    def _base_bytes(self, entry: Entry) -> np.ndarray:
        """Return the bytes of the same leaf in the base, with the axis order in which this leaf is stored."""
        base = self.base()
        number = base.by_name.get(entry.base_name or "")
        old = None if number is None else base.entries[number]
        if old is None or number is None or old.checksum != entry.base_checksum or old.nbytes != entry.nbytes:
            problem = f"{entry.name!r} is a delta to a tensor that {base.path.name} does not have"
            raise FormatError(f"{self.path}: {problem}: the base was replaced; restore the original.")
        data = base.read_bytes(number)
        return data if entry.order is None else permute(data, entry.dtype, entry.shape, entry.order)

    def read(self, number: int, device: torch.device | str = "cpu") -> Any:
        """Read and verify a leaf, and return the saved object; a rounded tensor gets its original dtype back."""
        entry = self.entries[number]
        data = self.read_bytes(number)
        try:
            value = restore(entry.kind, entry.dtype, entry.shape, data, torch.device(device))
        except (ValueError, TypeError, OverflowError) as error:
            raise self._bad(f"describes {entry.name!r} as a {entry.kind}, which it is not ({error})") from error
        return value.to(TORCH_DTYPES[entry.lossy_from]) if entry.lossy_from else value

    def state(self, device: torch.device | str = "cpu", keys: Iterable[str] | None = None) -> Any:
        """Return the state, or the part of it under `keys`; tensors that were tied when saved are the same object again."""
        node = self.tree if keys is None else select(self.tree, keys)
        return unflatten(node, lambda number: self.read(number, device))

    def close(self) -> None:
        """Close this file and its base."""
        self._stream.close()
        if self._base is not None:
            self._base.close()


def check_opens(path: Path) -> None:
    """Raise FormatError if a file cannot be opened; called for every new file before it is renamed to its final name."""
    CheckpointFile(path).close()


@contextlib.contextmanager
def _named(label: str) -> Iterator[None]:
    """Put `label` before the text of every FormatError that the block raises, unless the text begins with it."""
    try:
        yield
    except FormatError as error:
        if str(error).startswith(label):
            raise
        raise FormatError(f"{label}: {error}") from error
