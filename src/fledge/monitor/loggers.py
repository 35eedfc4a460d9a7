"""Where metrics go: console, CSV and JSON lines, TensorBoard, Weights & Biases. Each takes (step, {name: value})."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Logger(Protocol):
    """Something that keeps metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class FileLogger:
    """`metrics.csv` and `metrics.jsonl`, one row per call, complete up to the last row at any moment.

    After a resume, rows past the step it resumed from are dropped, so a step appears once.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        self.csv_path, self.json_path = folder / "metrics.csv", folder / "metrics.jsonl"
        rows: list[dict[str, Any]] = []
        if resume_step is not None and self.json_path.exists():
            for line in self.json_path.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # a torn last line
                    row = json.loads(line)
                    if row["step"] <= resume_step:
                        rows.append(row)
        self._json = self.json_path.open("w")
        self._csv = self.csv_path.open("w", newline="")
        self._columns: list[str] = []
        self._rows: list[dict[str, Any]] = []
        for row in rows:
            self._write(row)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._write({"step": step, **metrics})

    def _write(self, row: Mapping[str, Any]) -> None:
        new = [name for name in row if name not in self._columns]
        self._json.write(json.dumps(row) + "\n")
        self._rows.append(dict(row))
        if new:  # a metric seen for the first time (an evaluation): the table gets a column
            self._columns += new
            self._csv.seek(0)
            self._csv.truncate()
            csv.writer(self._csv).writerow(self._columns)
        for line in self._rows if new else [row]:
            csv.writer(self._csv).writerow([line.get(c, "") for c in self._columns])
        self._csv.flush()
        self._json.flush()

    def close(self) -> None:
        self._csv.close()
        self._json.close()


class TensorBoardLogger:
    """TensorBoard event files in `folder`/tensorboard."""

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=resume_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbLogger:
    """Weights & Biases; offline unless there is a key, which it never asks for."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def open_wandb(folder: Path, mode: str, project: str, config: Mapping[str, Any]) -> tuple[WandbLogger | None, str]:
    """Return a W&B logger and what to tell the user. Without the package there is none: training goes on."""
    try:
        import wandb
    except ImportError:
        return (
            None,
            f"wandb.mode={mode}, but wandb is not installed (pip install 'fledge[wandb]'): going on without it.",
        )
    note = ""
    if mode == "online" and not wandb.api.api_key:
        mode, note = "offline", "There is no W&B key on this machine: logging offline, `wandb sync` uploads it later."
    return WandbLogger(wandb.init(project=project, dir=str(folder), mode=mode, config=dict(config))), note


class ConsoleLogger:
    """Live progress: a bar on a terminal, a line every few seconds elsewhere."""

    def __init__(
        self, total_steps: int, start: int = 0, seconds_between_lines: float = 10.0, headline: str = "success"
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.total, self.start, self.headline = total_steps, start, headline
        self._every = seconds_between_lines
        self._begun = time.monotonic()
        self._said = self._begun
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]learning"),
                BarColumn(),
                TextColumn("{task.percentage:3.0f}%  {task.fields[figures]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task("train", total=total_steps, completed=start, figures="")
            self._bar.start()

    def resume(self, step: int, total_steps: int) -> None:
        """Go on at a step."""
        self.start, self.total = step, total_steps
        if self._bar is not None:
            self._bar.update(self._task, total=total_steps, completed=step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        figures = f"{metrics['frames_per_second']:,.0f} decisions/s  "
        figures += f"{self.headline} {metrics[f'{self.headline}_recent']:.3f}"
        figures += "" if self.headline == "return" else f"  return {metrics['return']:+.1f}"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, figures=figures)
            return
        now = time.monotonic()
        if now - self._said >= self._every or step >= self.total:
            self._said = now
            left = (now - self._begun) / max(step - self.start, 1) * (self.total - step)
            print(f"iteration {step}/{self.total}  {figures}  {_clock(left)} left", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a line without disturbing the bar."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
