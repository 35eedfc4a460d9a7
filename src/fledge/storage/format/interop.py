"""Checkpoint formats of other tools: `.pt`, LZ4 around a `.pt` or around pickled NumPy arrays, and `.safetensors`.

Readers accept untrusted files: a `.pt` is loaded with `weights_only=True`, after its zip and its pickle have been checked for
anything that takes memory or time out of proportion; pickled arrays are read by `numpy_pickle`; an LZ4 frame must begin with a
zip or a pickle, and may expand neither more than 256 times nor beyond the size in its header; `safetensors_file` reads
`.safetensors`; every fault raises a FormatError. Loaded tensors own their memory: the file may be overwritten or removed
(except with `mmap`).
"""

from __future__ import annotations

import codecs
import io
import os
import pickletools
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from fledge.core.errors import ConfigError, FormatError
from fledge.core.paths import shorten
from fledge.storage.format.codecs import MAX_EXPANSION
from fledge.storage.format.leaves import Leaf, entry_error, restore
from fledge.storage.format.numpy_pickle import read_numpy_pickle
from fledge.storage.format.safetensors_file import load_safetensors, write_safetensors
from fledge.storage.format.tree import Node, unflatten
from fledge.storage.format.zip_archive import open_archive, read_member

LZ4_MAGIC = b"\x04\x22\x4d\x18"
LZ4_HEADER = 19  # bytes of the longest header of an LZ4 frame
ZIP_MAGIC = b"PK\x03\x04"
STARTS = (b"P", b"\x80")  # first byte of a zip, and of a pickle of protocol 2 or later
NOT_TORCH = "is not a PyTorch checkpoint: it holds neither a zip nor a pickle. Use another file."
TOO_LARGE = "needs more memory than there is: it is damaged, or too large to load here."
LZ4_PART, LZ4_OUTPUT = 2**18, 2**22  # compressed bytes read, and bytes decompressed, at a time
MAX_LZ4_LEVEL = 16  # python-lz4's highest
LEGACY_MAGIC = b"l\xfc\x9cF\xf9 j\xa8P\x19"  # first number in a torch.save file before 1.6
LEGACY_PICKLES = 5  # written one after the other by torch.save before 1.6
_SUSPECT = re.compile(rb"bytearray|punycode|idna", re.IGNORECASE)
_GLOBAL = re.compile(r"GLOBAL ([\w.]{1,100})")  # a function or class, in messages of torch.load
_SLOW_CODECS = ("punycode", "idna")  # quadratic time


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
    """Write a tree and its leaves, whose `data` must be set, in the format "pt", "lz4" or "safetensors"."""
    if format == "safetensors":
        write_safetensors(stream, node, leaves, metadata)
    elif format == "pt":
        write_pt(stream, node, leaves)
    else:
        buffer = io.BytesIO()
        write_pt(buffer, node, leaves)
        frame, level = lz4_frame(), 9 if level is None else level
        # Independent blocks: over linked ones, LZ4's search takes quadratic time on zeros.
        blocks = {"block_linked": False, "block_size": frame.BLOCKSIZE_MAX4MB}
        stream.write(frame.compress(buffer.getbuffer(), compression_level=level, content_checksum=True, **blocks))


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
        raise FormatError(f"{label} {TOO_LARGE}") from error
    except Exception as error:
        stream.seek(0)
        if stream.read(1) not in STARTS:
            raise FormatError(f"{label} {NOT_TORCH}") from error
        text = str(error).rpartition("WeightsUnpickler error: ")[2].strip() or type(error).__name__
        named, reason = _GLOBAL.search(text), shorten(text.splitlines()[0])
        why = f"calls or refers to {named[1]}" if named else f"cannot be loaded as plain tensors ({reason})"
        raise FormatError(
            f"{label} {why}, and Fledge does not run code in files: if you trust it, load it with the program that saved it, "
            "and save its state_dict() with torch.save."
        ) from error
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
                    raise FormatError(
                        f"{label} decodes text with {argument!r}, which torch.save never does and which can take for ever: "
                        "the file was probably made to hang its reader, so do not load it."
                    )
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
    """Decompress an LZ4 frame; raise FormatError if it does not begin with a zip or a pickle, or expands too far.

    It may expand 256 times at most, and not beyond the size that its header declares.
    """
    limit = MAX_EXPANSION * path.stat().st_size
    content, frame = io.BytesIO(), lz4_frame()
    decompressor = frame.LZ4FrameDecompressor()
    try:
        with open(path, "rb") as packed:
            declared = frame.get_frame_info(packed.read(LZ4_HEADER))["content_size"] or limit  # 0: not declared
            packed.seek(0)
            while not decompressor.eof:
                part = packed.read(LZ4_PART) if decompressor.needs_input else b""
                if decompressor.needs_input and not part:
                    break
                content.write(decompressor.decompress(part, LZ4_OUTPUT))
                if content.tell() and content.getbuffer()[:1].tobytes() not in STARTS:
                    raise FormatError(f"{path} {NOT_TORCH}")
                if max(content.tell(), declared) > limit or content.tell() > declared:
                    raise FormatError(
                        f"{path} expands more than {MAX_EXPANSION} times or beyond the size in its header, which could "
                        "exhaust memory: do not trust it."
                    )
    except MemoryError as error:
        raise FormatError(f"{path} {TOO_LARGE}") from error
    except (RuntimeError, ValueError, EOFError) as error:
        raise FormatError(f"{path} is not a complete LZ4 frame ({error}): it is truncated or damaged.") from error
    if not decompressor.eof:
        raise FormatError(f"{path} is an LZ4 frame without an end: it is truncated.")
    return content.getvalue()


