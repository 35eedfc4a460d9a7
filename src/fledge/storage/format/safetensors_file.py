"""Read and write `.safetensors` files: an 8-byte header length, a JSON header, then the tensors' bytes.

The file holds a flat dict of tensors. The tree of the state, its plain values and the metadata are text in the header, under
`TREE_KEY`; other tools ignore it. Readers accept untrusted files: all sizes are checked before memory is taken, loaded tensors
take no more memory than the file and never share memory with it, and every fault raises a FormatError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from fledge.core.errors import FormatError, InputError
from fledge.storage.format.leaves import Leaf, check_description, restore
from fledge.storage.format.tree import Node, unflatten
from fledge.storage.format.writer import member_names, plain_node

TREE_KEY = "fledge.tree"  # key of our tree in the metadata
METADATA = "__metadata__"  # key of the metadata in the header, which no tensor may have
MAX_HEADER = 100_000_000  # bytes; the format's own limit
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL", "uint8": "U8",
    "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32", "int64": "I64", "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip
_DTYPES = {code: name for name, code in _NAMES.items()}


@dataclass(frozen=True)
class _Entry:
    """A tensor as the header describes it, after checks."""

    dtype: str
    shape: tuple[int, ...]
    begin: int  # offset in the file, bytes
    nbytes: int


def load_safetensors(path: Path, device: torch.device | str) -> Any:
    """Load the state in a `.safetensors` file: the tree that Fledge wrote, or a flat dict of tensors."""
    with _reading(path) as stream:
        entries, texts = _read_header(stream)
        tensors = {name: _read_tensor(stream, name, entry) for name, entry in entries.items()}
        if TREE_KEY not in texts:
            return {name: tensors[name].to(device) for name in sorted(tensors)}
        described = json.loads(texts[TREE_KEY])
        rows, node = described["leaves"], described["tree"]
        return unflatten(node, lambda number: _from_row(rows[number], tensors, device))


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a `.safetensors` file: the values that Fledge wrote, or the strings that another tool wrote."""
    with _reading(path) as stream:
        _, texts = _read_header(stream)
        described = json.loads(texts.pop(TREE_KEY, "{}"))
        metadata = unflatten(described["metadata"], lambda number: None) if "metadata" in described else texts
        return metadata if isinstance(metadata, dict) else {}


