"""Save, load and convert one checkpoint, without threads. Formats by file extension:

.fledge         native: a zip with one compressed, checksummed member per tensor
.pt, .pth       torch.save
.lz4            an LZ4 frame around a torch.save file
.safetensors    safetensors
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fledge.core.errors import ConfigError, FormatError, InputError, StorageError, harmless
from fledge.core.paths import os_error_message, path_hint
from fledge.storage.disk.durable import durable_file
from fledge.storage.format import codecs, interop
from fledge.storage.format.flattening import flatten
from fledge.storage.format.leaves import DTensorChoice, Leaf, bytes_of
from fledge.storage.format.reader import MANIFEST, CheckpointFile, check_opens
from fledge.storage.format.safetensors_file import read_metadata
from fledge.storage.format.tree import Node, select, unflatten
from fledge.storage.format.writer import Plans, Written, write_native

logger = logging.getLogger("fledge.storage")
NATIVE = ".fledge"
NUMBERED = re.compile(r"(?P<prefix>.+)_(?P<number>\d{1,18})(\.pt|\.pth|\.fledge)?")
FORMATS = {"native": NATIVE, "lz4": ".lz4", "pt": "", "safetensors": ".safetensors"}  # extension appended to a name
ADDED = (NATIVE, ".lz4", ".safetensors")
EXTENSIONS = {NATIVE: "native", ".lz4": "lz4", ".pt": "pt", ".pth": "pt", ".safetensors": "safetensors"}


def target_path(path: str | os.PathLike[str], format: str) -> Path:
    """Return `path` with the extension of a format appended (`x.pt` becomes `x.pt.fledge`), unless `path` has it."""
    if format not in FORMATS:
        raise ConfigError(f"codec is {format!r}, but must be one of {', '.join(FORMATS)}.")
    suffix, text = FORMATS[format], os.fspath(path)
    if "\0" in str(text):
        raise InputError(f"the file name {text!r} holds a NUL character, which no file system allows: remove it.")
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
    """Return the file name of a step's checkpoint in a `CheckpointHistory`; leading zeros make names sort by step."""
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
    """Write a state durably to `path`: its tree `node`, and its leaves, whose `data` must be set.

    With `base`, store only the difference to this earlier checkpoint. If the base opens, but tensors in it turn out to be
    damaged, store the whole state instead: an old file must not make a save fail.
    """
    if format != "native":
        if base is not None:
            raise ConfigError(f"codec {format!r} cannot store a difference to base: omit base, or use codec='native'.")
        interop.check_leaves(format, leaves)
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
        logger.warning("%s is saved whole because its base cannot be read: %s", harmless(str(path)), error)
        return write_state(path, format, node, leaves, level=level, metadata=metadata, plans=plans)


def _make_newest(stream: BinaryIO, path: Path) -> None:
    """Give the file that is being written a later time stamp than files of the same name with other extensions.

    `find_checkpoint` takes the newest of these. Without this, time stamps could be equal or in the wrong order: the clock
    of a file system ticks every few milliseconds only, and may have been set back.
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
    """Return the paths that a checkpoint saved as `path` may have: `path` with and without an appended extension."""
    return [path, *(path.with_name(path.name + suffix) for suffix in ADDED)]


def _checked_base(base: str | os.PathLike[str], target: Path) -> Path:
    """Return `base` as a Path, if `target` may be stored as a difference to it.

    Raises:
        ConfigError: The base is in another folder, or `target` would overwrite the base or a file that the base needs.
    """
    base = Path(base)
    if base.resolve().parent != target.resolve().parent:
        raise ConfigError(f"base {base} is in another folder than {target}: choose a base in the same folder.")
    with CheckpointFile(base) as opened, contextlib.suppress(FormatError):  # write_state handles a damaged chain
        link: CheckpointFile | None = opened
        while link is not None:
            if link.path.resolve() == target.resolve():
                lost = "the base itself" if link is opened else f"a file that base {base} needs"
                raise ConfigError(f"{target} would overwrite {lost}: save under another name.")
            link = link.base() if link.base_file is not None else None
    return base


def stage_now(state: Any, dtensor: DTensorChoice = None) -> tuple[Node, list[Leaf]]:
    """Return a state's tree, and its leaves with their bytes in `data`: views of the caller's memory where possible."""
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
        path: Where to save; the format's extension is appended unless the name ends in it.
        codec: "native", "lz4", "pt" or "safetensors".
        compression_level: 0 (no compression) to 9 (smallest file), with codec "lz4" up to 16; None chooses a level.
        metadata: Plain values (no tensors or arrays) to store beside the state.
        base: An earlier native checkpoint in the same folder; only the difference to it is stored.
        dtensor: How to save a DTensor that is sharded over ranks: "full" saves the whole tensor (every rank must call),
            "local" only this rank's part; None raises an InputError.
    """
    check_level(codec, compression_level)
    target = target_path(path, codec)
    node, leaves = stage_now(state, dtensor)
    write_state(target, codec, node, leaves, level=compression_level, metadata=metadata, base=base)
    return target


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the checkpoint file to load: the newest of `path` and `path` with .fledge, .lz4 or .safetensors appended.

    If none of these exists, look for `x.fledge` instead of `x.pt`; then for `checkpoint_000000100.fledge` (a file name of
    `CheckpointHistory`) instead of `checkpoint_100.pt`, in the same folder and in its subfolder `checkpoints/`.
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
        found = [name for name in names if _is_file(name)]
        if len(found) > 1:
            newest = max(found, key=lambda name: name.stat().st_mtime_ns)
            names_found = ", ".join(name.name for name in found)
            logger.info(harmless(f"{path} stands for {newest.name}, the newest of {names_found}"))
            return newest
        if found:
            return found[0]
    raise StorageError(
        f"There is no checkpoint at {path}, nor at this name with {NATIVE}, .lz4 or .safetensors appended.{path_hint(path)}"
    )