def check_leaves(format: str, leaves: Sequence[Leaf]) -> None:
    """Raise InputError if a leaf is a date or a duration of NumPy, which a `torch.save` file cannot hold."""
    for leaf in leaves if format in ("pt", "lz4") else ():
        if leaf.kind in ("array", "scalar") and np.dtype(leaf.dtype).kind in "mM":
            what = f"is a NumPy {leaf.kind} of dtype {np.dtype(leaf.dtype)}, which a .pt or .lz4 file cannot hold"
            raise entry_error(leaf.path, f"{what}: save x.astype('int64') instead, or use codec='native'.")


def write_pt(stream: BinaryIO, node: Node, leaves: Sequence[Leaf]) -> None:
    """Write a file that `torch.load(weights_only=True)` reads.

    Arrays of numbers become tensors, arrays of strings lists, NumPy scalars Python values, and defaultdicts dicts. A plain
    value that could not be loaded again raises InputError before anything is written.
    """

    def read(number: int) -> Any:  # a tensor that shares the staging memory, with a storage of its own
        leaf = leaves[number]
        assert leaf.data is not None
        return restore(leaf.kind, leaf.dtype, leaf.shape, leaf.data, torch.device("cpu"))

    state = _rebuilt(unflatten(node, read), _torch_value)
    _check_loads(state, ())
    torch.save(state, stream)


def _check_loads(state: Any, path: tuple[Any, ...]) -> None:
    """Raise InputError, with the path of the entry, if a state without its tensors cannot be loaded from a `.pt` file."""
    buffer = io.BytesIO()
    try:
        torch.save(_rebuilt(state, lambda value: None if isinstance(value, torch.Tensor) else value), buffer)
        buffer.seek(0)
        load_pt(buffer, "it", "cpu")
    except FormatError as error:
        inside = state if isinstance(state, dict) else dict(enumerate(state)) if isinstance(state, list | tuple) else {}
        for key, item in inside.items():
            _check_loads(item, (*path, key))
        raise entry_error(path, "could not be loaded again from a .pt or .lz4 file: use codec='native'.") from error


class _EmptyBytes:
    """Pickles as an expression for b"" that `torch.load(weights_only=True)` accepts, unlike pickle's own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return codecs.encode, ("", "latin1")


def _torch_value(value: Any) -> Any:
    """Return the value that a `torch.save` file holds instead of an array, a NumPy scalar or empty bytes."""
    if isinstance(value, np.ndarray):
        native = value.astype(value.dtype.newbyteorder("="), copy=False)  # torch has no other byte order
        return torch.from_numpy(native) if native.dtype.kind in "biufc" else _rebuilt(native.tolist(), _torch_value)
    if isinstance(value, np.generic):
        return _torch_value(value.item())
    return _EmptyBytes() if isinstance(value, bytes) and not value else value


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a state with `change(x)` for every x in it that is not a container."""
    if isinstance(value, dict):
        plain = {key: _rebuilt(item, change) for key, item in value.items()}
        if isinstance(value, OrderedDict | Counter):
            again = type(value)(plain)
            again.__dict__ |= _rebuilt(vars(value), change)  # a module's _metadata
            return again
        return plain
    if isinstance(value, list):
        return [_rebuilt(item, change) for item in value]
    if type(value) is tuple:
        return tuple(_rebuilt(item, change) for item in value)
    return change(value)
