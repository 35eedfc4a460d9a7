"""Loggers of metrics, called as log(step, {name: value}): console, CSV and JSON lines, TensorBoard, Weights & Biases."""

from __future__ import annotations

import csv
import enum
import errno
import io
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fledge.core.extras import install_command
from fledge.core.settings import setting
from fledge.monitor.metrics_file import read_metrics

UNKNOWN = "\N{EN DASH}"  # shown for a metric that has no value yet
MAX_WAITING = 2**26  # bytes of metrics that wait in memory while the disk is full
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SECONDS_BETWEEN_LINES = 10.0  # on a console that is not a terminal

logger = logging.getLogger("fledge.monitor")


class WandbMode(enum.Enum):
    """Whether metrics are logged to Weights & Biases: not at all, to local files, or to its server."""

    disabled = "disabled"
    offline = "offline"
    online = "online"


@dataclass
class WandbConfig:
    mode: WandbMode = setting(WandbMode.disabled, resume="same")
    """Log to Weights & Biases: disabled, offline or online. Needs the package wandb; never asks for a key."""
    project: str = setting("fledge", resume="same")
    """Project name in Weights & Biases."""


class Logger(Protocol):
    """Interface of all loggers."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class FileLogger:
    """Writes `metrics.csv` and `metrics.jsonl`: one row per call, flushed immediately.

    While the disk is full, rows wait in memory, up to `MAX_WAITING` bytes, and are written as soon as there is space. If
    `resume_step` is given, existing rows up to it are kept and later ones dropped, so that each step appears once.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        self._csv_path, self._json_path = folder / "metrics.csv", folder / "metrics.jsonl"
        rows = (
            [row for row in read_metrics(self._json_path) if row["step"] <= resume_step]
            if resume_step is not None
            else []
        )
        _replace(self._json_path, "".join(json.dumps(row) + "\n" for row in rows))
        self._json = self._json_path.open("ab", buffering=0)
        self._waiting = b""  # of metrics.jsonl, not yet written
        self._was_full = False  # whether the disk was full at the last call: metrics.csv lacks rows
        self._csv = self._write_table(rows)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        row = {"step": step, **metrics}
        self._waiting += (json.dumps(row) + "\n").encode()
        try:
            self._write_waiting()
            self._append_to_table(row, rewrite=self._was_full)
            full = False
        except OSError as error:
            if error.errno not in DISK_FULL or len(self._waiting) > MAX_WAITING:
                raise
            full = True
            if not self._was_full:
                logger.warning("%s: the disk is full; metrics wait in memory until there is space.", self._json_path)
        self._was_full = full

    def _write_waiting(self) -> None:
        while self._waiting:
            self._waiting = self._waiting[self._json.write(self._waiting) :]

    def _append_to_table(self, row: Mapping[str, Any], rewrite: bool) -> None:
        """Append a row to `metrics.csv`; write the whole file anew if `rewrite`, or if the row has a new metric."""
        if rewrite or not row.keys() <= set(self._columns):
            self._csv.close()
            self._csv = self._write_table(read_metrics(self._json_path))
        else:
            csv.DictWriter(self._csv, self._columns).writerow(row)
            self._csv.flush()

    def _write_table(self, rows: Sequence[Mapping[str, Any]]) -> io.TextIOWrapper:
        """Write `metrics.csv` anew with these rows; return the file, opened to append more."""
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns)
        if self._columns:
            writer.writeheader()
        writer.writerows(rows)
        _replace(self._csv_path, text.getvalue())
        return self._csv_path.open("a", newline="", encoding="utf-8")

    def close(self) -> None:
        """Close both files; raise OSError if rows are still waiting for space."""
        try:
            self._write_waiting()
        finally:
            self._json.close()
            self._csv.close()