class _reading:
    """Open a file for reading; inside the block, every error that malformed content causes becomes a FormatError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> BinaryIO:
        self.stream = open(self.path, "rb")
        return self.stream

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.stream.close()
        if isinstance(error, FormatError):
            raise FormatError(f"{self.path} is not a valid .safetensors file: {error}") from error
        malformed = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError)
        if isinstance(error, malformed):
            what = f"its header does not describe the tensors ({type(error).__name__}: {str(error)[:120]})"
            raise FormatError(f"{self.path} is damaged or was altered: {what}.") from error


def _read_header(stream: BinaryIO) -> tuple[dict[str, _Entry], dict[str, str]]:
    """Return the tensors that a file describes, and the strings in its metadata."""
    size = stream.seek(0, 2)
    stream.seek(0)
    head = stream.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(MAX_HEADER, size - 8):
        raise FormatError(f"it has {size} bytes, too few for its header: it is truncated, or of another kind.")
    header = json.loads(stream.read(length), object_pairs_hook=_unique)
    texts = header.pop(METADATA, {})
    if not all(isinstance(text, str) for text in texts.values()):
        raise FormatError(f"{METADATA!r} in its header holds something that is not text.")
    entries = {name: _entry(name, row, 8 + length) for name, row in header.items()}
    place = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].nbytes)):
        if entry.begin != place:
            raise FormatError(f"the tensor {name[:60]!r} does not begin where the one before it ends.")
        place += entry.nbytes
    if place != size:
        raise FormatError(f"its tensors end after {place} bytes, but it has {size} bytes: it is truncated or damaged.")
    return entries, texts


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FormatError("its header has the same key twice.")
    return found


def _entry(name: str, row: Any, start: int) -> _Entry:
    dtype, shape, (begin, end) = _DTYPES.get(row["dtype"]), row["shape"], row["data_offsets"]
    if dtype is None:
        raise FormatError(
            f"the tensor {name[:60]!r} has dtype {str(row['dtype'])[:40]}, but Fledge reads {', '.join(_DTYPES)}."
        )
    nbytes = check_description("tensor", dtype, shape)
    if type(begin) is not int or type(end) is not int or begin < 0 or end - begin != nbytes:
        offsets = f"offsets {str([begin, end])[:60]}"
        raise FormatError(f"the tensor {name[:60]!r} has {offsets}, which do not fit its {nbytes} bytes.")
    return _Entry(dtype, tuple(shape), start + begin, nbytes)


def _read_tensor(stream: BinaryIO, name: str, entry: _Entry) -> torch.Tensor:
    data = np.empty(entry.nbytes, np.uint8)
    stream.seek(entry.begin)
    if stream.readinto(data.data) != entry.nbytes:  # type: ignore[attr-defined] # a buffered file has it
        raise FormatError(f"it ends inside the tensor {name[:60]!r}: it is truncated.")
    tensor: torch.Tensor = restore("tensor", entry.dtype, entry.shape, data, torch.device("cpu"))
    return tensor


def _from_row(row: list[Any], tensors: dict[str, torch.Tensor], device: torch.device | str) -> Any:
    name, kind, dtype = row
    tensor = tensors.pop(name)  # each belongs to one leaf, so that no tensor is copied twice
    if kind == "tensor":
        return tensor.to(device)
    data = tensor.reshape(-1).view(torch.uint8).numpy()
    shape = list(
        tensor.shape if kind == "bytes" else tensor.shape[:-1]
    )  # an array is stored as bytes, with one more axis
    if check_description(kind, dtype, shape) != data.nbytes:
        raise FormatError(f"the {kind} {name[:60]!r} does not have the size of its dtype and shape.")
    return restore(kind, dtype, tuple(shape), data, torch.device("cpu"))


def write_safetensors(stream: BinaryIO, node: Node, leaves: Sequence[Leaf], metadata: dict[str, Any]) -> None:
    """Write a tree and its leaves, whose `data` must be set, as a `.safetensors` file."""
    header: dict[str, Any] = {METADATA: {}}
    rows, offset = [], 0
    for name, leaf in zip(_tensor_names(leaves), leaves, strict=True):
        shape, code = list(leaf.shape), _NAMES.get(leaf.dtype) if leaf.kind == "tensor" else "U8"
        if code is None:
            raise InputError(f"{name} has dtype {leaf.dtype}, which .safetensors cannot hold: use .fledge or .pt.")
        if leaf.kind in ("array", "scalar"):
            shape = [*shape, np.dtype(leaf.dtype).itemsize]
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [offset, offset + leaf.nbytes]}
        rows.append([name, leaf.kind, leaf.dtype])
        offset += leaf.nbytes
    ours = {"tree": node, "leaves": rows, "metadata": plain_node(metadata)}
    header[METADATA] = {**dict(_texts(metadata)), TREE_KEY: json.dumps(ours)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # safetensors aligns the data to 8 bytes
    if len(text) > MAX_HEADER:
        sizes = f"take {len(text)} bytes, but a .safetensors header has at most {MAX_HEADER}"
        raise InputError(f"the plain values of this state {sizes}: put long lists of numbers into tensors.")
    stream.write(struct.pack("<Q", len(text)) + text)
    for leaf in leaves:
        assert leaf.data is not None
        stream.write(leaf.data.data)


def _tensor_names(leaves: Sequence[Leaf]) -> list[str]:
    """Return one name per leaf: its path joined by dots, or by slashes if names with dots would not be unique."""
    names = member_names(leaves, METADATA)
    dotted = [name.replace("/", ".") for name in names]
    return dotted if len(set(dotted)) == len(dotted) else names


def _texts(metadata: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in metadata.items():
        yield str(key), value if isinstance(value, str) else json.dumps(value, default=str)
