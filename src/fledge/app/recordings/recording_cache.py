"""Keep recordings and live trainings open on the server, and answer the player's requests from them.

    cache = RecordingCache(files)
    cache.list(id)                                    the list of episodes, JSON-able
    cache.episode(id, 3), cache.beams(id, 3, 0, 128)

Ids come from the `FileIndex`. The id of a run stands for its live episodes (`train.live`): asking for the list makes the
training record them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fledge.app.recordings.episode_payload import frame_graph, list_episodes, pack_beams, pack_episode
from fledge.app.recordings.trajectory import task_of, text
from fledge.app.runs.file_index import Entry, FileIndex
from fledge.app.server.assets import TaskPages
from fledge.core.errors import FledgeError, InputError
from fledge.core.machine import release_freed_memory
from fledge.storage import Recording
from fledge.tasks.base import Task
from fledge.training.live import FOLDER, capture_files, newest_capture, request_frames

MAX_OPEN = 4  # recordings that stay open
QUIET_S = 15.0  # a training without new live frames for this long counts as ended
MAX_BEAM_FRAMES = 512
MAX_PACKING = 3  # episodes that are packed at the same time, as each may take 200 MB meanwhile
GONE = "This recording does not exist any more: go back to the list."


@dataclass
class OpenRecording:
    """An open recording, its task, and the number of requests that are reading it."""

    recording: Recording
    task: Task
    users: int = 0


class RecordingCache:
    """Opens recordings of the file index, and keeps the last few open.

    Args:
        files: Runs and recordings that may be shown.
        task: Task of all recordings; by default the installed task that each recording names.
        task_pages: Page folders of tasks; the folders of the recordings' tasks are added.
    """

    def __init__(self, files: FileIndex, task: Task | None = None, task_pages: TaskPages | None = None) -> None:
        self.files, self.task, self.task_pages = files, task, TaskPages() if task_pages is None else task_pages
        self._open: OrderedDict[tuple[str, int, int], OpenRecording] = OrderedDict()
        self._asked: dict[str, float] = {}  # run -> time of the first request for live frames
        self._lock, self._graph_lock = threading.Lock(), threading.Lock()
        self._packing = threading.Semaphore(MAX_PACKING)
        # loading a task's code takes seconds: start before the first page needs it
        threading.Thread(target=lambda: [self.summary(each) for each in files.recordings()[:1]], daemon=True).start()

    def entry(self, id: str) -> Entry:
        """Return the run or recording with this id; raise InputError if there is none."""
        if (found := self.files.find(id)) is None:
            raise InputError(GONE)
        return found

    def list(self, id: str) -> dict[str, Any]:
        """Return the episodes and facts of a run or recording; for a run, also ask its training to record live frames."""
        entry = self.entry(id)
        path: Path | None = entry.path
        if entry.kind == "run":
            request_frames(entry.path)
            path, now = newest_capture(entry.path), time.monotonic()
            self._asked[id] = now if path is not None else self._asked.get(id, now)
        if path is None:
            quiet = now - self._asked[id] > QUIET_S
            waiting = "This training sends no frames: it has ended." if quiet else "Asking the training for frames…"
            nothing: dict[str, Any] = {"episodes": [], "outcomes": {}, "known_outcomes": [], "facts": {}, "left_out": 0}
            texts = {"headline": "", "task": "", "damage": "", "generation": "", "waiting": waiting, "name": entry.name}
            return {**nothing, **texts, "closed": False}
        generation = path.name if entry.kind == "run" else ""
        with self._reading(path) as (recording, task):
            script = next(iter(self.task_pages.urls(task.name, "graph.js")), None)
            episodes = list_episodes(recording, task)
        return {**episodes, "name": entry.name, "generation": generation, "graph_script": script}

    def summary(self, entry: Entry) -> str:
        """Return one line about a recording for the list of recordings, or the reason why it cannot be read."""
        try:
            with self._reading(entry.path) as (recording, task):
                found, episodes = sorted(recording.outcomes().items(), key=lambda pair: -pair[1]), len(recording)
        except FledgeError as error:
            return self.files.hide_path(str(error), entry.id)
        counts = ", ".join(f"{count} {text(name).replace('_', ' ')}" for name, count in found[:4])
        return f"{text(task.name)}, " + (f"{episodes} episodes: {counts}" if counts else "no episodes")

    def episode(self, id: str, number: int, start: int = 0, with_stage: bool = True, generation: str = "") -> bytes:
        """Return the payload of an episode, from frame `start` on.

        Args:
            with_stage: Include the static shapes of the scene.
            generation: For a run, the name of its live file, which `list` returned as "generation"; by default the newest.
        """
        with self._packing, self._find(id, number, generation) as (recording, task):
            return pack_episode(recording, task, number, max(0, start), with_stage)

    def beams(self, id: str, number: int, start: int, stop: int, generation: str = "") -> bytes:
        """Return the sensor beams of frames `start` to `stop` as `pack_beams` packs them; at most MAX_BEAM_FRAMES frames."""
        start = max(0, start)
        with self._packing, self._find(id, number, generation) as (recording, task):
            return pack_beams(recording, task, number, start, min(stop, start + MAX_BEAM_FRAMES))

    def graph(self, id: str, number: int, frame: int, generation: str = "") -> dict[str, Any]:
        """Return {"graph": the task's graph of a frame}; the value is None if the frame has no graph."""
        # graphs share buffers
        with self._graph_lock, self._find(id, number, generation) as (recording, task):
            return {"graph": frame_graph(recording, task, number, max(0, frame))}

    def close(self) -> None:
        with self._lock:
            for each in self._open.values():
                release(each.recording)
            self._open.clear()

    @contextmanager
    def _find(self, id: str, number: int, generation: str) -> Iterator[tuple[Recording, Task]]:
        """Yield the recording with this id and its task; it stays open until the `with` block ends.

        Raises:
            InputError: There is no such recording, or it has no episode of this number.
        """
        entry = self.entry(id)
        path: Path | None = entry.path
        if entry.kind == "run":
            known = {path.name: path for path in capture_files(entry.path / FOLDER)}
            path = known.get(generation) if generation else newest_capture(entry.path)
        if path is None:
            raise InputError("These live frames of the training were already deleted: reload the page.")
        with self._reading(path) as (recording, task):
            if not 0 <= number < len(recording):
                count = f"this recording has {len(recording)} episodes, counted from 0"
                raise InputError(f"There is no episode {number}: {count}.")
            yield recording, task

    @contextmanager
    def _reading(self, path: Path) -> Iterator[tuple[Recording, Task]]:
        """Yield a recording, with all frames written so far, and its task; it stays open until the `with` block ends."""
        try:
            stat = path.stat()
        except OSError as error:
            raise InputError(GONE) from error
        key = (str(path), stat.st_dev, stat.st_ino)
        with self._lock:
            if key not in self._open:
                recording = Recording(path)
                task = task_of(recording, self.task)
                if task.view.page is not None:
                    self.task_pages[task.name] = task.view.page
                self._open[key] = OpenRecording(recording, task)
            self._open.move_to_end(key)
            used = self._open[key]
            used.users += 1
            gone = [other for other in self._open if other != key and not Path(other[0]).exists()]
            while gone or len(self._open) > MAX_OPEN:
                left = self._open.pop(gone.pop() if gone else next(iter(self._open)))
                if not left.users:
                    release(left.recording)
        try:
            used.recording.refresh()
            yield used.recording, used.task
        finally:
            with self._lock:
                used.users -= 1
                if not used.users and self._open.get(key) is not used:
                    release(used.recording)


def release(recording: Recording) -> None:
    """Close a recording and release its memory to the operating system."""
    recording.close()
    recording.forget()
    release_freed_memory()
