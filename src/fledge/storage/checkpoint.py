"""Save, load and convert one checkpoint, without threads. The file extension decides the format:

.fledge         native: a zip with one compressed, checksummed member per tensor
.pt, .pth       torch.save
.lz4            an LZ4 frame around a torch.save file
.safetensors    safetensors
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fledge.core.errors import ConfigError, FormatError, StorageError
from fledge.storage.disk.durable import durable_file
from fledge.storage.format import codecs, interop
from fledge.storage.format.flattening import flatten
from fledge.storage.format.leaves import DTensorChoice, Leaf, bytes_of
from fledge.storage.format.reader import MANIFEST, CheckpointFile, check_opens
from fledge.storage.format.tree import Node, select, unflatten
from fledge.storage.format.writer import Plans, Written, write_native

logger = logging.getLogger("fledge.storage")
NATIVE = ".fledge"
NUMBERED = re.compile(r"(?P<prefix>.+)_(?P<number>\d{1,18})(\.pt|\.pth|\.fledge)?")
FORMATS = {"native": NATIVE, "lz4": ".lz4", "pt": "", "safetensors": ".safetensors"}  # extension appended to a name
ADDED = (NATIVE, ".lz4", ".safetensors")
EXTENSIONS = {NATIVE: "native", ".lz4": "lz4", ".pt": "pt", ".pth": "pt", ".safetensors": "safetensors"}


def target_path(path: str | os.PathLike[str], format: str) -> Path:
    """Return the file for a checkpoint of a format: `x.pt` becomes `x.pt.fledge` or `x.pt.lz4`; a fitting name stays."""
    if format not in FORMATS:
        raise ConfigError(f"codec is {format!r}, but must be one of {', '.join(FORMATS)}.")
    suffix, text = FORMATS[format], os.fspath(path)
    if isinstance(text, str) and text[-1:] not in ("", ".", os.sep):  # the common case, without slow Path operations
        return Path(text if text.endswith(suffix) else text + suffix)
    path = Path(path)
    return path if path.name.endswith(suffix) else path.with_name(path.name + suffix)


def check_level(format: str, level: int | None) -> None:
    """Raise ConfigError if a format does not have this compression level."""
    if format != "lz4":
        codecs.candidates(level, 0)
    elif level is not None and (type(level) is not int or not 0 <= level <= interop.MAX_LZ4_LEVEL):
        raise ConfigError(f"compression_level is {level!r}, but with codec lz4 must be 0 to {interop.MAX_LZ4_LEVEL}.")


def numbered_name(prefix: str, step: int) -> str:
    """Return the file name of a step in a history; all have equal length, so that names sort."""
    return f"{prefix}_{step:09d}{NATIVE}"


def write_state(
    path: Path,
    format: str,
    node: Node,
    leaves: Sequence[Leaf],
    *,
    level: int | None = None,
    metadata: dict[str, Any] | None = None,
    base: str | os.PathLike[str] | None = None,
    plans: Plans | None = None,
) -> Written:
    """Write staged leaves durably to `path`.

    If `base` turns out to be damaged, write the whole state instead: an old file must not make a save fail.
    """
    if format != "native":
        if base is not None:
            raise ConfigError(f"codec {format!r} cannot store a delta: omit base, or use the native format.")
        with durable_file(path) as stream:
            interop.write(stream, format, node, leaves, level, metadata or {})
            _make_newest(stream, path)
        return Written(sum(leaf.nbytes for leaf in leaves), path.stat().st_size, "", 0)
    checked = None if base is None else _checked_base(base, path)
    try:
        with contextlib.ExitStack() as stack:
            opened = None if checked is None else stack.enter_context(CheckpointFile(checked))
            stream = stack.enter_context(durable_file(path, verify=check_opens))
            written = write_native(stream, node, leaves, level=level, metadata=metadata, base=opened, plans=plans)
            _make_newest(stream, path)
            return written
    except FormatError as error:
        if base is None:
            raise
        logger.warning("%s is saved whole because its base cannot be read: %s", path, error)
        return write_state(path, format, node, leaves, level=level, metadata=metadata, plans=plans)


def _make_newest(stream: BinaryIO, path: Path) -> None:
    """Give a file under construction a later time stamp than other files of the same name: see `find_checkpoint`.

    The clock of the file system ticks every few milliseconds, and may have been set back.
    """
    name = path
    while name.suffix in ADDED:
        name = name.with_suffix("")
    others = [other.stat().st_mtime_ns for other in _spellings(name) if other != path and other.is_file()]
    if others:
        stream.flush()
        newest = max(*others, os.fstat(stream.fileno()).st_mtime_ns - 1) + 1
        os.utime(stream.fileno(), ns=(newest, newest))


def _spellings(path: Path) -> list[Path]:
    """Return the files that a checkpoint saved under this name may have become."""
    return [path, *(path.with_name(path.name + suffix) for suffix in ADDED)]


def _checked_base(base: str | os.PathLike[str], target: Path) -> Path:
    """Return the base of a delta; raise ConfigError if writing `target` would overwrite a file that the delta needs."""
    base = Path(base)
    if base.resolve().parent != target.resolve().parent:
        raise ConfigError(f"base {base} is in another folder than {target}: a delta needs its base in the same one.")
    with CheckpointFile(base) as opened, contextlib.suppress(FormatError):  # write_state handles a damaged chain
        link: CheckpointFile | None = opened
        while link is not None:
            if link.path.resolve() == target.resolve():
                via = "" if link is opened else ", which is a delta to it"
                raise ConfigError(f"base is {base}{via}, but {target} would be written over: choose another name.")
            link = link.base() if link.base_file is not None else None
    return base


def stage_now(state: Any, dtensor: DTensorChoice = None) -> tuple[Node, list[Leaf]]:
    """Return a state's tree and its leaves with their bytes, which share the caller's memory where possible."""
    node, leaves = flatten(state, dtensor)
    for leaf in leaves:
        leaf.data = bytes_of(leaf.source)
    return node, leaves


def save_checkpoint(
    state: Any,
    path: str | os.PathLike[str],
    *,
    codec: str = "native",
    compression_level: int | None = None,
    metadata: dict[str, Any] | None = None,
    base: str | os.PathLike[str] | None = None,
    dtensor: DTensorChoice = None,
) -> Path:
    """Save a state, wait until it is durable, and return the path of the file.

    Args:
        state: Nested dicts, lists and tuples of tensors, arrays, numbers, strings, bytes and None.
        path: Where to save; the extension of the format is appended if the name has another.
        codec: "native", "lz4", "pt" or "safetensors".
        compression_level: 0 (store) to 9 (densest), with codec "lz4" to 16; None chooses by size.
        metadata: Plain values stored beside the state.
        base: An earlier native checkpoint in the same folder; only the difference to it is stored.
        dtensor: How to save a sharded DTensor: "full" (every rank must call), or this rank's "local" part.
    """
    check_level(codec, compression_level)
    target = target_path(path, codec)
    node, leaves = stage_now(state, dtensor)
    write_state(target, codec, node, leaves, level=compression_level, metadata=metadata, base=base)
    return target


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the file that a checkpoint's name stands for: the newest of `path` and `path` + .fledge, .lz4, .safetensors.

    If there is none, `x.pt` stands for `x.fledge`, and `checkpoint_100.pt` for `checkpoint_000000100.fledge` (as a history
    names it) in the same folder or its subfolder `checkpoints/`.
    """
    path = Path(path)
    if not path.name:
        raise StorageError(f"{str(path)!r} is a folder, not a checkpoint: give a file name.")
    numbered = NUMBERED.fullmatch(path.name)
    step = [] if numbered is None else [numbered_name(numbered["prefix"], int(numbered["number"]))]
    for names in (
        _spellings(path),
        [path.with_suffix(NATIVE)],
        [folder / name for name in step for folder in (path.parent, path.parent / "checkpoints")],
    ):
        found = [name for name in names if name.is_file()]
        if len(found) > 1:
            newest = max(found, key=lambda name: name.stat().st_mtime_ns)
            logger.info("%s stands for %s, the newest of %s", path, newest.name, ", ".join(name.name for name in found))
            return newest
        if found:
            return found[0]
    raise StorageError(f"no checkpoint at {path}, nor with {NATIVE}, .lz4 or .safetensors after it: check the name.")


