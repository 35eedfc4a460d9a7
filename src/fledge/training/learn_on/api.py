"""`fledge.learn_on`: let a policy go on learning from new experience."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config, settings_to_overrides
from fledge.core.settings import check_settings
from fledge.core.terminal import make_console, say
from fledge.training.learn_on.config import LearnOnConfig
from fledge.training.learn_on.folder import NAME, STATE, LearnOnFolder
from fledge.training.loop import stop_on_signals
from fledge.training.run_lock import RunLock
from fledge.training.saved_run import Run


def learn_on(
    run: Any,
    source: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    *,
    task: Any = None,
    progress: bool | None = None,
    **settings: Any,
) -> Run:
    """Let a run's policy go on learning from new experience, and keep what it could do before.

    Accepted policies are checkpoints of a run of its own, RUN/learn_on; the run itself stays as it is. A call on a run that
    has learned on before continues there, from the newest accepted policy.

    Example:
        >>> better = fledge.learn_on("runs/mine", "env:randomize.mass_factor=1.25", candidates=4)
        >>> better.metrics["old"], better.metrics["new"]

    Args:
        run: A run or its folder, or a policy file.
        source: env:KEY=VALUE,... (a simulated world), a folder of rollouts, or listen:HOST:PORT. By default that of the
            last call.
        folder: Folder of the accepted policies. By default RUN/learn_on.
        task: The run's task. Needed only if the task is a class of your own.
        progress: False prints nothing.
        settings: Settings that `fledge learn-on --help-config` lists: candidates=8, tolerance=0.01.

    Returns:
        The run of the accepted policies, whose newest checkpoint is the policy to fly.
    """
    from fledge.training.learn_on.loop import LearnOn  # imported here: `--list` needs no learner

    console = make_console(stderr=True)

    def show(text: str) -> None:
        if progress is not False:
            say(console, text)

    parent = str(getattr(run, "folder", run))
    place = find_folder(parent, folder)
    with RunLock(place):
        found = LearnOnFolder(place)
        if found.exists and os.path.exists(parent) and os.path.samefile(place, parent):
            parent = found.parent
        source = source or found.state.get("source")
        if source is None:
            raise ConfigError(
                "learn-on needs a source of new experience: add --from env:KEY=VALUE, a folder of rollouts, or "
                "listen:HOST:PORT."
            )
        if os.path.isdir(source):
            source = os.path.abspath(source)  # the next call may come from another directory
        cfg = build_config(
            LearnOnConfig, [("the last call", found.state.get("settings", {}))], settings_to_overrides(settings)
        )
        check_settings(cfg)
        learner = LearnOn(parent, found, source, cfg, show, task or getattr(run, "task", None))
        with stop_on_signals(progress is False) as stopped:
            learner.run(stopped, ["fledge", *sys.argv[1:]])
    if (done := found.rows[-1]["candidate"]) >= cfg.candidates and not learner.interrupted:
        show(f"{done} candidates are made: to go on, raise candidates={cfg.candidates}.")
    return Run(found.path, learner.task, interrupted=learner.interrupted)


def find_folder(parent: str, folder: str | os.PathLike[str] | None) -> Path:
    """Return the folder of the accepted policies; raise ConfigError for a policy file without one."""
    path = Path(parent)
    if folder is not None:
        place = Path(folder)
        if (place / "config.yaml").is_file() and not (place / STATE).is_file() and (place / "checkpoints").is_dir():
            raise ConfigError(f"{folder} holds another run: choose another folder.")
        return place
    if (path / STATE).is_file():
        return path
    if not path.exists() and os.sep in parent:
        raise ConfigError(f"There is no {parent}: name a run's folder or a policy.")
    if not path.is_dir():
        raise ConfigError(f"{parent} is not a run's folder: add --folder FOLDER for the policies that it becomes.")
    return path / NAME
