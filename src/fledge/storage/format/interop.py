"""Checkpoint formats of other tools: `.pt`, LZ4 around a `.pt` or around pickled NumPy arrays, and `.safetensors`.

Readers accept untrusted files: a `.pt` is loaded with `weights_only=True`, after its zip and its pickle have been checked for
anything that takes memory or time out of proportion; pickled arrays are read by `numpy_pickle`; an LZ4 frame may not expand
more than 256 times; every fault raises a FormatError. A `.safetensors` holds a flat dict of tensors; the tree and the
plain values are in its metadata.
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import re
import struct
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from fledge.core.errors import ConfigError, FormatError, InputError
from fledge.storage.format.codecs import MAX_EXPANSION
from fledge.storage.format.leaves import Leaf, bytes_of, check_description, restore
from fledge.storage.format.numpy_pickle import read_numpy_pickle
from fledge.storage.format.tree import Node, unflatten
from fledge.storage.format.writer import member_names
from fledge.storage.format.zip_archive import open_archive, read_member

LZ4_MAGIC = b"\x04\x22\x4d\x18"
ZIP_MAGIC = b"PK\x03\x04"
LZ4_PART = 2**18  # compressed bytes read at a time; they expand to 64 MB at most
MAX_LZ4_LEVEL = 16  # python-lz4's highest
LEGACY_MAGIC = b"l\xfc\x9cF\xf9 j\xa8P\x19"  # first number in a torch.save file before 1.6
LEGACY_PICKLES = 5  # written one after the other by torch.save before 1.6
_SUSPECT = re.compile(rb"bytearray|punycode|idna", re.IGNORECASE)
_SLOW_CODECS = ("punycode", "idna")  # quadratic time
TREE_KEY = "fledge.tree"  # key of our tree in the metadata of a .safetensors


def lz4_frame() -> Any:
    """Return the module `lz4.frame`; raise ConfigError if the package lz4 is not installed."""
    try:
        import lz4.frame
    except ImportError as error:
        raise ConfigError("LZ4 files need the package lz4, which is not installed. Run: pip install lz4") from error
    return lz4.frame


def load(path: Path, kind: str, device: torch.device | str = "cpu", mmap: bool = False) -> Any:
    """Load the state in a file of format "pt", "lz4" or "safetensors"."""
    if kind == "safetensors":
        return load_safetensors(path, device)
    if kind == "lz4":
        content = unpack_lz4(path)
        if content[:1] == b"\x80" and LEGACY_MAGIC not in content[:40]:
            return read_numpy_pickle(content, str(path))
        return load_pt(io.BytesIO(content), str(path), device)
    with open(path, "rb") as stream:
        return load_pt(stream, str(path), device, mmap)


def write(
    stream: BinaryIO, format: str, node: Node, leaves: Sequence[Leaf], level: int | None, metadata: dict[str, Any]
) -> None:
    """Write a tree and its staged leaves in the format "pt", "lz4" or "safetensors"."""
    if format == "safetensors":
        write_safetensors(stream, node, leaves, metadata)
    elif format == "pt":
        write_pt(stream, node, leaves)
    else:
        buffer = io.BytesIO()
        write_pt(buffer, node, leaves)
        level = 9 if level is None else level
        stream.write(lz4_frame().compress(buffer.getbuffer(), compression_level=level, content_checksum=True))


def load_pt(stream: BinaryIO, label: str, device: torch.device | str, mmap: bool = False) -> Any:
    """Load the state in a `torch.save` file without running any code in it.

    With `mmap`, `label` must be the file's path, and tensors are read from the file when they are used.
    """
    if stream.read(4) == ZIP_MAGIC:
        stream.seek(0)
        archive = open_archive(stream, label, ours=False)
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise FormatError(f"{label} has compressed members, which torch.save never writes: do not trust it.")
        for member in archive.infolist():
            if member.filename.endswith(".pkl"):
                pickled = read_member(archive, member.filename, member.file_size, label)
                if _SUSPECT.search(pickled):
                    _check_pickle(io.BytesIO(pickled), label)
    else:
        stream.seek(0)
        for _ in range(LEGACY_PICKLES):
            _check_pickle(stream, label)
    stream.seek(0)
    try:
        state = torch.load(label if mmap else stream, map_location=device, weights_only=True, mmap=mmap)
    except MemoryError as error:
        raise FormatError(
            f"{label} needs more memory than there is: it is damaged, or too large to load here."
        ) from error
    except Exception as error:
        text = str(error).rpartition("WeightsUnpickler error: ")[2] or type(error).__name__
        reason = text.strip().splitlines()[0][:160]
        stream.seek(0)
        if stream.read(1) not in (b"P", b"\x80"):  # a zip, or a pickle of protocol 2 or later
            raise FormatError(f"{label} is not a PyTorch checkpoint: it is neither a zip nor a pickle.") from error
        advice = "Fledge never unpickles code: save its state_dict() with torch.save where you trust the file"
        raise FormatError(f"{label} cannot be loaded as plain tensors ({reason}); {advice}.") from error
    stream.seek(0, os.SEEK_END)
    _check_extent(state, stream.tell(), label)
    return state


def _check_pickle(stream: BinaryIO, label: str) -> None:
    """Raise FormatError if a pickle can exhaust memory or time although `weights_only` accepts it.

    It may hold `bytearray(10**10)`, or name a text codec that takes quadratic time.
    """
    names: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name in ("GLOBAL", "STACK_GLOBAL"):
                names += (argument or " ".join(names[-2:])).split()[-1:]
                if names[-1:] == ["bytearray"]:
                    raise FormatError(f"{label} holds a bytearray, which could exhaust memory: save bytes instead.")
            elif isinstance(argument, str):
                names.append(argument)
                if argument.strip("-_ .").lower() in _SLOW_CODECS:
                    raise FormatError(f"{label} names the slow text codec {argument!r}, which torch.save never does.")
    except FormatError:
        raise
    except Exception:  # truncated: the loader raises, and everything before this point has been checked
        return


def _check_extent(state: Any, file_size: int, label: str) -> None:
    """Raise FormatError if tensors are far larger than the file: any copy of them would fill the memory."""
    todo, seen, storages = [state], {id(state)}, {}
    while todo:
        value = todo.pop()
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta:
            storage = value.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
            if value.nbytes > 4096 + MAX_EXPANSION * storage.nbytes():
                what = f"a tensor of shape {tuple(value.shape)} that repeats {storage.nbytes()} bytes"
                raise FormatError(f"{label} has {what}: loading it could use up all memory. Do not trust the file.")
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        for item in inside:  # each once: a few nested lists can refer to a billion
            if id(item) not in seen:
                seen.add(id(item))
                todo.append(item)
    if sum(storages.values()) > 4096 + MAX_EXPANSION * file_size:
        sizes = f"{sum(storages.values())} bytes of tensors, but has only {file_size} bytes"
        raise FormatError(f"{label} declares {sizes}: loading it could exhaust memory. Do not trust the file.")


def unpack_lz4(path: Path) -> bytes:
    """Decompress an LZ4 frame; raise FormatError if it expands more than 256 times."""
    limit = MAX_EXPANSION * path.stat().st_size
    content = io.BytesIO()
    decompressor = lz4_frame().LZ4FrameDecompressor()
    try:
        with open(path, "rb") as packed:
            while not decompressor.eof and (part := packed.read(LZ4_PART)):
                content.write(decompressor.decompress(part))
                if content.tell() > limit:
                    raise FormatError(
                        f"{path} expands more than {MAX_EXPANSION} times, which could exhaust memory: do not trust it."
                    )
    except (RuntimeError, ValueError, EOFError, MemoryError) as error:
        raise FormatError(f"{path} is not a complete LZ4 frame ({error}): it is truncated or damaged.") from error
    if not decompressor.eof:
        raise FormatError(f"{path} is an LZ4 frame without an end: it is truncated.")
    return content.getvalue()


def load_safetensors(path: Path, device: torch.device | str) -> Any:
    """Load the state in a `.safetensors` file: the tree that Fledge wrote, or a flat dict of tensors."""
    import safetensors

    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as opened:
            names = list(opened.keys())
            tensors = {name: opened.get_tensor(name) for name in names}
            metadata = opened.metadata() or {}
    except Exception as error:
        raise FormatError(f"{path} is not a valid .safetensors file ({str(error)[:200]}).") from error
    if TREE_KEY not in metadata:
        return tensors
    try:
        described = json.loads(metadata[TREE_KEY])
        rows, node = described["leaves"], described["tree"]
        return unflatten(node, lambda number: _from_row(rows[number], tensors))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        what = f"the metadata entry {TREE_KEY!r} does not describe the tensors"
        raise FormatError(f"{path}: {what}: the file is damaged or was altered.") from error


def _from_row(row: list[Any], tensors: dict[str, torch.Tensor]) -> Any:
    name, kind, dtype = row
    tensor = tensors[name]
    if kind == "tensor":
        return tensor
    data = bytes_of(tensor).copy()
    if kind == "bytes":
        return data.tobytes()
    shape = list(tensor.shape[:-1])  # an array is stored as bytes, with one more axis
    if check_description(kind, dtype, shape) != data.nbytes:
        raise KeyError(name)
    return restore(kind, dtype, tuple(shape), data, torch.device("cpu"))


def write_pt(stream: BinaryIO, node: Node, leaves: Sequence[Leaf]) -> None:
    """Write a `torch.save` file that `weights_only` reads: NumPy arrays become tensors, and defaultdicts dicts."""

    def read(number: int) -> Any:  # a tensor that shares the staging memory, with a storage of its own
        leaf = leaves[number]
        assert leaf.data is not None
        return restore(leaf.kind, leaf.dtype, leaf.shape, leaf.data, torch.device("cpu"))

    torch.save(_tensors_only(unflatten(node, read)), stream)


def _tensors_only(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        native = value.astype(value.dtype.newbyteorder("="), copy=False)  # torch has no other byte order
        return torch.from_numpy(native) if native.dtype.kind in "biufc" else native.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        plain = {key: _tensors_only(item) for key, item in value.items()}
        if isinstance(value, OrderedDict | Counter):
            again = type(value)(plain)
            again.__dict__ |= vars(value)  # a module's _metadata
            return again
        return plain
    if isinstance(value, list):
        return [_tensors_only(item) for item in value]
    if type(value) is tuple:
        return tuple(_tensors_only(item) for item in value)
    return value


_SAFE_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL", "uint8": "U8",
    "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32", "int64": "I64", "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip


def write_safetensors(stream: BinaryIO, node: Node, leaves: Sequence[Leaf], metadata: dict[str, Any]) -> None:
    """Write a `.safetensors` file: an 8-byte header length, a JSON header, then the tensors' bytes."""
    header: dict[str, Any] = {}
    rows, offset = [], 0
    names = [name.replace("/", ".") for name in member_names(leaves)]
    names = names if len(set(names)) == len(names) else member_names(leaves)
    for name, leaf in zip(names, leaves, strict=True):
        shape, code = list(leaf.shape), _SAFE_NAMES.get(leaf.dtype) if leaf.kind == "tensor" else "U8"
        if code is None:
            raise InputError(f"{name} is {leaf.dtype}, which .safetensors cannot hold: use .fledge or .pt.")
        if leaf.kind in ("array", "scalar"):
            shape = [*shape, np.dtype(leaf.dtype).itemsize]
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [offset, offset + leaf.nbytes]}
        rows.append([name, leaf.kind, leaf.dtype])
        offset += leaf.nbytes
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    header["__metadata__"] = {**texts, TREE_KEY: json.dumps({"tree": node, "leaves": rows})}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # safetensors aligns the data to 8 bytes
    stream.write(struct.pack("<Q", len(text)) + text)
    for leaf in leaves:
        assert leaf.data is not None
        stream.write(leaf.data.data)
