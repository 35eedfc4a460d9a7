"""Saving and loading one checkpoint: the plain calls, without threads.

Contract
    `save_checkpoint(state, path)` returns when the file is durable. `load_checkpoint(path)` finds what was saved under
    that name in any of the formats, verifies it, and gives the state back. `convert_checkpoint` goes between
    the formats, which follow from the names:

        .fledge         native: a zip with one compressed, checksummed member per tensor
        .pt, .pth       torch.save
        .lz4            an LZ4 frame around a torch.save file (the prior design's)
        .safetensors    safetensors
"""

from __future__ import annotations

import contextlib
import io
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
from fledge.storage.format import codecs
from fledge.storage.format import interop as foreign
from fledge.storage.format.flattening import flatten
from fledge.storage.format.leaves import DTensorChoice, Leaf, bytes_of
from fledge.storage.format.reader import MANIFEST, CheckpointFile, check_opens
from fledge.storage.format.tree import Node, select, unflatten
from fledge.storage.format.writer import Plans, Written, write_native

logger = logging.getLogger("fledge.storage")
NATIVE = ".fledge"
FORMATS = ("native", "lz4", "pt", "safetensors")
NUMBERED = re.compile(r"(?P<prefix>.+)_(?P<number>\d{1,18})(\.pt|\.pth|\.fledge)?")
ADDED = (NATIVE, ".lz4", ".safetensors")  # to the name given, where it does not end so
_SUFFIXES = dict(zip(("native", "lz4", "safetensors", "pt"), (*ADDED, ""), strict=True))


def target_path(path: str | os.PathLike[str], format: str) -> Path:
    """Where a checkpoint of a format goes: `x.pt` becomes `x.pt.fledge` or `x.pt.lz4`; a fitting name stays."""
    if format not in FORMATS:
        raise ConfigError(f"codec is {format!r}, but must be one of {', '.join(FORMATS)}.")
    suffix, text = _SUFFIXES[format], os.fspath(path)
    if isinstance(text, str) and text[-1:] not in ("", ".", os.sep):  # as nearly always, and in a fraction of the time
        return Path(text if text.endswith(suffix) else text + suffix)
    path = Path(path)
    return path if path.name.endswith(suffix) else path.with_name(path.name + suffix)


def check_level(format: str, level: int | None) -> None:
    """ConfigError for a compression level that a format does not have."""
    if format != "lz4":
        codecs.candidates(level, 0)
    elif level is not None and (type(level) is not int or not 0 <= level <= foreign.MAX_LZ4_LEVEL):
        raise ConfigError(
            f"compression_level is {level!r}, but with codec lz4 must lie between 0 and {foreign.MAX_LZ4_LEVEL}."
        )


def format_of(path: str | os.PathLike[str]) -> str:
    """Format that a file's name asks for."""
    suffix = Path(path).suffix.lower()
    formats = {NATIVE: "native", ".lz4": "lz4", ".pt": "pt", ".pth": "pt", ".safetensors": "safetensors"}
    if suffix not in formats:
        raise ConfigError(
            f"{path} ends in {suffix or 'nothing'}, but must end in one of {', '.join(formats)}: rename it."
        )
    return formats[suffix]


def numbered_name(prefix: str, step: int) -> str:
    """The file of a step in a history: of equal length, so that names sort."""
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
    """Write staged leaves durably to `path`, in a format.

    With a `base` that turns out to be damaged, the whole state is written instead: a save must not fail for an old file.
    """
    if format == "native":
        if base is not None:
            base = _checked_base(base, path)
        try:
            return _write_native(path, node, leaves, level, metadata, base, plans)
        except FormatError as error:
            if base is None:
                raise
            logger.warning("%s is saved whole, since its base cannot be read: %s", path, error)
            return _write_native(path, node, leaves, level, metadata, None, plans)
    if base is not None:
        raise ConfigError(f"codec is {format!r}, which cannot be a delta: leave out base, or use the native format.")
    with durable_file(path) as stream:
        _write_foreign(stream, format, node, leaves, level, metadata or {})
        _make_newest(stream, path)
    return Written(sum(leaf.nbytes for leaf in leaves), path.stat().st_size, "", 0)


def _write_native(
    path: Path,
    node: Node,
    leaves: Sequence[Leaf],
    level: int | None,
    metadata: dict[str, Any] | None,
    base: Path | None,
    plans: Plans | None,
) -> Written:
    with contextlib.ExitStack() as stack:
        opened = None if base is None else stack.enter_context(CheckpointFile(base))
        stream = stack.enter_context(durable_file(path, verify=check_opens))
        written = write_native(stream, node, leaves, level=level, metadata=metadata, base=opened, plans=plans)
        _make_newest(stream, path)
        return written


