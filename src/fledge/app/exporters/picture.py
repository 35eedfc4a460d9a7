"""Export recorded episodes as a picture, drawn by their task with Matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fledge.app.recordings.trajectory import checked_frames
from fledge.core.errors import ConfigError
from fledge.storage import Recording
from fledge.tasks.base import Task
from fledge.tasks.view.trajectory import Trajectory


def export_picture(recording: Recording, task: Task, target: Path, episode: int | None = None) -> dict[str, Any]:
    """Draw one episode, or all that have ended, and return the number of episodes drawn."""
    numbers = [e.number for e in recording if e.outcome and e.recorded] if episode is None else [episode]
    tracks = [Trajectory(**recording.track(number)) for number in numbers]
    if not tracks:
        raise ConfigError(
            f"No episode of {recording.path} has ended yet, so there is nothing to draw. Choose one with --episode."
        )
    with checked_frames(recording.path, task):
        figure = task.view.draw(tracks, recording.path.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    return {"drawn": len(tracks)}
