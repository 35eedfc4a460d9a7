"""RunStore: complete checkpoints of a run at a URL, for any store that fsspec knows (s3://, gs://, file://, memory://, ...).

    URL/objects/SHA256                   one file of the run, named by its checksum
    URL/index/SEQUENCE-STEP-TOKEN.json   one checkpoint: its step, and the name, size and checksum of each of its files

`publish` writes the objects, reads each of them back, and only then writes the index entry, which has a checksum of its own.
No object is ever changed, so a reader sees a checkpoint whole or not at all, also on stores without atomic writes. Older
checkpoints are removed only after that. What a killed or failed upload leaves is not in any entry, and does no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from fledge.core.errors import ConfigError, FledgeError, FormatError, StorageError, harmless
from fledge.storage.disk.durable import durable_file

T = TypeVar("T")
logger = logging.getLogger("fledge.storage")
PART = 2**22  # bytes that are read or written at a time
MOST_INDEX = 2**24  # bytes of an index entry
TRIES, WAIT_S = 3, 1.0  # of each read before it counts as failed
FILES = re.compile(r"(?:(?:checkpoints|selves)/)?[\w-][\w.-]*")  # names of files, relative to the run's folder
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class PublishedFile:
    """One file of a published checkpoint."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Published:
    """One complete checkpoint in a store: its index entry's name, place in the order of publishing, step and files."""

    name: str
    sequence: int
    step: int
    files: Mapping[str, PublishedFile]


class StoreFault(Exception):
    """A fault of the store, its `__cause__`."""


