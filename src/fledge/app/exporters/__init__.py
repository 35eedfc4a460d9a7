"""Export recordings to files for other programs: ACMI, MCAP, HTML, JSON, pictures and animations.

The extension of the target chooses the format. To add a format, add a module NAME with a function `export_NAME(recording,
task, target, episode)`, and its extensions to `FORMATS`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError

FORMATS = {".acmi": "acmi", ".mcap": "mcap", ".html": "html", ".json": "json"}
FORMATS |= dict.fromkeys((".png", ".svg", ".pdf", ".jpg"), "picture") | dict.fromkeys((".webp", ".gif"), "animation")
ANY_TASK = ("mcap", "html", "json", "animation")  # formats that show positions of a task whose code is not installed


def export_recording(source: Path, target: Path, episode: int | None = None, task: str | None = None) -> dict[str, Any]:
    """Write a recording in the format of the target's extension, and return key figures, such as the number of episodes.

    Args:
        episode: Number of an episode, counted from 0. By default, .html holds as many episodes as its size limit allows,
            a picture or animation shows episodes that have ended, and the other formats hold the first episode.
        task: Reference of the task (file.py:Class or module:Class), needed if the task is a class of your own.

    Raises:
        ConfigError: The extension is unknown, or there is no episode to export.
        FormatError: The frames do not fit the task.
    """
    from fledge.app.recordings.trajectory import task_of
    from fledge.storage import Recording
    from fledge.tasks.registry import find_named_task, find_task

    with Recording(source) as recording:
        name = FORMATS.get(target.suffix)
        if name is None:
            raise ConfigError(f"{target.name} has no known format: its name must end in one of {', '.join(FORMATS)}.")
        if not len(recording):
            raise ConfigError(
                f"{source} holds no episodes yet, so there is nothing to export. Try again when an episode has been recorded."
            )
        find = task_of if name in ANY_TASK else lambda recording: find_named_task(recording.task, str(source))
        export = getattr(import_module(f"{__name__}.{name}"), f"export_{name}")
        figures = export(recording, find_task(task) if task else find(recording), target, episode)
        told = {"source": str(source), "target": str(target), "episodes": len(recording)}
        return {**told, **figures, "bytes": target.stat().st_size}
