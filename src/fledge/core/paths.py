"""Check paths that users pass in, and explain in one sentence why a path cannot be used."""

from __future__ import annotations

import difflib
import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from fledge.core.errors import ConfigError

LISTED = 8  # names that a hint lists
RUN_FILES = ("config.yaml", "run.json", "run.lock")  # a folder with one of them is a run
_FOLDER = "a part of this path is a file", "choose another path"
_PERMISSION = "this user has no permission", "change the permissions, or choose another path"
_FULL = "the disk is full", "free some space, or choose another path"
REASONS = {  # why the system refuses a path, and what to do
    errno.ENAMETOOLONG: ("its name is too long for the file system", "choose a shorter name"),
    errno.ELOOP: ("it is a link that leads back to itself", "replace the link"),
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: ("its file system is read-only", "choose another path"),
    errno.EMFILE: ("this process has too many open files", "close files, or raise the limit with ulimit -n"),
    errno.ENFILE: ("the system has too many open files", "close other programs"),
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: ("it exceeds the allowed size of a file", "raise the limit with ulimit -f, or save less"),
    errno.EISDIR: ("it is a folder, but a file is needed", "choose another path"),
    errno.EEXIST: _FOLDER,  # from mkdir
    errno.ENOTDIR: _FOLDER,
}


def why_refused(error: OSError) -> tuple[str, str]:
    """Return why the operating system refused a path, and what to do, both as parts of a sentence."""
    return REASONS.get(error.errno or 0, (error.strerror or str(error), "choose another path, or check the disk"))


def os_error_message(error: OSError) -> str:
    """Return a sentence that says which path the operating system refused, why, and what to do."""
    reason, fix = why_refused(error)
    return f"{shorten(error.filename or 'The output')} cannot be used: {reason}. {fix[0].upper()}{fix[1:]}."


def shorten(value: object) -> str:
    """Return a value as text; of more than 200 characters, keep only the first and last 60."""
    text = str(value)
    return text if len(text) <= 200 else f"{text[:60]}…{text[-60:]}"


def check_readable(path: Path) -> Path:
    """Return `path` if it is a regular file or a folder; otherwise raise ConfigError with a hint from `path_hint`."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"There is no {shorten(path)}.{path_hint(path)}") from None
    except (OSError, ValueError) as error:
        told = os_error_message(error) if isinstance(error, OSError) else f"{str(path)!r} is not a path: {error}."
        raise ConfigError(told) from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigError(f"{path} cannot be read.{path_hint(path)}")
    return path


def kind_of_path(path: Path) -> str:
    """Return what is at a path, such as "a regular file", "a folder" or "a named pipe"; links are followed."""
    kinds = {stat.S_IFREG: "a regular file", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe"}
    try:
        return {**kinds, stat.S_IFSOCK: "a socket"}.get(stat.S_IFMT(os.stat(path).st_mode), "a device")
    except OSError:
        return "a broken link"


def not_a_file(path: str | os.PathLike[str]) -> str | None:
    """Return what is at a path if it is not a regular file, such as "a named pipe"; None for a file or if nothing is there."""
    kind = kind_of_path(Path(path)) if os.path.exists(path) else "a regular file"
    return None if kind == "a regular file" else kind


def check_output(path: str | os.PathLike[str], endings: Sequence[str] = (), source: Path | None = None) -> Path:
    """Return the path of a file that a command is to write, if it may be written there.

    Args:
        endings: Allowed extensions, such as ".html"; any by default.
        source: File that the command reads, and so must not replace.

    Raises:
        ConfigError: The extension is wrong, or the path is `source` or a file that a run or a checkpoint history needs.
    """
    path = Path(path)
    if endings and path.suffix not in endings:
        known = " or ".join([", ".join(endings[:-1]), endings[-1]]).removeprefix(" or ")
        raise ConfigError(f"{shorten(path)} must end in {known}: choose another name.")
    real = Path(os.path.realpath(path))
    if source is not None and Path(os.path.realpath(source)) == real:
        raise ConfigError(f"{shorten(path)} is the file that is read: choose another name for the output.")
    for place in (Path(os.path.abspath(path)), real):
        if owner := _owner(place):
            raise ConfigError(
                f"{shorten(path)} cannot be written: it belongs to {owner}. Choose another name or folder."
            )
    return path


def _owner(path: Path) -> str:
    """Return "the run FOLDER" or "the checkpoint history in FOLDER" if a file has a name that is reserved there; else ""."""
    folder = path.parent
    for above in path.parents:
        if above.name in ("checkpoints", "selves") and _is_run(above.parent):
            return f"the run {above.parent}"
    if (path.name in RUN_FILES or path.name.startswith("metrics.")) and _is_run(folder):
        return f"the run {folder}"
    if found := re.fullmatch(r"(.+)_\d+\.fledge", path.name):
        pointer = "latest" if found[1] == "checkpoint" else f"latest_{found[1]}"
        return f"the checkpoint history in {folder}" if os.path.isfile(folder / pointer) else ""
    return ""


def _is_run(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in RUN_FILES)


def path_hint(path: Path) -> str:
    """Return a hint for a path that is not a file or folder: what it is instead, a similar name, or the names in its folder.

    Return "" if there is nothing to say.
    """
    if os.path.exists(path):  # False for a name that is too long, where Path.exists raises
        if path.is_file() or path.is_dir():
            return ""
        return f" It is {kind_of_path(path)}, but must be a file or a folder: write its content to a file first."
    if os.path.islink(path):
        return f" It is a link to {os.readlink(path)}, which does not exist."
    folder = path.parent
    try:
        names = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
    except FileNotFoundError:
        return f" There is no folder {folder} either.{path_hint(folder) if folder.parent != folder else ''}"
    except OSError:
        return ""
    where = "The current folder" if str(folder) == "." else str(folder)
    if near := difflib.get_close_matches(path.name, names, n=1, cutoff=0.6):
        return f" Did you mean {folder / near[0]}?"
    more = ", …" if len(names) > LISTED else ""
    return f" {where} has {', '.join(names[:LISTED])}{more}." if names else f" {where} is empty."