def load_checkpoint(
    path: str | os.PathLike[str],
    device: torch.device | str = "cpu",
    keys: Sequence[str] | None = None,
    mmap: bool = False,
) -> Any:
    """Load and verify the state saved under a name.

    Args:
        path: The name given when saving, or the file itself; the content decides the format.
        device: Where tensors go.
        keys: Paths of the parts to load, such as "model" or "optimizer/state"; only these are read from a native file.
            A path that ends in "?" may be missing.
        mmap: Map a `.pt` file into memory: its tensors are read when they are used. Other formats are compressed, or copied.

    Raises:
        FormatError: The file is truncated, altered, or not a checkpoint.
        StorageError: There is no such file.
        InputError: A path in `keys` is not in the file.
    """
    found = find_checkpoint(path)
    kind = sniff(found)
    if kind == "native":
        with CheckpointFile(found) as opened:
            return opened.state(device, keys)
    state = interop.load(found, kind, device, mmap and kind == "pt")
    if keys is None:
        return state
    node, leaves = flatten(state)
    return unflatten(select(node, keys), lambda number: leaves[number].source)


def sniff(path: Path) -> str:
    """Return the format of a file, judged by its content."""
    with open(path, "rb") as stream:
        head = stream.read(16)
        if head[:4] == interop.LZ4_MAGIC:
            return "lz4"
        if head[:4] == interop.ZIP_MAGIC:
            native = path.suffix == NATIVE
            with contextlib.suppress(Exception):  # truncated: the loader raises
                native = native or MANIFEST in zipfile.ZipFile(stream).NameToInfo
            return "native" if native else "pt"
    if path.suffix == NATIVE or not head:
        raise FormatError(f"{path} does not begin like a checkpoint: it is empty, truncated or of another kind.")
    return "safetensors" if path.suffix == ".safetensors" or head[8:9] == b"{" else "pt"