def _is_file(path: Path) -> bool:
    """Return True if `path` is a file; return False if its name is too long for the file system."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise StorageError(os_error_message(error)) from error


def load_checkpoint(
    path: str | os.PathLike[str],
    device: torch.device | str = "cpu",
    keys: Sequence[str] | None = None,
    mmap: bool = False,
) -> Any:
    """Load and verify a saved state.

    Args:
        path: The name given when saving, or the file itself; the file's content decides the format.
        device: Where tensors go.
        keys: Paths of the parts to load, such as "model" or "optimizer/state"; only these are read from a native file.
            A path that ends in "?" may be missing.
        mmap: Map a `.pt` file into memory: its tensors are read when they are used, so the file must stay unchanged (if
            it is truncated, the system ends the process). No effect on other formats, whose tensors are always copies.

    Raises:
        FormatError: The file is truncated, altered, or not a checkpoint.
        StorageError: There is no such file, or it cannot be opened.
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
    """Return the format of a file, one of the keys of `FORMATS`, judged by its content and extension."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(16)
            if head[:4] == interop.LZ4_MAGIC:
                return "lz4"
            if head[:4] == interop.ZIP_MAGIC:
                native = path.suffix == NATIVE
                with contextlib.suppress(Exception):  # truncated: the loader raises
                    native = native or MANIFEST in zipfile.ZipFile(stream).NameToInfo
                return "native" if native else "pt"
    except OSError as error:
        raise StorageError(os_error_message(error)) from error
    if not head:
        raise FormatError(f"{path} is empty (0 bytes): load another checkpoint.")
    if path.suffix == NATIVE:
        raise FormatError(f"{path} does not begin like a checkpoint (a zip file): it is damaged or of another kind.")
    return "safetensors" if path.suffix == ".safetensors" or head[8:9] == b"{" else "pt"


def convert_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    keys: Sequence[str] | None = None,
    compression_level: int | None = None,
) -> dict[str, Any]:
    """Convert a checkpoint to the format of `dst`'s extension.

    Return a dict with `source` and `target` (paths), `source_bytes` and `target_bytes`. If the step and the metric of a
    history's checkpoint are lost, the dict also has a `note` that says so.

    Args:
        src: A checkpoint of any format.
        dst: A name ending in `.fledge`, `.pt`, `.lz4` or `.safetensors`.
        keys: Parts to take, such as "model"; all by default.
        compression_level: 0 to 9 for `.fledge`, 0 to 16 for `.lz4`; None chooses a level.
    """
    suffix = Path(dst).suffix.lower()
    if suffix not in EXTENSIONS:
        got = f"ends in {suffix}" if suffix else "has no extension"
        raise ConfigError(f"{dst} {got}, but must end in one of {', '.join(EXTENSIONS)}.")
    format = EXTENSIONS[suffix]
    check_level(format, compression_level)
    found = find_checkpoint(src)
    if Path(dst).exists() and found.samefile(dst):
        raise ConfigError(f"{dst} is both source and target: give the target another name.")
    before = found.stat().st_size
    state = load_checkpoint(found, keys=keys)
    metadata = metadata_of(found)
    node, leaves = stage_now(state)
    write_state(Path(dst), format, node, leaves, level=compression_level, metadata=metadata)
    done = {"source": str(found), "target": str(dst), "source_bytes": before, "target_bytes": Path(dst).stat().st_size}
    if format in ("pt", "lz4") and "history" in metadata:
        done["note"] = f"Its step and metric are not kept: only {NATIVE} and .safetensors files have them."
    return done


def metadata_of(path: Path) -> dict[str, Any]:
    """Return the metadata of a checkpoint file; a `.pt` or `.lz4` file has none."""
    kind = sniff(path)
    if kind == "native":
        with CheckpointFile(path) as opened:
            return opened.metadata
    return read_metadata(path) if kind == "safetensors" else {}
