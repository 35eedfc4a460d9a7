"""CheckpointHandle: the progress of one save."""

from __future__ import annotations

import threading
from pathlib import Path

from fledge.core.errors import StorageError


class CheckpointHandle:
    """The progress of one save: staged (the state is copied), then durable; or failed, dropped or skipped.

    A handle can be used as a path: it then waits until the file is durable.

    Attributes:
        path: The file that is written.
        status: "staging", "queued", "writing", "durable", "failed", "dropped" or "skipped".
        error: Why the file did not become durable, or None.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.status = "staging"
        self.error: BaseException | None = None
        self._staged = threading.Event()
        self._done = threading.Event()

    @property
    def staged(self) -> bool:
        """True once the state is copied, so that the caller may change it."""
        return self._staged.is_set()

    @property
    def durable(self) -> bool:
        """True once the file is complete and survives a power cut."""
        return self.status == "durable"

    @property
    def done(self) -> bool:
        """True once the save is durable, failed, dropped or skipped."""
        return self._done.is_set()

    def wait_staged(self, timeout: float | None = None) -> bool:
        """Wait until the state is staged; return False after `timeout` seconds."""
        return self._staged.wait(timeout)

    def wait(self, timeout: float | None = None) -> Path:
        """Wait until the file is durable, and return its path.

        Raises:
            StorageError: The save was dropped, skipped, or not done within `timeout` seconds.
            FledgeError, Exception: The error that made the save fail.
        """
        if not self._done.wait(timeout):
            raise StorageError(f"{self.path} is still {self.status} after {timeout} s: pass a longer timeout.")
        if self.error is not None:
            raise self.error
        return self.path

    def set_staged(self) -> None:
        """Mark the save as staged; called by the saver."""
        if self.status == "staging":
            self.status = "queued"
        self._staged.set()

    def finish(self, status: str, error: BaseException | None = None) -> None:
        """Mark the save as done, with its final status; called by the saver."""
        self.status, self.error = status, error
        self._staged.set()
        self._done.set()

    def leave_to(self, owner: str) -> None:
        """Mark this handle as failed in a forked child; the parent process, described by `owner`, continues the save.

        The handle gets new events, because inherited locks may never be released.
        """
        self._staged, self._done = threading.Event(), threading.Event()
        self.finish("failed", StorageError(f"{self.path} is being saved by {owner}: wait for it there."))

    def __fspath__(self) -> str:
        """Return the path once the file is durable, so that a handle can be passed to anything that opens files."""
        return str(self.wait())

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"CheckpointHandle({str(self.path)!r}, {self.status})"