def _make_newest(stream: BinaryIO, path: Path) -> None:
    """Give a file that is being written a later time than others that one name stands for: see `find_checkpoint`.

    The system's clock of files ticks every few milliseconds, and may have been set back.
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
    """Files that a checkpoint saved under this name may be."""
    return [path, *(path.with_name(path.name + suffix) for suffix in ADDED)]


def _checked_base(base: str | os.PathLike[str], target: Path) -> Path:
    """The base of a delta; ConfigError when writing `target` would destroy what the delta needs."""
    base = Path(base)
    if base.resolve().parent != target.resolve().parent:
        raise ConfigError(
            f"base {base} is in another folder than {target}, but a delta needs it beside it: move one of them."
        )
    with CheckpointFile(base) as opened, contextlib.suppress(FormatError):  # a damaged one is left out later
        link: CheckpointFile | None = opened
        while link is not None:
            if link.path.resolve() == target.resolve():
                via = "" if link is opened else ", which is a delta to it"
                raise ConfigError(
                    f"base is {base}{via}, but {target} would be written over: choose another name or base."
                )
            link = link.base() if link.base_file is not None else None
    return base


def _write_foreign(
    stream: BinaryIO, format: str, node: Node, leaves: Sequence[Leaf], level: int | None, metadata: dict[str, Any]
) -> None:
    if format == "lz4":
        foreign.write_lz4(stream, node, leaves, 9 if level is None else level)
    elif format == "pt":
        foreign.write_pt(stream, node, leaves)
    else:
        foreign.write_safetensors(stream, node, leaves, metadata)


def stage_now(state: Any, dtensor: DTensorChoice = None) -> tuple[Node, list[Leaf]]:
    """A state's tree and its leaves with their bytes, sharing the caller's memory where that is possible."""
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
    """Save a state and wait until it is durable; returns the file's path.

    Args:
        state: Nested dicts, lists and tuples of tensors, arrays, numbers, strings, bytes and None.
        path: Where to save; the native suffix is appended if the name has another.
        codec: "native", "lz4", "pt" or "safetensors".
        compression_level: 0 (store) to 9 (densest), with codec "lz4" to 16; None goes by size.
        metadata: Plain values kept beside the state.
        base: An earlier native checkpoint in the same folder, to save the difference to.
        dtensor: What a DTensor in parts is saved as: "full" (every rank must call), or this rank's "local" part.
    """
    check_level(codec, compression_level)
    target = target_path(path, codec)
    node, leaves = stage_now(state, dtensor)
    write_state(target, codec, node, leaves, level=compression_level, metadata=metadata, base=base)
    return target


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """The file that a checkpoint's name stands for: the newest of `path`, `path.fledge`, `path.lz4` and `path.safetensors`.

    Failing these, `x.pt` stands for `x.fledge`, and `checkpoint_100.pt` for `checkpoint_000000100.fledge`, as a history
    names it, beside it or in `checkpoints/` there: a run's folder.
    """
    path = Path(path)
    if not path.name:
        raise StorageError(f"{str(path)!r} names a folder, not a checkpoint: give a file's name.")
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
    path: str | os.PathLike[str], device: torch.device | str = "cpu", keys: Sequence[str] | None = None
) -> Any:
    """The state saved under a name, verified.

    Args:
        path: The name given when saving, or the file itself; native, `.pt`, `.lz4` and `.safetensors` are told apart by
            their content.
        device: Where tensors go.
        keys: Paths of the parts to load, such as "model" or "optimizer/state"; only these are read from a native file.
            With a "?" at its end, a path may be missing.

    Raises:
        FormatError: The file is torn, altered, or not a checkpoint.
        StorageError: There is no such file.
        InputError: `keys` names something that is not in it.
    """
    found = find_checkpoint(path)
    kind = sniff(found)
    if kind == "native":
        with CheckpointFile(found) as opened:
            return opened.state(device, keys)
    state = load_foreign(found, kind, device)
    return state if keys is None else _select_state(state, keys)


def load_foreign(path: Path, kind: str, device: torch.device | str = "cpu") -> Any:
    """State in a file that is not native, of the format that `sniff` says."""
    if kind == "safetensors":
        return foreign.load_safetensors(path, device)
    if kind == "lz4":
        return foreign.load_pt(io.BytesIO(foreign.unpack_lz4(path)), str(path), device)
    with open(path, "rb") as stream:
        return foreign.load_pt(stream, str(path), device)


def _select_state(state: Any, keys: Sequence[str]) -> Any:
    node, leaves = flatten(state)
    return unflatten(select(node, keys), lambda number: leaves[number].source)


def sniff(path: Path) -> str:
    """Format of a file, by its content."""
    with open(path, "rb") as stream:
        head = stream.read(16)
        if head[:4] == foreign.LZ4_MAGIC:
            return "lz4"
        if head[:4] == foreign.ZIP_MAGIC:
            return "native" if path.suffix == NATIVE or _has_manifest(stream) else "pt"
    if path.suffix == NATIVE or not head:
        raise FormatError(f"{path} does not begin like a checkpoint: it is empty, torn or something else.")
    return "safetensors" if path.suffix == ".safetensors" or head[8:9] == b"{" else "pt"


def _has_manifest(stream: BinaryIO) -> bool:
    try:
        return MANIFEST in zipfile.ZipFile(stream).NameToInfo
    except Exception:  # torn: the loader will say so
        return False


def convert_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    keys: Sequence[str] | None = None,
    compression_level: int | None = None,
) -> dict[str, Any]:
    """Write a checkpoint in the format that `dst`'s name asks for; returns both files' sizes, and a note on what is lost.

    Args:
        src: Any format.
        dst: A name ending in `.fledge`, `.pt`, `.lz4` or `.safetensors`.
        keys: Parts to take, such as "model"; all by default.
        compression_level: 0 to 9 for `.fledge`, to 16 for `.lz4`.
    """
    format = format_of(dst)
    check_level(format, compression_level)
    found = find_checkpoint(src)
    if Path(dst).exists() and found.samefile(dst):
        raise ConfigError(f"{dst} is source and target at once: give the target another name.")
    before = found.stat().st_size
    state = load_checkpoint(found, keys=keys)
    metadata: dict[str, Any] = {}
    if sniff(found) == "native":
        with CheckpointFile(found) as opened:
            metadata = opened.metadata
    node, leaves = stage_now(state)
    write_state(Path(dst), format, node, leaves, level=compression_level, metadata=metadata)
    done = {"source": str(found), "target": str(dst), "source_bytes": before, "target_bytes": Path(dst).stat().st_size}
    if format != "native" and "history" in metadata:  # safetensors has it as text in its header, which is not read back
        done["note"] = f"Its step and metric are not kept: only {NATIVE} files have them."
    return done
