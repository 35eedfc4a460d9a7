"""RunLock: only one training at a time writes to a run's folder. Programs that read a run need no lock.

Rank 0 locks the file `run.lock` in the folder (flock). The system releases the lock when the process ends, also by kill -9.
The file holds the host, the process id and the start time of the process, for the error that a second training gets. On file
systems without locks, this content alone decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

from fledge.core.errors import StorageError
from fledge.storage.disk.durable import lock_file

LOCK_NAME = "run.lock"
WAIT_S = 1.0  # for a process that is just ending, before the folder counts as locked
POLL_S = 0.05
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for a writer
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # the target of a link would be overwritten
_open_locks: set[int] = set()  # file descriptors that this process holds locks with


def _close_in_child() -> None:
    """Close the lock files that a forked child inherits: otherwise it would keep the locks when its parent has ended."""
    for descriptor in _open_locks:
        os.close(descriptor)
    _open_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


class RunLock:
    """The lock of a run's folder, held from construction to `release`. Creates the folder if it is missing.

    Args:
        force: Take over a lock that another process left behind; refused while that process runs on this host.

    Raises:
        StorageError: Another process holds the lock, or the folder cannot be written.
    """

    def __init__(self, folder: Path, force: bool = False) -> None:
        self.name, self.folder = folder, Path(os.path.abspath(folder))  # as given, and independent of the directory
        self.path, self.made_folder = self.folder / LOCK_NAME, not self.folder.exists()
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "start": process_start(os.getpid())}
        self._text = json.dumps({**owner, "since": time.strftime("%Y-%m-%d %H:%M:%S")}).encode()
        self._pid = os.getpid()
        self._descriptor = self._take(force)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _take(self, force: bool = False) -> int:
        """Lock the file, write this process's host and id into it, and return the file's descriptor."""
        give_up = time.monotonic() + WAIT_S
        while True:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | _NO_WAIT | _NO_LINK, 0o666)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and time.monotonic() < give_up:
                    continue  # another process has just removed the folder that it had made
                raise StorageError(
                    f"{self.path} cannot be written ({error.strerror}): choose another folder, or change its permissions."
                ) from error
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise StorageError(f"{self.path} is not a regular file: remove it, or choose another folder.")
            locked, owner = lock_file(descriptor, wait=False), read_owner(descriptor)
            if locked is None:  # no locks on this file system
                locked = not owner or has_ended(owner) is True
            if locked and self._is_file(descriptor):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, self._text, 0)
                _open_locks.add(descriptor)
                return descriptor
            os.close(descriptor)
            if locked or time.monotonic() < give_up:  # locked: the file was removed meanwhile
                time.sleep(POLL_S)
                continue
            if not force or has_ended(owner) is False:
                raise StorageError(busy_text(self.name, owner))
            force = False
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _is_file(self, descriptor: int) -> bool:
        """Return whether a descriptor belongs to the lock file that is in the folder now."""
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path))
        return False

    def check(self) -> None:
        """Raise StorageError if another process has taken the lock; write the lock file again if it was deleted or changed."""
        try:
            here = os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
            if here and os.pread(self._descriptor, 4096, 0) == self._text:
                return
        except FileNotFoundError:
            here = False
        except OSError:  # the network is away for a moment
            return
        if here and (owner := read_owner(self._descriptor)):
            raise StorageError(busy_text(self.name, owner, "This process stops, because "))
        before, self._descriptor = self._descriptor, -1
        _open_locks.discard(before)
        os.close(before)
        self._descriptor = self._take()

    def release(self) -> None:
        """Remove the lock file, and the folder if the lock created it and it is empty; further calls do nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0 or os.getpid() != self._pid:  # a forked child has no lock
            return
        with contextlib.suppress(OSError):
            if self._is_file(descriptor) and os.pread(descriptor, 4096, 0) == self._text:
                self.path.unlink()
        _open_locks.discard(descriptor)
        os.close(descriptor)
        if self.made_folder:
            with contextlib.suppress(OSError):  # it is not empty
                self.folder.rmdir()


def refuse_busy(folder: Path) -> None:
    """Raise StorageError if a process that runs on this host holds the lock of a folder; does not take the lock."""
    with contextlib.suppress(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError):
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | _NO_WAIT)
        try:
            owner = read_owner(descriptor)
        finally:
            os.close(descriptor)
        if owner and has_ended(owner) is False:
            raise StorageError(busy_text(folder, owner))


def read_owner(descriptor: int) -> dict[str, Any]:
    """Return the content of a lock file; {} if it cannot be read.

    The entries are the host and pid of the process that locked it, its "start" (see `process_start`), and "since", the time
    of locking as text.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError):
        owner = json.loads(os.pread(descriptor, 4096, 0))
        if isinstance(owner, dict) and type(owner.get("pid")) is int and isinstance(owner.get("host"), str):
            return owner
    return {}


def has_ended(owner: dict[str, Any]) -> bool | None:
    """Return whether the process that a lock file names has ended; None if this host cannot know."""
    if owner.get("host") != socket.gethostname() or os.name != "posix":
        return None
    try:
        os.kill(owner["pid"], 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # it runs as another user
        pass
    return process_start(owner["pid"]) != owner.get("start")


def process_start(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; "" if it has ended, or where the system does not say."""
    with contextlib.suppress(OSError):
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if facts[0] == "Z" else facts[19]  # Z: killed, but its parent has not noticed
    return ""


def busy_text(folder: Path, owner: dict[str, Any], why: str = "") -> str:
    """Return the error text for a folder that another process has locked; the text begins with `why`."""
    if not owner:
        who = "another process"
    else:
        who = f"process {owner['pid']} on {owner['host']!s:.80} (since {owner.get('since', '?')!s:.40})"
    text = f"{why}{folder} is being trained by {who}"
    if has_ended(owner) is False:
        return f"{text}: wait until it ends, stop it, or choose another folder."
    return (
        f"{text}, or that process has ended without unlocking it: if it has ended, add --force (in Python, force=True)."
    )
