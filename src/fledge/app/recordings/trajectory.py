"""Read a recording for display: its task, an episode's frames (fewer if there are too many), and printable text.

Recordings may be untrusted: a task is looked up by name and never loaded as code, and frames that do not fit the task
raise a FormatError.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fledge.core.errors import FledgeError, FormatError
from fledge.core.overrides import from_plain, nested
from fledge.storage import Recording
from fledge.storage.recordings.episode import Episode
from fledge.tasks.base import Task
from fledge.tasks.registry import find_named_task
from fledge.tasks.view.trajectory import Trajectory

MAX_FRAMES = 20_000  # frames of an episode that are shown at most
MAX_TEXT = 200  # characters
MAX_FRAME_BYTES = 48 * 2**20  # of an episode's frames, unpacked


@dataclass
class _Settings:
    num_envs: int = 1


class AnyTask(Task):
    """Stands in for a task that is not installed, so that positions, trails and figures of its recordings can be shown."""

    config = _Settings
    primary_metric = "success"


def task_of(recording: Recording, task: Task | None = None) -> Task:
    """Return `task` if given, else the installed task that the recording names, else an `AnyTask`."""
    if task is not None:
        return task
    try:
        return find_named_task(recording.task, str(recording.path))
    except FledgeError:
        return AnyTask(text(recording.task) or "recording")


def env_config_of(recording: Recording, task: Task) -> Any:
    """Return the env settings that a recording was made with; the task's defaults if the recording has no valid settings."""
    settings = recording.facts.get("settings")
    try:
        return from_plain(task.config, nested(settings)) if isinstance(settings, dict) else task.config()
    except (FledgeError, AttributeError, TypeError):  # the latter two: a key is both a value and a group
        return task.config()


@contextmanager
def checked_frames(source: Path, task: Task) -> Iterator[None]:
    """Turn errors of the task's code in the `with` block into a FormatError: the recording's frames do not fit the task."""
    try:
        yield
    except FledgeError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
        raise FormatError(
            f"{source} names the task {task.name}, but its frames do not fit that task "
            f"({type(error).__name__}: {error}). Another version of the task wrote it, or it is damaged: use another file."
        ) from error


def stride_of(recording: Recording, episode: Episode) -> int:
    """Return n such that showing every n-th frame of an episode keeps its payload small; 1 if all frames are shown."""
    frame_bytes = sum(f.nbytes for f in recording.fields.values())
    return max(1, -(-episode.length // MAX_FRAMES), -(-episode.length * frame_bytes // MAX_FRAME_BYTES))


def read_track(recording: Recording, episode: Episode, start: int, stop: int | None = None) -> tuple[Trajectory, int]:
    """Return the frames `start` to `stop` of an episode, and n: only every n-th frame is read (see `stride_of`)."""
    stride = stride_of(recording, episode)
    parts = {name: [np.zeros((0, *f.shape), f.dtype)] for name, f in recording.fields.items()}
    index = [np.zeros(0, np.int64)]
    for numbers, piece in episode.pieces(None, start, stop):
        chosen = np.flatnonzero(numbers % stride == 0)
        for name, value in piece.items():
            parts[name].append(value[chosen])
        index.append(numbers[chosen])
    frames = {name: np.concatenate(some) for name, some in parts.items()}
    facts = {**episode.facts, "seconds_per_frame": recording.seconds_per_frame, "index": np.concatenate(index)}
    return Trajectory(frames, episode.scene, episode.outcome or "running", facts), stride


def text(value: Any) -> str:
    """Return a value as printable text of limited length."""
    return "".join(char if char.isprintable() else "?" for char in str(value)[:MAX_TEXT])


def finite(value: Any) -> float:
    """Return a value as a finite number; 0 if it is not a finite number."""
    try:
        return found if math.isfinite(found := float(value)) else 0.0
    except (TypeError, ValueError, OverflowError):
        return 0.0


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return those facts that are text or finite numbers; only the first 40 facts are considered."""
    kept = {text(key): text(value) if isinstance(value, str) else value for key, value in list(facts.items())[:40]}
    return {k: v for k, v in kept.items() if isinstance(v, str | int) or (isinstance(v, float) and math.isfinite(v))}
