"""Recordings and live trainings that are open on the server: what the routes of the player answer from.

    library = Library(shelf)
    library.list(id)                    the list of episodes, JSON-able
    library.film(id, 3), library.beams(id, 3, 0, 128)

An id is the shelf's. That of a run means what its training shows now (`train.live`): asking for the list tells the training
that somebody watches.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

from fledge.app.episode_packer import text
from fledge.app.episode_payload import list_films, make_beams, make_film, make_graph, task_of
from fledge.app.runs.file_index import Entry, FileIndex
from fledge.core.allocator import give_back
from fledge.core.errors import FledgeError, InputError
from fledge.storage import Recording
from fledge.tasks.base import Task
from fledge.train.live import FOLDER, capture_files, newest_capture, request_frames

OPEN = 4  # recordings that stay open
QUIET_S = 15.0  # without an answer for so long, a training is said to be silent
READ_S = 30.0  # for which somebody may still read a recording that is not wanted any more
MAX_BEAM_FRAMES = 512


class Library:
    """Opens what the shelf has, and keeps the last few open."""

    def __init__(self, shelf: FileIndex, task: Task | None = None) -> None:
        self.shelf, self.task = shelf, task
        self._open: OrderedDict[tuple[str, int, int], tuple[Recording, Task]] = OrderedDict()
        self._leaving: deque[tuple[float, Recording]] = deque()  # since when it is not wanted any more
        self._asked: dict[str, float] = {}  # since when a run's frames are asked for
        self._lock, self._graphs = threading.Lock(), threading.Lock()
        # a world's code takes seconds to load: not when the first page waits for it
        threading.Thread(target=self._warm_up, daemon=True).start()

    def _warm_up(self) -> None:
        with contextlib.suppress(FledgeError):
            for entry in self.shelf.recordings()[:1]:
                self._recording(entry.path)

    def entry(self, id: str) -> Entry:
        """InputError where there is none of this id."""
        found = self.shelf.find(id)
        if found is None:
            raise InputError("There is no such recording here any more: go back to the list.")
        return found

    def list(self, id: str) -> dict[str, Any]:
        """The episodes, how they ended, and what else to know."""
        entry = self.entry(id)
        if entry.kind == "run":
            return self._list_live(entry)
        recording, task = self._recording(entry.path)
        return {**list_films(recording, task), "name": entry.name, "generation": ""}

    def brief(self, entry: Entry) -> str:
        """A recording in a few words, for a list; what is wrong with it, where it cannot be read."""
        try:
            recording, task = self._recording(entry.path)
        except FledgeError as error:
            return self.shelf.hide_place(str(error), entry.id)
        found = sorted(recording.outcomes().items(), key=lambda pair: -pair[1])
        counts = ", ".join(f"{count} {text(name).replace('_', ' ')}" for name, count in found[:4])
        return (
            f"{text(task.name)}, {len(recording)} episodes: {counts}" if counts else f"{text(task.name)}, no episodes"
        )

    def film(self, id: str, number: int, start: int = 0, with_stage: bool = True, of: str = "") -> bytes:
        """One episode from frame `start` on, packed; `of` is the list's "generation"."""
        recording, task = self._recording(self._path(id, of))
        check_number(recording, number)
        return make_film(recording, task, number, max(0, start), with_stage)

    def beams(self, id: str, number: int, start: int, stop: int, of: str = "") -> bytes:
        """What the sensor saw in some frames, packed."""
        recording, task = self._recording(self._path(id, of))
        check_number(recording, number)
        start = max(0, start)
        return make_beams(recording, task, number, start, min(stop, start + MAX_BEAM_FRAMES))

    def graph(self, id: str, number: int, frame: int, of: str = "") -> dict[str, Any]:
        """What a moment means, where the task says so."""
        recording, task = self._recording(self._path(id, of))
        check_number(recording, number)
        with self._graphs:  # one at a time: they are made with buffers that are kept
            return {"graph": make_graph(recording, task, number, max(0, frame))}

    def close(self) -> None:
        with self._lock:
            for recording in [each for each, _ in self._open.values()] + [each for _, each in self._leaving]:
                let_go(recording)
            self._open.clear()
            self._leaving.clear()

    def _path(self, id: str, of: str = "") -> Path:
        """The file of an entry; of a training the one that is called `of`, by default the newest."""
        entry = self.entry(id)
        if entry.kind != "run":
            return entry.path
        known = {path.name: path for path in capture_files(entry.path / FOLDER)}
        found = known.get(of) if of else newest_capture(entry.path)
        if found is None:
            raise InputError("This part of the training is not kept any more.")
        return found

    def _list_live(self, entry: Entry) -> dict[str, Any]:
        request_frames(entry.path)
        since = self._asked.setdefault(entry.id, time.monotonic())
        path = newest_capture(entry.path)
        if path is None:
            quiet = time.monotonic() - since > QUIET_S
            waiting = "This training is silent: it has ended, or is stopped." if quiet else "Asking the training…"
            nothing: dict[str, Any] = {"episodes": [], "outcomes": {}, "known_outcomes": [], "facts": {}, "left_out": 0}
            words = {"headline": "", "task": "", "damage": "", "generation": "", "waiting": waiting, "name": entry.name}
            return {**nothing, **words, "closed": False}
        self._asked[entry.id] = time.monotonic()
        recording, task = self._recording(path)
        return {**list_films(recording, task), "name": entry.name, "generation": path.name}

    def _recording(self, path: Path) -> tuple[Recording, Task]:
        """An open recording with all that has been written to it."""
        try:
            stat = path.stat()
        except OSError as error:
            raise InputError("This recording is not there any more: go back to the list.") from error
        key = (str(path), stat.st_dev, stat.st_ino)
        with self._lock:
            if key not in self._open:
                recording = Recording(path)
                self._open[key] = (recording, task_of(recording, self.task))
            self._open.move_to_end(key)
            gone = [
                other for other in self._open if other != key and not Path(other[0]).exists()
            ]  # a training's old ones
            now = time.monotonic()
            while gone or len(self._open) > OPEN:
                self._leaving.append((now, self._open.pop(gone.pop() if gone else next(iter(self._open)))[0]))
            while self._leaving and now - self._leaving[0][0] > READ_S:
                let_go(self._leaving.popleft()[1])
            recording, task = self._open[key]
        recording.refresh()
        return recording, task


def let_go(recording: Recording) -> None:
    recording.close()
    recording.forget()
    give_back()


def check_number(recording: Recording, number: int) -> None:
    if not 0 <= number < len(recording):
        raise InputError(f"There is no episode {number}: this recording has {len(recording)}, counted from 0.")
