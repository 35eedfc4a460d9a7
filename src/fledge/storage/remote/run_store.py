"""RunStore: complete checkpoints of a run at a URL, for any store that fsspec knows (s3://, gs://, file://, memory://, ...).

    URL/objects/SHA256                   one file of the run, named by its checksum
    URL/index/SEQUENCE-STEP-TOKEN.json   one checkpoint: its step, the text of config.yaml, and the name, size and checksum of
                                         each of its files

`publish` writes the objects, reads each of them back, and only then writes the index entry, which has a checksum of its own.
No object is ever changed, so a reader sees a checkpoint whole or not at all, also on stores without atomic writes. Older
checkpoints are removed only after that. What a killed or failed upload leaves is not in any entry, and does no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeVar

from fledge.core.errors import ConfigError, FledgeError, FormatError, StorageError, harmless
from fledge.storage.disk.durable import durable_file, make_folder, sync_folder
from fledge.storage.remote.index_entry import (
    CONFIG,
    WEIGHTS,
    Published,
    PublishedFile,
    checksum,
    entry_text,
    order,
    read_entry,
)

T = TypeVar("T")
logger = logging.getLogger("fledge.storage")
PART = 2**22  # bytes that are read or written at a time
MOST_INDEX = 2**24  # bytes of an index entry
TRIES, WAIT_S = 3, 1.0  # of each read before it counts as failed


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
        ConfigError: fsspec does not know the URL's scheme, the package for it is not installed, or a path is relative.
        StorageError: The store does not answer.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs  # loads slowly

        self.url = url.rstrip("/")
        try:
            if not is_url(url):
                raise ValueError("there is no scheme")
            if re.search(r"(?:^|::)(?:file|local)://(?!/|[A-Za-z]:)", url):
                raise ConfigError(f"{url} names no absolute path: use file:///folder, with three slashes.")
            self.fs, root = url_to_fs(self.url, skip_instance_cache=True, use_listings_cache=False)
        except ConfigError:
            raise
        except ImportError as error:
            raise ConfigError(
                f"{url} needs a package that is not installed ({error}): install it beside Fledge."
            ) from None
        except ValueError as error:
            raise ConfigError(
                f"{url} is not a URL that fsspec knows ({error}): use file:///folder, s3://bucket/folder, gs://bucket/folder "
                "or another of its schemes."
            ) from None
        except Exception as error:  # some stores connect here
            raise self._fault(error, "reached") from error
        self.root = str(root).rstrip("/")
        self.progress: Callable[[], None] = lambda: None  # called after each step that succeeded

    # ---- writing -----------------------------------------------------------------------------------------------

    def publish(self, step: int, files: Mapping[str, BinaryIO], keep: int) -> Published:
        """Write a checkpoint and verify it, then make it the newest; then remove all but the newest `keep`.

        Args:
            files: Open files by their names in the run's folder, each at its start; config.yaml is one of them.
        """
        described = {name: self._put(file) for name, file in files.items()}
        before = self.entries()
        sequence = 1 + max((entry.sequence for entry in before), default=0)
        files[CONFIG].seek(0)
        config = files[CONFIG].read().decode()
        entry = Published(f"{sequence:09d}-{step:09d}-{secrets.token_hex(4)}.json", sequence, step, described, config)
        text = entry_text(entry)
        self._write(f"index/{entry.name}", io.BytesIO(text))
        if self._read(f"index/{entry.name}", MOST_INDEX) != text:
            raise StorageError(f"{self.url}: the index entry of step {step} was read back with other content.")
        with contextlib.suppress(Exception):  # the next checkpoint tries again
            self._remove(before, entry, keep)
        return entry

    def check_writable(self) -> None:
        """Write a small object and remove it.

        Raises:
            StorageError: The store does not answer, or refuses the object.
        """
        self._tried(lambda: self._write("write-test", io.BytesIO(b"test")), "written")
        with contextlib.suppress(Exception):
            self.fs.rm_file(f"{self.root}/write-test")

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
        for name in (name for name in names if name.endswith(".json")):
            with contextlib.suppress(
                FormatError, FileNotFoundError, IsADirectoryError
            ):  # half written, or just removed
                found.append(self._entry(name))
        return sorted(found, key=order)

    def _entry(self, name: str) -> Published:
        try:
            return read_entry(name, self._read(f"index/{name}", MOST_INDEX))
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

        If there is none, write the newest whose config and weights are undamaged, without its damaged logs. A checkpoint that
        cannot be used changes nothing in the folder.

        Args:
            after: Return None if no checkpoint has a later step.

        Raises:
            StorageError: The store does not answer, or every checkpoint is damaged.
        """
        reasons: list[str] = []
        found = [entry for entry in self._tried(self.entries)[::-1] if entry.step > after]
        is_new = bool(found) and not folder.exists()
        try:
            for entry, needs_all in [*((entry, True) for entry in found), *((entry, False) for entry in found)]:
                try:
                    self._download(entry, folder, needs_all)
                    return entry.step
                except FormatError as error:
                    text = f"step {entry.step}: {error}"
                    if text not in reasons:
                        reasons.append(text)
                        logger.warning("%s: step %d is damaged: %s", self.url, entry.step, harmless(str(error)))
        except OSError as error:
            if isinstance(error, FledgeError):
                raise
            raise StorageError(f"{folder} cannot be written ({error.strerror}): choose another folder.") from error
        finally:
            if is_new:
                with contextlib.suppress(OSError):  # it is not empty
                    folder.rmdir()
        if reasons and after < 0:
            raise StorageError(f"{self.url} has no undamaged checkpoint: {' '.join(reasons[:3])}")
        return None

    def _download(self, entry: Published, folder: Path, needs_all: bool) -> None:
        """Fetch all files of an entry, then move them to the run's folder."""
        make_folder(folder)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder, ignore_cleanup_errors=True) as temporary:
            fetched = []
            for name, file in sorted(
                entry.files.items(), key=lambda item: item[0].endswith(WEIGHTS)
            ):  # these are large
                path = Path(temporary, name)
                try:
                    if name == CONFIG and entry.config is not None:
                        with durable_file(path) as out:
                            out.write(entry.config.encode())
                    else:
                        self._tried(lambda path=path, file=file: self._fetch(path, file))  # type: ignore[misc]
                    fetched.append(name)
                except FormatError as error:
                    if needs_all or name == CONFIG or name.endswith(WEIGHTS):
                        raise
                    logger.warning(
                        "%s: step %d is used without its %s: %s", self.url, entry.step, name, harmless(str(error))
                    )
            # The newest checkpoint comes after its logs, so that a kill never leaves it without them; config.yaml,
            # which makes the folder a run, is the last.
            for name in sorted(fetched, key=lambda name: (name == CONFIG, name.startswith("checkpoints/"), name)):
                make_folder((folder / name).parent)
                os.replace(Path(temporary, name), folder / name)
                sync_folder((folder / name).parent)

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

    def _tried(self, work: Callable[[], T], verb: str = "read") -> T:
        """Call `work` up to TRIES times; raise a StorageError that names the URL if the store does not answer."""
        for left in reversed(range(TRIES)):
            try:
                return work()
            except FledgeError:
                raise
            except Exception as error:
                cause = error.__cause__ if isinstance(error, StoreFault) else error
                if isinstance(cause, FileNotFoundError) and verb == "read":
                    raise FormatError(
                        f"{self.url} lacks an object of an index entry ({harmless(str(cause))})."
                    ) from error
                if not left:
                    raise self._fault(cause, verb) from error
                time.sleep(WAIT_S * (TRIES - left))
        raise AssertionError

    def _fault(self, cause: BaseException | None, verb: str) -> StorageError:
        return StorageError(
            f"{self.url} cannot be {verb} ({type(cause).__name__}: {harmless(str(cause))[:300]}): check the address, the "
            "network and your permissions."
        )


def fetch_next(parts: Iterator[bytes]) -> bytes:
    """Return the next part of an object, b"" at its end; raise StoreFault, which is no OSError of a local file."""
    try:
        return next(parts, b"")
    except Exception as error:
        raise StoreFault from error