def is_url(text: object) -> bool:
    """Return whether a text is a URL, such as s3://bucket/run, and not a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*(::[A-Za-z0-9+.-]+)*://", str(text)) is not None


class RunStore:
    """The checkpoints of one run at a URL.

    Args:
        url: Folder in the store, which belongs to this run.

    Raises:
        ConfigError: fsspec does not know the URL's scheme, or the package for it is not installed.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs  # loads slowly

        self.url = url.rstrip("/")
        try:
            if not is_url(url):
                raise ValueError("there is no scheme")
            self.fs, root = url_to_fs(self.url, skip_instance_cache=True, use_listings_cache=False)
        except ImportError as error:
            raise ConfigError(
                f"{url} needs a package that is not installed ({error}): install it beside Fledge."
            ) from None
        except ValueError as error:
            raise ConfigError(
                f"{url} is not a URL that fsspec knows ({error}): use file:///folder, s3://bucket/folder, gs://bucket/folder "
                "or another of its schemes."
            ) from None
        self.root = str(root).rstrip("/")
        self.progress: Callable[[], None] = lambda: None  # called after each step that succeeded

    # ---- writing -----------------------------------------------------------------------------------------------

    def publish(self, step: int, files: Mapping[str, BinaryIO], keep: int) -> Published:
        """Write a checkpoint and verify it, then make it the newest; then remove all but the newest `keep`.

        Args:
            files: Open files by their names in the run's folder, each at its start.
        """
        described = {name: self._put(file) for name, file in files.items()}
        before = self.entries()
        sequence = 1 + max((entry.sequence for entry in before), default=0)
        body = {"step": step, "sequence": sequence, "files": {name: vars(file) for name, file in described.items()}}
        text = json.dumps({"body": body, "sha256": digest_of(body)}).encode()
        entry = Published(f"{sequence:09d}-{step:09d}-{secrets.token_hex(4)}.json", sequence, step, described)
        self._write(f"index/{entry.name}", io.BytesIO(text))
        if self._read(f"index/{entry.name}", MOST_INDEX) != text:
            raise StorageError(f"{self.url}: the index entry of step {step} was read back with other content.")
        with contextlib.suppress(Exception):  # the next checkpoint tries again
            self._remove(before, entry, keep)
        return entry

    def _put(self, file: BinaryIO) -> PublishedFile:
        """Write a file under its checksum and read it back, unless the store has it already."""
        found = checksum(iter(lambda: file.read(PART), b""))
        name = f"objects/{found.sha256}"
        if not self._has(name, found):
            file.seek(0)
            self._write(name, file)
            if not self._has(name, found):
                raise StorageError(f"{self.url}/{name} was read back with other content.")
        return found

    def _has(self, name: str, file: PublishedFile) -> bool:
        """Return whether the store has an object with the content of a file; reads it."""
        try:
            return checksum(self._parts(name)) == file
        except FileNotFoundError:
            return False

    def _write(self, name: str, file: BinaryIO) -> None:
        from fsspec.asyn import AsyncFileSystem

        path = f"{self.root}/{name}"
        if not isinstance(self.fs, AsyncFileSystem):  # stores of objects have no folders
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self.fs.open(path, "wb") as out:
            while part := file.read(PART):
                out.write(part)
                self.progress()
        self.progress()

    def _remove(self, before: list[Published], newest: Published, keep: int) -> None:
        """Remove older entries, then the objects that only they had."""
        everything = sorted([*before, newest], key=order)
        old, kept = everything[: max(0, len(everything) - keep)], everything[max(0, len(everything) - keep) :]
        needed = {file.sha256 for entry in kept for file in entry.files.values()}
        for entry in old:
            self.fs.rm_file(f"{self.root}/index/{entry.name}")
        for digest in {file.sha256 for entry in old for file in entry.files.values()} - needed:
            self.fs.rm_file(f"{self.root}/objects/{digest}")

    # ---- reading -----------------------------------------------------------------------------------------------

    def entries(self) -> list[Published]:
        """Return the index entries that are whole, in the order in which they were published."""
        self.fs.invalidate_cache()
        try:
            names = [str(path).rpartition("/")[2] for path in self.fs.ls(f"{self.root}/index", detail=False)]
        except FileNotFoundError:
            return []
        self.progress()
        found = []
        for name in names:
            with contextlib.suppress(FormatError, FileNotFoundError):  # half written, or just removed
                found.append(self._entry(name))
        return sorted(found, key=order)

    def _entry(self, name: str) -> Published:
        try:
            whole = json.loads(self._read(f"index/{name}", MOST_INDEX))
            body, files = whole["body"], {}
            if whole["sha256"] != digest_of(body):
                raise ValueError("wrong checksum")
            for file, found in body["files"].items():
                if not FILES.fullmatch(file) or not _HASH.fullmatch(found["sha256"]) or ".." in file:
                    raise ValueError(f"a file named {file!r}")
                files[file] = PublishedFile(found["sha256"], int(found["bytes"]))
            return Published(name, int(body["sequence"]), int(body["step"]), files)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError(f"{self.url}/index/{name} is not an index entry ({harmless(str(error))}).") from None

    def _parts(self, name: str) -> Iterator[bytes]:
        with self.fs.open(f"{self.root}/{name}", "rb") as file:
            while part := file.read(PART):
                self.progress()
                yield part

    def _read(self, name: str, most: int) -> bytes:
        found = b""
        for part in self._parts(name):
            found += part
            if len(found) > most:
                raise FormatError(f"{self.url}/{name} has more than {most} bytes.")
        return found

    def newest(self) -> Published | None:
        """Return the newest entry; None if nothing was published.

        Raises:
            StorageError: The store does not answer.
        """
        return next(iter(self._tried(self.entries)[::-1]), None)

    def download(self, folder: Path, after: int = -1) -> int | None:
        """Write the newest checkpoint with undamaged files to a run's folder; return its step.

        The file config.yaml, which makes the folder a run, is written last.

        Args:
            after: Return None if no checkpoint has a later step.

        Raises:
            StorageError: The store does not answer, or every checkpoint is damaged.
        """
        reasons = []
        for entry in self._tried(self.entries)[::-1]:
            if entry.step <= after:
                break
            try:
                for name in sorted(entry.files, key=lambda name: (name == "config.yaml", name)):
                    self._tried(lambda name=name, entry=entry: self._fetch(folder / name, entry.files[name]))  # type: ignore[misc]
                return entry.step
            except FormatError as error:
                reasons.append(f"step {entry.step}: {error}")
                logger.warning("%s: step %d cannot be used: %s", self.url, entry.step, harmless(str(error)))
        if reasons and after < 0:
            raise StorageError(f"{self.url} has no undamaged checkpoint: {' '.join(reasons[:3])}")
        return None

    def _fetch(self, path: Path, file: PublishedFile) -> None:
        name, digest, size = f"objects/{file.sha256}", hashlib.sha256(), 0
        with durable_file(path) as out:
            parts = self._parts(name)
            while part := fetch_next(parts):
                digest.update(part)
                size += len(part)
                if size > file.bytes:
                    break
                out.write(part)
            if PublishedFile(digest.hexdigest(), size) != file:
                raise FormatError(f"{self.url}/{name} has other content than its index entry says.")

    def _tried(self, work: Callable[[], T]) -> T:
        """Call `work` up to TRIES times; raise a StorageError that names the URL if the store does not answer."""
        for left in reversed(range(TRIES)):
            try:
                return work()
            except FledgeError:
                raise
            except Exception as error:
                cause = error.__cause__ if isinstance(error, StoreFault) else error
                if isinstance(cause, FileNotFoundError):
                    raise FormatError(
                        f"{self.url} lacks an object of an index entry ({harmless(str(cause))})."
                    ) from error
                if not left:
                    raise StorageError(
                        f"{self.url} cannot be read ({type(cause).__name__}: {harmless(str(cause))[:300]}): check the "
                        "address, the network and your permissions."
                    ) from error
                time.sleep(WAIT_S * (TRIES - left))
        raise AssertionError


def fetch_next(parts: Iterator[bytes]) -> bytes:
    """Return the next part of an object, b"" at its end; raise StoreFault, which is no OSError of a local file."""
    try:
        return next(parts, b"")
    except Exception as error:
        raise StoreFault from error


def order(entry: Published) -> tuple[int, int, str]:
    """Return what entries are sorted by: the order of publishing."""
    return entry.sequence, entry.step, entry.name


def checksum(parts: Iterator[bytes]) -> PublishedFile:
    """Return the SHA-256 and the size of bytes that come in parts."""
    digest, size = hashlib.sha256(), 0
    for part in parts:
        digest.update(part)
        size += len(part)
    return PublishedFile(digest.hexdigest(), size)


def digest_of(body: Any) -> str:
    """Return the SHA-256 of plain values, written as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
