"""`fledge.train`: train a policy from Python."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError
from fledge.core.overrides import settings_to_overrides
from fledge.storage.remote.run_store import is_url
from fledge.tasks.base import Task
from fledge.tasks.registry import find_task
from fledge.training.command import run_training
from fledge.training.saved_run import Run

_BUSY = threading.Lock()  # one training at a time in a process


def train(
    task: str | Task | type[Task] = "navigation",
    preset: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool | str = False,
    *,
    force: bool = False,
    progress: bool | None = None,
    on_start: Callable[[Path], None] | None = None,
    **settings: Any,
) -> Run:
    """Train a policy and return its run; the same as the command `fledge train`.

    The first Ctrl-C (in a notebook: "interrupt") saves and returns the run, with `run.interrupted` set; a second one
    raises KeyboardInterrupt. If the setting `ranks` asks for several processes, the calling process starts the others:
    scripts need no `if __name__ == "__main__"`.

    Example:
        >>> run = fledge.train("navigation", total_frames=1_000_000, env={"num_envs": 256}, ppo={"lr": 3e-4})
        >>> run.metrics["success"][-1]
        >>> fledge.evaluate([run, "straight"])

    Args:
        task: A name (navigation, aircombat), `gym:ID`, a Python file (`hover.py` or `hover.py:Hover`), `module:object`, or
            a Task class or object. To resume a run, pass its task only if the task is your own code.
        preset: Training preset of the task, or a YAML file. By default the algorithm's preset.
        folder: Folder of the run. By default runs/<time>.
        resume: Continue the run in `folder` exactly where it stopped; `settings` apply from there on. "auto" continues the
            run if the folder holds one, and starts a new run otherwise; use it in jobs that a scheduler restarts. A URL
            such as "s3://bucket/run" downloads the run that was saved there (`checkpoint_url`) into `folder`, and
            continues it.
        force: Train even if a process that has ended, for example on another host, left the folder locked.
        progress: False prints nothing. By default progress is printed, also in notebooks and log files.
        on_start: Called with the run's folder when training starts.
        settings: Any setting of `fledge train --help-config`: total_frames=10_000_000, nested (env={"num_envs": 64}) or
            dotted (**{"env.num_envs": 64}). Other projects' names for settings work as well.

    Returns:
        The run: its folder, settings, metrics, policy and plots.

    Raises:
        ConfigError: The task, the preset or a setting does not exist, or a value does not fit.
    """
    if resume not in (True, False, "auto") and not is_url(resume):
        raise ConfigError(
            f'resume is {resume!r}, but must be True, False, "auto" or a URL; name the run\'s folder with folder=.'
        )
    if resume and folder is None and not is_url(resume):
        raise ConfigError(
            f"resume={resume} needs the folder of the run: fledge.train(folder=FOLDER, resume={resume!r})."
        )
    place = None if folder is None else Path(folder)
    chosen = None if resume and task == "navigation" else find_task(task)
    if not _BUSY.acquire(blocking=False):
        raise ConfigError(
            "fledge.train was called while another training runs in this process: call it again when that one has ended. "
            'If a task\'s file calls fledge.train itself, put that call below `if __name__ == "__main__":`.'
        )
    try:
        result = run_training(
            chosen,
            None if preset is None else os.fspath(preset),
            settings_to_overrides(settings),
            place,
            resume,
            on_start,
            quiet=progress is False,
            force=force,
        )
    finally:
        _BUSY.release()
    return Run(result.folder, result.task, interrupted=result.interrupted, final_metrics=result.metrics)
