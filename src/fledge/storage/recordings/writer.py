"""RecordingWriter: record episodes to a file, off the caller's thread.

    writer = RecordingWriter("fights.frec", "duel", frame, seconds_per_frame=1.0)    frame: an example
    episode = writer.begin(scene)
    writer.add(episode, frame)                           once per frame; or add_many(episode, frames [T, ...])
    writer.end(episode, outcome="win", total_return=1.0)
    writer.close()

Arguments are copied, so buffers may be reused at once. A background thread compresses and writes. When its queue is full,
whole blocks of frames are dropped and counted (or, with `when_full="wait"`, the caller waits); frames keep their numbers, so
that a gap is visible. When the file is full, further frames are dropped and `begin` returns None; `add` and `end` do
nothing if their episode is None. A disk error stops the recording, not the caller: it is logged once, kept in
`stats()["error"]`, and raised by `close`. A forked child records nothing. Calls must come from one thread at a time.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fledge.core.closing import Closing
from fledge.core.errors import ConfigError, InputError, StorageError
from fledge.storage.recordings.appending import AppendedFile
from fledge.storage.recordings.layout import MAX_BLOCK_BYTES, MAX_OUTCOME, describe_fields, to_json
from fledge.storage.recordings.values import as_array, check_episode, freeze, to_header
from fledge.storage.saving import exit_drain

logger = logging.getLogger("fledge.storage")
BLOCK_FRAMES = 256


@dataclass
class _Open:
    """A running episode: the block of frames being filled, and the number of frames so far."""

    block: dict[str, np.ndarray] = field(default_factory=dict)
    filled: int = 0  # frames in the block
    frames: int = 0  # recorded and dropped


class RecordingWriter(Closing):
    """Records episodes of one task into a new file.

    Args:
        path: The file to write; an existing file is replaced.
        task: Name of the task, such as "duel", or where it is defined, such as "module:object" (`Task.reference`).
        frame: An example frame: an array or a number for each name; all frames must have the same dtypes and shapes.
        seconds_per_frame: Simulated time from one frame to the next, s.
        facts: Further information such as policy, seed and settings; plain values.
        max_bytes: Maximum size of the file, in bytes.
        max_episodes: Maximum number of episodes.
        max_frames: Maximum number of frames per episode.
        block_frames: Frames compressed together; smaller blocks reach a live reader sooner, but take more space.
        queue_bytes: Maximum bytes of frames that may wait to be written.
        when_full: If the queue is full, "drop" drops frames, and "wait" makes the caller wait.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        task: str,
        frame: Mapping[str, Any],
        seconds_per_frame: float,
        *,
        facts: Mapping[str, Any] | None = None,
        max_bytes: int = 2**30,
        max_episodes: int = 100_000,
        max_frames: int = 1_000_000,
        block_frames: int = BLOCK_FRAMES,
        queue_bytes: int = 64 * 2**20,
        when_full: Literal["drop", "wait"] = "drop",
    ) -> None:
        for name, value in (("max_bytes", max_bytes), ("max_episodes", max_episodes), ("max_frames", max_frames),
                            ("block_frames", block_frames), ("queue_bytes", queue_bytes)):  # fmt: skip
            if value < 1:
                raise ConfigError(f"{name} is {value}, but must be at least 1.")
        if not 0 < seconds_per_frame < float("inf"):
            raise ConfigError(f"seconds_per_frame is {seconds_per_frame}, but must be finite and above 0.")
        self.fields = {f.name: f for f in describe_fields({k: as_array(k, v) for k, v in frame.items()})}
        self.frame_bytes = sum(f.nbytes for f in self.fields.values())
        header = {
            "task": task,
            "seconds_per_frame": float(seconds_per_frame),
            "fields": [[f.name, f.dtype.str, list(f.shape)] for f in self.fields.values()],
            "facts": to_header(freeze(dict(facts or {}), "facts")),
        }
        self.max_episodes, self.max_frames, self.when_full = max_episodes, max_frames, when_full
        self.block_frames = min(block_frames, max(1, MAX_BLOCK_BYTES // max(self.frame_bytes, 1)))
        self.queue_bytes = queue_bytes
        self.path = Path(path)
        self._file = AppendedFile(self.path, header, list(self.fields.values()), max_bytes)
        self._open: dict[int, _Open] = {}
        self._begun = self._refused = self._lost = self._lost_blocks = 0
        self._jobs: deque[tuple[Callable[[], Any], int]] = deque()
        self._waiting = 0  # bytes of queued jobs and of the one being written
        self._busy = self._closing = False
        self._said: str | None = None
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._work, name="fledge-recording", daemon=True)
        self._thread.start()
        exit_drain.register(self, signals=False)

    def begin(self, scene: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None) -> int | None:
        """Begin an episode; return its number, or None if it is not recorded: file or queue full, or recording stopped.

        Args:
            scene: Parts of the scene that do not move, as plain values and arrays.
            facts: Further information about this episode, such as its number, seed and env; plain values.
        """
        if self._inactive():
            return None
        if self._begun >= self.max_episodes or self._file.full:
            limit = f"{self.max_episodes} episodes" if not self._file.full else f"{self._file.max_bytes:,} bytes"
            self._say(f"{self.path} is full with {limit}: further episodes are not recorded.")
            self._refused += 1
            return None
        held, described = freeze(dict(scene or {}), "scene"), freeze(dict(facts or {}), "facts")
        check_episode(held, described)
        size = sum(value.nbytes for value in held.values() if isinstance(value, np.ndarray))
        episode = self._begun
        if not self._submit(lambda: self._file.begin(episode, held, described), size):
            self._refused += 1
            return None
        self._begun += 1
        self._open[episode] = _Open()
        return episode

    def add(self, episode: int | None, frame: Mapping[str, Any]) -> None:
        """Record one frame of an episode."""
        self.add_many(episode, {name: as_array(name, value)[None] for name, value in frame.items()})

    def add_many(self, episode: int | None, frames: Mapping[str, np.ndarray]) -> None:
        """Record frames [T, ...] of an episode, in order."""
        if episode is None or self._inactive():
            return
        frames = {name: as_array(name, value) for name, value in frames.items()}
        state, count = self._state(episode), self._check(frames)
        start = 0
        while start < count:
            if state.frames >= self.max_frames:
                state.frames += count - start
                return
            if not state.block:
                shapes = {name: (self.block_frames, *f.shape) for name, f in self.fields.items()}
                state.block = {name: np.empty(shape, self.fields[name].dtype) for name, shape in shapes.items()}
            step = min(count - start, self.block_frames - state.filled, self.max_frames - state.frames)
            for name, block in state.block.items():
                block[state.filled : state.filled + step] = frames[name][start : start + step]
            state.filled += step
            state.frames += step
            start += step
            if state.filled == self.block_frames:
                self._hand_over(episode, state)

    def end(self, episode: int | None, outcome: str, total_return: float = 0.0) -> None:
        """End an episode with its outcome (such as "win") and its return."""
        if episode is None or self._inactive():
            return
        state = self._state(episode)
        if not isinstance(outcome, str) or len(outcome) > MAX_OUTCOME:
            got = f"has {len(outcome)} characters" if isinstance(outcome, str) else f"is {outcome!r}"
            raise InputError(f"outcome {got}, but must be a text of at most {MAX_OUTCOME} characters, such as 'win'.")
        to_json(outcome)
        try:
            total = float(total_return)
        except (TypeError, ValueError):
            raise InputError(f"total_return is {str(total_return)[:60]!r}, but must be one number.") from None
        described = {"outcome": outcome, "return": freeze(total, "return"), "frames": state.frames}
        self._hand_over(episode, state)
        del self._open[episode]
        self._submit(lambda: self._file.end(episode, described), None)  # small and rare: always fits

    def flush(self) -> None:
        """Queue all frames so far for writing, without waiting, so that a live reader sees them."""
        for episode, state in self._open.items():
            self._hand_over(episode, state)

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all frames so far are written; return False if that takes longer than `timeout` seconds."""
        if self._inactive():
            return True
        self.flush()
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._busy, timeout)

    def stats(self) -> dict[str, Any]:
        """Return the numbers of recorded and dropped episodes and frames, sizes in bytes, and the error, if any."""
        return {
            **{name: getattr(self._file, name) for name in ("episodes", "frames", "raw_bytes")},
            "file_bytes": self._file.size,
            "refused_episodes": self._refused,
            "dropped_frames": self._lost,
            "dropped_blocks": self._lost_blocks,
            "full": self._said,
            "error": str(self._error) if self._error else None,
        }

    def report(self) -> None:
        """Log the error that stopped the recording, if any; called if the process ends without `close`."""
        if self._error is not None:
            logger.warning("%s is incomplete: %s", self.path, self._error)

    def close(self) -> None:
        """Write the remaining frames and close the file; episodes that still run have no end in it.

        Raises:
            StorageError: A write failed; everything before it is in the file.
        """
        if os.getpid() != self._pid or self._closing:
            return
        self.drain()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        exit_drain.unregister(self)
        if self._error is None:
            counted = ("refused_episodes", "dropped_frames")
            self._attempt(lambda: self._file.close({k: v for k, v in self.stats().items() if k in counted}))
        self._file.release()
        if self._error is not None:
            text = f"a write to {self.path} failed ({self._error}); it plays up to there: check the disk and its free space."
            raise StorageError(text) from self._error

    def _inactive(self) -> bool:
        """Return True if calls are ignored: in a forked child, after an error, or after close."""
        return os.getpid() != self._pid or self._error is not None or self._closing

    def _state(self, episode: int) -> _Open:
        if episode not in self._open:
            raise InputError(f"episode {episode} is not running: use the number from begin(), and only before end().")
        return self._open[episode]

    def _check(self, frames: Mapping[str, np.ndarray]) -> int:
        """Return the number of frames; raise InputError unless their names, dtypes and shapes fit the recording."""
        if frames.keys() != self.fields.keys():
            raise InputError(f"the frame has the entries {sorted(frames)}, but must have {sorted(self.fields)}.")
        for name, value in frames.items():
            known = self.fields[name]
            if (
                not value.ndim
                or value.shape[1:] != known.shape
                or value.dtype.newbyteorder("=") != known.dtype.newbyteorder("=")
            ):
                got = f"{value.dtype} {value.shape[1:]}"
                raise InputError(f"frame entry {name} is {got}, but must be {known.dtype} {known.shape}.")
        counts = {len(value) for value in frames.values()}
        if len(counts) > 1:
            raise InputError(f"frame entries have {sorted(counts)} rows, but all must have the same number.")
        return counts.pop()

    def _hand_over(self, episode: int, state: _Open) -> None:
        """Queue the filled part of an episode's block for writing; drop it if `_submit` returns False."""
        count, first = state.filled, min(state.frames, self.max_frames) - state.filled
        if not count:
            return
        frames = {name: block[:count] for name, block in state.block.items()}
        state.block, state.filled = {}, 0

        def write() -> None:
            if not self._file.add(episode, first, frames):
                self._lose(count)

        if not self._submit(write, count * self.frame_bytes):
            self._lose(count)

    def _lose(self, count: int) -> None:
        with self._changed:
            self._lost += count
            self._lost_blocks += 1

    def _submit(self, job: Callable[[], Any], size: int | None) -> bool:
        """Queue a job of `size` bytes; if the queue is full, wait or return False (`when_full`). Size None always fits."""
        with self._changed:
            if size is not None and self._waiting and self._waiting + size > self.queue_bytes:
                if self.when_full == "drop":
                    return False
                self._changed.wait_for(lambda: not self._waiting or self._waiting + size <= self.queue_bytes)
            self._waiting += size or 0
            self._jobs.append((job, size or 0))
            self._changed.notify_all()
        return True

    def _say(self, sentence: str) -> None:
        if self._said is None:
            self._said = sentence
            logger.warning("%s", sentence)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closing)
                if not self._jobs:
                    return
                job, size = self._jobs.popleft()
                self._busy = True
            if self._error is None:
                self._attempt(job)
            if self._file.full:
                self._say(f"{self.path} is full with {self._file.max_bytes:,} bytes: what follows is not recorded.")
            with self._changed:
                self._busy = False
                self._waiting -= size
                self._changed.notify_all()

    def _attempt(self, job: Callable[[], Any]) -> None:
        try:
            job()
        except Exception as error:
            self._error = error
            logger.warning("%s: recording stopped (%s)", self.path, error)
