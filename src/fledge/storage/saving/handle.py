"""CheckpointHandle: how far one checkpoint has come."""

from __future__ import annotations

import threading
from pathlib import Path

from fledge.core.errors import StorageError


class CheckpointHandle:
    """One checkpoint on its way: first staged, then durable; or failed, dropped or skipped. As a path it waits.

    Attributes:
        path: The file that it becomes.
        status: "staging", "queued", "writing", "durable", "failed", "dropped" or "skipped".
        error: Why it did not become durable, if so.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.status = "staging"
        self.error: BaseException | None = None
        self._staged = threading.Event()
        self._done = threading.Event()

    @property
    def staged(self) -> bool:
        """Whether the state has been copied, so that the caller may change all of it."""
        return self._staged.is_set()

    @property
    def durable(self) -> bool:
        """Whether the file is complete and survives a power cut."""
        return self.status == "durable"

    @property
    def done(self) -> bool:
        """Whether nothing more will happen: durable, failed, dropped or skipped."""
        return self._done.is_set()

    def wait_staged(self, timeout: float | None = None) -> bool:
        """Wait until the state is staged; False after `timeout` seconds."""
        return self._staged.wait(timeout)

    def wait(self, timeout: float | None = None) -> Path:
        """Wait until the file is durable, and return its path.

        Raises:
            StorageError: It was dropped, skipped, or not done within `timeout` seconds.
            FledgeError, Exception: What made the save fail.
        """
        if not self._done.wait(timeout):
            raise StorageError(f"{self.path} is still {self.status} after {timeout} s: wait longer.")
        if self.error is not None:
            raise self.error
        return self.path

    def set_staged(self) -> None:
        """Mark as staged (the saver's call)."""
        if self.status == "staging":
            self.status = "queued"
        self._staged.set()

    def finish(self, status: str, error: BaseException | None = None) -> None:
        """Mark as done (the saver's call)."""
        self.status, self.error = status, error
        self._staged.set()
        self._done.set()

    def leave_to(self, owner: str) -> None:
        """Mark as out of reach, in a forked child: the work goes on in the other process, and locks may be held for ever."""
        self._staged, self._done = threading.Event(), threading.Event()
        self.finish("failed", StorageError(f"{self.path} is being saved by {owner}: wait for it there."))

    def __fspath__(self) -> str:
        """The file's path, once it is durable: a handle can be given to whatever opens files."""
        return str(self.wait())

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"CheckpointHandle({str(self.path)!r}, {self.status})"