def _replace(path: Path, text: str) -> None:
    """Replace a file's content by `text`, atomically."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(text.encode())
    new.replace(path)


class TensorBoardLogger:
    """Writes TensorBoard event files to `folder`/tensorboard and flushes them after each step."""

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resume_step is None else resume_step + 1  # the first step to be logged again
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # otherwise a kill loses two minutes of steps, which a resume does not log again

    def close(self) -> None:
        self._writer.close()


class WandbLogger:
    """Logs to a run of Weights & Biases, which `open_wandb` starts."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def open_wandb(folder: Path, mode: str, project: str, config: Mapping[str, Any]) -> tuple[WandbLogger | None, str]:
    """Return a logger for Weights & Biases (None if it cannot start) and a note for the user.

    Without a W&B API key on this machine, mode "online" becomes "offline"; the user is never asked for a key.
    """
    try:
        import wandb
    except ImportError:
        why = f"wandb is not installed ({install_command('wandb')})"
        return None, f"wandb.mode={mode}, but {why}: training continues without it."
    note = ""
    if mode == "online" and not wandb.api.api_key:
        mode, note = "offline", "There is no W&B key on this machine: logging offline, `wandb sync` uploads it later."
    try:
        return WandbLogger(wandb.init(project=project, dir=str(folder), mode=mode, config=dict(config))), note
    except Exception as error:  # no network, a wrong key, a full disk: none of these should stop a run
        return None, f"wandb.mode={mode}, but wandb did not start ({error}): training continues without it."


class ConsoleLogger:
    """Shows the progress of training, with the recent mean of `primary_metric`.

    On a terminal or in a notebook it shows a bar, elsewhere it prints a line every few seconds; `quiet` prints nothing.
    """

    def __init__(self, total_steps: int, primary_metric: str = "success", quiet: bool = False) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        from fledge.core.terminal import NotebookBar, in_notebook, make_console

        self.total, self.start = total_steps, 0
        self._figures = {f"{primary_metric}_recent": (primary_metric, ".3f")}  # metric: its label and format
        if primary_metric != "return":
            self._figures["return"] = ("return", "+.1f")
        self._started = self._last_line = time.monotonic()
        self._console = make_console(stderr=True)
        self._console.quiet = self._quiet = quiet
        self._bar: Progress | None = None
        self._notebook_bar = NotebookBar("learning", total_steps) if in_notebook() and not quiet else None
        if self._console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("learning", style="bold"),
                BarColumn(),
                TextColumn("{task.percentage:3.0f}%  {task.fields[figures]}", markup=False),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task("train", total=total_steps, figures="")
            self._bar.start()

    def resume(self, step: int, total_steps: int) -> None:
        """Set the progress to `step` of `total_steps`; the remaining time is estimated from the steps after it."""
        self.start, self.total = step, total_steps
        self._started = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, total=total_steps, completed=step)
        if self._notebook_bar is not None:
            self._notebook_bar.update(step, total=total_steps)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        figures = "  ".join(self._texts(metrics))
        if self._bar is not None:
            self._bar.update(self._task, completed=step, figures=figures)
        if self._notebook_bar is not None:
            self._notebook_bar.update(step, figures)
        if self._bar is not None or self._notebook_bar is not None or self._quiet:
            return
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES or step >= self.total:
            self._last_line = now
            left = (now - self._started) / max(step - self.start, 1) * (self.total - step)
            clock = f"{int(left) // 60}:{int(left) % 60:02d}"
            print(f"iteration {step}/{self.total}  {figures}  {clock} left", file=sys.stderr, flush=True)

    def _texts(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Yield the texts to show, such as "return +1.5"; a metric without a value yet is shown as a dash."""
        if "frames_per_second" in metrics:
            yield f"{metrics['frames_per_second']:,.0f} decisions/s"
        for name, (label, digits) in self._figures.items():
            yield f"{label} {format(metrics[name], digits) if name in metrics else UNKNOWN}"

    def say(self, text: str) -> None:
        """Print a line without disturbing the bar."""
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._notebook_bar is not None:
            self._notebook_bar.close()