def convert_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    keys: Sequence[str] | None = None,
    compression_level: int | None = None,
) -> dict[str, Any]:
    """Write a checkpoint in the format of `dst`'s extension; return both sizes, and a note if something is lost.

    Args:
        src: A checkpoint of any format.
        dst: A name ending in `.fledge`, `.pt`, `.lz4` or `.safetensors`.
        keys: Parts to take, such as "model"; all by default.
        compression_level: 0 to 9 for `.fledge`, to 16 for `.lz4`.
    """
    suffix = Path(dst).suffix.lower()
    if suffix not in EXTENSIONS:
        raise ConfigError(f"{dst} ends in {suffix or 'nothing'}, but must end in one of {', '.join(EXTENSIONS)}.")
    format = EXTENSIONS[suffix]
    check_level(format, compression_level)
    found = find_checkpoint(src)
    if Path(dst).exists() and found.samefile(dst):
        raise ConfigError(f"{dst} is both source and target: give the target another name.")
    before = found.stat().st_size
    state = load_checkpoint(found, keys=keys)
    metadata: dict[str, Any] = {}
    if sniff(found) == "native":
        with CheckpointFile(found) as opened:
            metadata = opened.metadata
    node, leaves = stage_now(state)
    write_state(Path(dst), format, node, leaves, level=compression_level, metadata=metadata)
    done = {"source": str(found), "target": str(dst), "source_bytes": before, "target_bytes": Path(dst).stat().st_size}
    if format != "native" and "history" in metadata:  # in .safetensors it is text, which is not read back
        done["note"] = f"Its step and metric are not kept: only {NATIVE} files have them."
    return done
