"""Asynchronous compressed checkpoints, their history, rollout archives, and recordings of episodes.

Names are imported on first use, so that importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fledge.core.lazy import lazy_names

if TYPE_CHECKING:
    from fledge.storage.checkpoint import convert_checkpoint, find_checkpoint, load_checkpoint, save_checkpoint
    from fledge.storage.contents import inspect_checkpoint
    from fledge.storage.doctor import examine_folder, repair_folder
    from fledge.storage.history.history import CheckpointHistory
    from fledge.storage.history.retention import HistoryEntry
    from fledge.storage.recordings.reader import Recording, is_recording
    from fledge.storage.recordings.writer import RecordingWriter
    from fledge.storage.rollouts import RolloutStorage
    from fledge.storage.saving.handle import CheckpointHandle
    from fledge.storage.saving.saver import AsyncCheckpointSaver
    from fledge.storage.stream import receive, send

__all__ = [
    "AsyncCheckpointSaver",
    "CheckpointHandle",
    "CheckpointHistory",
    "HistoryEntry",
    "Recording",
    "RecordingWriter",
    "RolloutStorage",
    "convert_checkpoint",
    "examine_folder",
    "find_checkpoint",
    "inspect_checkpoint",
    "is_recording",
    "load_checkpoint",
    "receive",
    "repair_folder",
    "save_checkpoint",
    "send",
]

_NAMES = {
    "checkpoint": ("convert_checkpoint", "find_checkpoint", "load_checkpoint", "save_checkpoint"),
    "contents": ("inspect_checkpoint",),
    "doctor": ("examine_folder", "repair_folder"),
    "history.history": ("CheckpointHistory",),
    "history.retention": ("HistoryEntry",),
    "recordings.reader": ("Recording", "is_recording"),
    "recordings.writer": ("RecordingWriter",),
    "rollouts": ("RolloutStorage",),
    "saving.handle": ("CheckpointHandle",),
    "saving.saver": ("AsyncCheckpointSaver",),
    "stream": ("receive", "send"),
}

__getattr__, __dir__ = lazy_names(__name__, {name: home for home, names in _NAMES.items() for name in names})
