"""Uploader: publish a run's newest checkpoint to a `RunStore` in the background.

A fault of the store never stops the training: it is logged, counted and tried again, later each time. If checkpoints come
faster than they can be uploaded, only the newest is. `finish` raises if the last checkpoint never got through.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

from fledge.core.errors import FledgeError, StorageError, harmless
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.history.retention import WEIGHTS_ONLY
from fledge.storage.remote.run_store import RunStore
from fledge.storage.saving.handle import CheckpointHandle

logger = logging.getLogger("fledge.storage")
FIRST_WAIT_S, LAST_WAIT_S = 1.0, 30.0  # between two tries: doubles from the first to the last
HURRY_S = 2.0  # at most between two tries once `finish` waits
PATIENCE_S = 60.0  # `finish` waits this long for a store that does not answer
BESIDE = ("run.json", "metrics.jsonl", "auto.jsonl", "config.yaml")  # files of a run that go with each checkpoint


class Uploader:
    """Publishes checkpoints from a background thread, which starts with the first one.

    Args:
        store: Where to.
        folder: The run's folder.
        keep: Number of newest checkpoints that the store keeps.
    """

    def __init__(self, store: RunStore, folder: Path, keep: int) -> None:
        self.store, self.folder, self.keep = store, folder, keep
        self.uploads = self.failures = 0
        self.last_error = ""
        self._published_at: float | None = None
        self._waiting: tuple[int, CheckpointHandle | Path] | None = None  # step and file
        self._busy = self._closed = self._failing = self._hurry = False
        self._changed = threading.Condition()
        self._answered = time.monotonic()  # when the store last did what it was told
        store.progress = self._note_progress
        self._thread: threading.Thread | None = None

    def _note_progress(self) -> None:
        self._answered = time.monotonic()

    def submit(self, step: int, file: CheckpointHandle | Path) -> None:
        """Upload a checkpoint as soon as it is durable, instead of an older one that still waits."""
        with self._changed:
            self._waiting = (step, file)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fledge-upload", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        wait = FIRST_WAIT_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closed)
                if self._waiting is None:
                    return
                (step, file), self._waiting, self._busy = self._waiting, None, True
            done = self._try(step, file)
            with self._changed:
                self._busy = False
                if not done and self._waiting is None:  # else a newer one has come
                    self._waiting = (step, file)
                self._changed.notify_all()
                if done:
                    wait = FIRST_WAIT_S
                elif not self._closed:
                    self._changed.wait(min(wait, HURRY_S) if self._hurry else wait)  # less if a newer one comes
                    wait = min(2 * wait, LAST_WAIT_S)
                else:
                    self._waiting = None

    def _try(self, step: int, file: CheckpointHandle | Path) -> bool:
        """Publish one checkpoint; return False if it is to be tried again."""
        try:
            path = file.wait() if isinstance(file, CheckpointHandle) else file
        except FledgeError:  # was not saved here either, which the saver reports
            return True
        try:
            with contextlib.ExitStack() as opened:
                files = self._open(path, opened)
                if files is None:  # older checkpoints were reduced meanwhile: a newer one is coming
                    return True
                self.store.publish(step, files, self.keep)
        except Exception as error:
            self.failures += 1
            self.last_error = f"{type(error).__name__}: {harmless(str(error))[:300]}"
            if not self._failing:
                text = (
                    "%s: the checkpoint of iteration %d was not uploaded (%s); training goes on, and it is tried again."
                )
                logger.warning(text, self.store.url, step, self.last_error)
            self._failing = True
            return False
        self.uploads, self._published_at = self.uploads + 1, time.monotonic()
        if self._failing:
            logger.warning("%s: uploads work again; the checkpoint of iteration %d is there.", self.store.url, step)
        self._failing = False
        return True

    def _open(self, path: Path, opened: contextlib.ExitStack) -> dict[str, BinaryIO] | None:
        """Open a checkpoint with the files that it needs; None if it was reduced to its weights or removed."""
        files: dict[str, BinaryIO] = {}
        while True:
            try:
                files[f"checkpoints/{path.name}"] = opened.enter_context(path.open("rb"))
                with CheckpointFile(path) as found:
                    note: Any = found.metadata.get("history") or {}
                    base = found.base_file
            except (OSError, FledgeError):
                return None
            if note.get(WEIGHTS_ONLY):
                return None
            if base is None:
                break
            path = path.with_name(base)
        for name in [*BESIDE, *(f"selves/{found.name}" for found in sorted(self.folder.glob("selves/*.fledge")))]:
            with contextlib.suppress(FileNotFoundError):
                files[name] = io.BytesIO((self.folder / name).read_bytes())
        return files

    def get_stats(self) -> dict[str, float]:
        """Return the number of uploads and of failed tries, and the seconds since the newest upload if there is one."""
        stats = {"uploads": float(self.uploads), "upload_failures": float(self.failures)}
        return stats | ({} if self._published_at is None else {"upload_age_s": time.monotonic() - self._published_at})

    def finish(self) -> None:
        """Wait until the newest checkpoint is uploaded, and end the thread; further calls do nothing.

        Raises:
            StorageError: It was not uploaded, and the store did nothing for PATIENCE_S.
        """
        with self._changed:
            if self._closed:
                return
            self._answered, self._hurry = time.monotonic(), True
            self._changed.notify_all()
            while (self._waiting or self._busy) and time.monotonic() - self._answered < PATIENCE_S:
                self._changed.wait(0.1)
            missed, self._closed, self._waiting = self._waiting or self._busy, True, None
            self._changed.notify_all()
        if missed:
            raise StorageError(
                f"The newest checkpoint is in {self.folder}, but not in {self.store.url} "
                f"({self.last_error or 'the store does not answer'}): resume the run when the store works; that uploads it."
            )
