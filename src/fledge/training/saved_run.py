"""Run: a training run's folder, opened for reading."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fledge.core.config_help import written
from fledge.core.errors import ConfigError
from fledge.core.overrides import leaves, read_yaml
from fledge.core.table import Table
from fledge.core.terminal import use_figures
from fledge.evaluation.api import report
from fledge.evaluation.league_tree import read_league, tree_figure
from fledge.evaluation.report import curves_figure, read_curves
from fledge.evaluation.run_info import config_file
from fledge.storage import CheckpointHistory
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import LoadedPolicy, load_policy
from fledge.tasks.registry import find_named_task, find_task

SHOWN = ("env.num_envs", "total_frames", "algo", "seed", "ranks", "device")  # settings that a notebook shows


class Run:
    """A training run: what `fledge.train` returns, or any run's folder.

    Example:
        >>> run = fledge.Run("runs/mine")
        >>> run.metrics["success"]
        >>> run.plot()
        >>> run.policy.act(obs)

    Args:
        folder: The run's folder, as `fledge train` printed it.
        task: The run's task. If the task is your own code, pass it to use the policy or plots: code that only a run's
            files name is not run.

    Attributes:
        folder: The run's folder.
        interrupted: Whether Ctrl-C or SIGTERM ended the training that returned this run; False for a run that was opened.
        final_metrics: Metrics of the last iteration of the training that returned this run.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        task: str | Task | type[Task] | None = None,
        *,
        interrupted: bool = False,
        final_metrics: Mapping[str, float] | None = None,
    ) -> None:
        self.folder = Path(folder)
        if final_metrics is None:
            config_file(self.folder)  # raises if it is not a run; other hosts than rank 0's may not have the folder
        self.interrupted, self.final_metrics = interrupted, dict(final_metrics or {})
        self._task = None if task is None else find_task(task)

    @property
    def task(self) -> Task:
        """The run's task; raises ConfigError if the task is your own code and was not passed to `Run`."""
        if self._task is None:
            self._task = find_named_task(str(self.settings.get("task", "navigation")), asked_by=str(self.folder))
        return self._task

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of the run, nested as in its config.yaml."""
        return read_yaml(self.folder / "config.yaml")

    @property
    def metrics(self) -> Table:
        """Metrics of the training so far, one row for each logged iteration (see docs/reference/metrics.md)."""
        return Table.from_rows(read_curves(self.folder))

    @property
    def policy(self) -> LoadedPolicy:
        """The policy of the newest checkpoint."""
        return load_policy(str(self.folder), self._task)

    @property
    def checkpoints(self) -> list[Path]:
        """Files of the checkpoints that were kept, oldest first."""
        return [entry.path for entry in CheckpointHistory(self.folder / "checkpoints").entries()]

    def plot(self) -> Any:
        """Return the training curves as a matplotlib Figure."""
        rows = read_curves(self.folder)
        if not rows:
            raise ConfigError(f"{self.folder} has no metrics yet: train it for at least one iteration.")
        return use_figures(curves_figure(rows, self.task))

    @property
    def figures(self) -> dict[str, Any]:
        """Matplotlib Figures by name: `curves`, and `league` for a run against a league."""
        rows, league = read_curves(self.folder), read_league(self.folder)
        found = {"curves": self.plot()}
        if league and any("league/elo" in row for row in rows):
            found["league"] = tree_figure(league, rows)
        return found

    def report(self, path: str | os.PathLike[str] | None = None, **options: Any) -> Path:
        """Write a page about the run, as `fledge.report` does with the same options; return its path."""
        return report(self, path, **options)

    def __repr__(self) -> str:
        frames = self.final_metrics.get("frames") or next((row["frames"] for row in read_curves(self.folder)[-1:]), 0)
        return f"Run({str(self.folder)!r}, task={self.settings.get('task')!r}, {int(frames):,} decisions)"

    def _repr_html_(self) -> str:
        rows, settings = read_curves(self.folder), dict(leaves(self.settings))
        facts = {key: written(settings[key]) for key in SHOWN if key in settings}
        last = rows[-1] if rows else {}
        names = ("frames", "seconds", f"{self.task.primary_metric}_recent", "return", "frames_per_second")
        facts |= {
            name: f"{last[name]:,.4g}" if last[name] < 1e4 else f"{last[name]:,.0f}" for name in names if name in last
        }
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>"
            for k, v in facts.items()
        )
        state = " (interrupted; saved)" if self.interrupted else ""
        title = f"Run <code>{html.escape(str(self.folder))}</code>, {html.escape(str(settings.get('task')))}{state}"
        return f"<div><b>{title}</b><table>{cells}</table></div>"
