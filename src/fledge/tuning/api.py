"""`fledge.tune`: search the settings of a training."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError
from fledge.core.overrides import settings_to_overrides
from fledge.core.terminal import duration, make_console, say
from fledge.tasks.base import Task
from fledge.tasks.registry import find_task
from fledge.training.command import new_folder
from fledge.tuning.claims import Claims
from fledge.tuning.confirmation import BEST, PRESET, Confirmation, write_best
from fledge.tuning.population import Population
from fledge.tuning.report import interval_text, label_of, write_report
from fledge.tuning.search import Job, Search
from fledge.tuning.storage import open_storage
from fledge.tuning.summary import best_row, importance_of, member_rows, search_rows, summarize, write_summary
from fledge.tuning.sweep import NOT_SAVED, Sweep, open_sweep
from fledge.tuning.worker import Phase, Worker

OPTIONS = tuple(
    field.name for field in dataclasses.fields(Sweep) if field.name not in (*NOT_SAVED, "words", "study", "task")
)
REFRESH_S = 3.0  # between two updates of the summary while trials run


@dataclass
class TuneResult:
    """Result of `fledge.tune`.

    Attributes:
        folder: The sweep's folder.
        summary: Content of its `summary.json`: trials, importances, confirmation.
        interrupted: Whether Ctrl-C stopped this worker before the sweep was complete.
    """

    folder: Path
    summary: dict[str, Any] = field(repr=False)
    interrupted: bool = False

    @property
    def best(self) -> Path:
        """The preset file of the best configuration, for `fledge train --preset`."""
        return self.folder / BEST

    @property
    def report(self) -> Path:
        """The report page."""
        return self.folder / "report.html"


def tune(
    task: str | Task | type[Task] | None = None,
    folder: str | os.PathLike[str] | None = None,
    preset: str | os.PathLike[str] | None = None,
    *,
    workers: int = 1,
    progress: bool | None = None,
    trials: int | None = None,
    mode: str | None = None,
    sampler: str | None = None,
    pruner: str | None = None,
    evaluations: int | None = None,
    episodes: int | None = None,
    confirm: int | None = None,
    seeds: int | None = None,
    population: int | None = None,
    generations: int | None = None,
    seed: int | None = None,
    storage: str | None = None,
    heartbeat_s: float | None = None,
    **settings: Any,
) -> TuneResult:
    """Search settings for the best policy; the same as the command `fledge tune`, whose help explains the arguments.

    Example:
        >>> ranges = {"ppo.lr": "1e-4..1e-2", "ppo.epochs": "1..6"}
        >>> result = fledge.tune("navigation", trials=24, workers=2, total_frames=500_000, **ranges)
        >>> fledge.train("navigation", preset=result.best)

    Args:
        task: As for `fledge.train`. To join a sweep, pass it only if it is your own code.
        folder: Folder of the sweep. A folder that holds a sweep is joined.
        preset: Training preset to start from.
        workers: Trainings at the same time in this process; others may join from other processes and machines.
        progress: False prints nothing.
        settings: Ranges as text ("LOW..HIGH", "a|b|c"), and settings that all trials share.

    Raises:
        ConfigError: A name, a range or an option is wrong.
        FledgeError: The first trials have all failed.
    """
    given = locals()
    options = {name: given[name] for name in OPTIONS if given[name] is not None}
    if preset is not None:
        options["preset"] = os.fspath(preset)
    if workers < 1:
        raise ConfigError(f"workers is {workers}, but must be at least 1.")
    chosen = None if task is None else find_task(task)
    place = Path(folder) if folder is not None else new_folder().with_name(f"{new_folder().name}-sweep")
    if folder is None and chosen is None:
        chosen = find_task("navigation")
    sweep = open_sweep(place, chosen, settings_to_overrides(settings), options)
    return _Command(sweep, workers, quiet=progress is False).run()


class _Command:
    """The workers of one process, and what they tell."""

    def __init__(self, sweep: Sweep, workers: int, quiet: bool) -> None:
        self.sweep, self.workers, self.quiet = sweep, workers, quiet
        self.console = make_console(stderr=True)
        storage = open_storage(sweep.storage, sweep.folder)
        self.claims = Claims(storage, sweep.study, sweep.heartbeat_s)
        self.search = Search(sweep, storage) if sweep.mode == "search" else None
        self.first: Phase = self.search or Population(sweep)
        self.confirmation: Confirmation | None = None
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.began, self.ended, self.importance = time.monotonic(), 0, dict[str, float]()

    def run(self) -> TuneResult:
        """Work until the sweep is complete or Ctrl-C; write the summary, the report and the preset file."""
        self.say(f"sweep: {self.sweep.folder}  ({self.sweep.jobs} trials, {self.workers} at a time here)")
        for each in self.sweep.ranges:
            self.say(f"       {each}")
        state = "search"
        try:
            with stopping(self.stop, lambda: self.say("Saving the running trials; Ctrl-C again to stop at once.")):
                self.work(self.first)
                if self.search and self.sweep.seeds and not self.stop.is_set():
                    state = "confirm"
                    self.confirmation = Confirmation(self.sweep, self.choose())
                    self.say(
                        f"confirmation: {len(self.confirmation.chosen)} configurations, {self.sweep.seeds} seeds each"
                    )
                    self.work(self.confirmation)
                state = "stopped" if self.stop.is_set() else "finished"
        except BaseException:
            state = "stopped"
            raise
        finally:
            summary = self.update(state)
        if summary["best"] is not None:
            write_report(self.sweep.folder, summary)
        self.say(self.ending(summary))
        return TuneResult(self.sweep.folder, summary, interrupted=state == "stopped")

    def work(self, phase: Phase) -> None:
        """Do all jobs of a phase with this process's workers."""
        errors: list[BaseException] = []
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        share = len(cores) // self.workers

        def work(number: int) -> None:
            own = cores[number * share : (number + 1) * share] if self.workers > 1 else None
            try:
                Worker(self.sweep, self.claims, self.tell, self.stop, own or None, self.begin).work(phase)
            except BaseException as error:
                errors.append(error)
                self.stop.set()

        threads = [threading.Thread(target=work, args=(k,), name=f"fledge-tune-{k}") for k in range(self.workers)]
        for thread in threads:
            thread.start()
        due = 0.0
        while any(thread.is_alive() for thread in threads):
            if time.monotonic() > due and not self.stop.is_set():
                with contextlib.suppress(Exception):  # the workers report a storage that does not answer
                    self.update("confirm" if self.confirmation else "search")
                due = time.monotonic() + REFRESH_S
            threads[0].join(0.2)
            time.sleep(0.05)
        if errors:
            raise errors[0]

    def choose(self) -> dict[str, dict[str, Any]]:
        """Return the configurations to confirm: the best of the search, and the preset. The same for every worker."""
        done = [row for row in self.rows() if row["state"] == "complete"]
        done = [row for row in done if row["params"] != self.sweep.start]
        best = sorted(done, key=lambda row: (-row["value"], row["number"]))[: self.sweep.confirm]
        return {**{f"{row['number']:04d}": row["params"] for row in best}, PRESET: {}}

    def rows(self) -> list[dict[str, Any]]:
        claims = self.claims.all()
        return search_rows(self.search, claims) if self.search else member_rows(self.first, claims)

    def update(self, state: str) -> dict[str, Any]:
        """Write `summary.json` and `best.yaml`, and return the summary."""
        with self.lock:
            rows, table = self.rows(), self.confirmation.table() if self.confirmation else []
            summary = summarize(self.sweep, rows, self.importance, table, state)
            write_summary(self.sweep.folder, summary)
            if table and state == "finished" and table[0]["value"]:
                about = f"{label_of(table[0])}: {summary['metric']} {interval_text(table[0]['test'])}, test seed"
                write_best(self.sweep, table[0]["params"], about)
            elif not table and (best := best_row(rows)) is not None:
                about = f"Trial {best['number']}: {summary['metric']} {best['value']:.3f}, validation seed, one run"
                write_best(self.sweep, best["params"], about)
            return summary

    def begin(self, job: Job) -> None:
        """Print one line about a job that begins."""
        self.say(f"{job.key}  begins; log: {job.log}")

    def tell(self, job: Job, result: Mapping[str, Any]) -> None:
        """Print one line about a job that has ended."""
        with self.lock:
            self.ended += 1
            if self.search:
                self.importance = importance_of(self.search.study)
        summary = self.update("confirm" if self.confirmation else "search")
        metric, rows = summary["metric"], summary["trials"]
        if "error" in result:
            text = f"failed: {result['error']}"
        elif "pruned" in result:
            text = f"{metric} {result['pruned']:.3f}, pruned"
        else:
            text = f"{metric} {result['value']:.3f}"
        best = next((row for row in rows if row["number"] == summary["best"]), None)
        text += f"  (best {best['value']:.3f}, trial {best['number']})" if best is not None else ""
        if not self.confirmation:
            ended = sum(row["state"] not in ("running", "waiting") for row in rows)
            left = (self.sweep.jobs - ended) * (time.monotonic() - self.began) / self.ended
            text += f"  {ended} of {self.sweep.jobs}, about {duration(left)} left"
        self.say(f"{job.key}  {text}")

    def say(self, text: str) -> None:
        if not self.quiet:
            for line in text.splitlines():
                say(self.console, line)

    def ending(self, summary: Mapping[str, Any]) -> str:
        """Return the sentences at the end: the winner and how to train it, or how to go on."""
        folder = self.sweep.folder
        if summary["state"] == "stopped":
            more = f" --workers {self.workers}" if self.workers > 1 else ""
            return f"Stopped; `fledge tune --folder {shlex.quote(str(folder))}{more}` goes on where it stopped."
        lines = []
        for row in summary["confirmation"]:
            lines.append(
                f"{label_of(row):>10}  validation {interval_text(row['value'])}  test {interval_text(row['test'])}"
            )
        lines += [f"report: {folder / 'report.html'}"]
        lines += (
            [f"train:  fledge train {summary['task']} --preset {folder / BEST}"] if summary["best"] is not None else []
        )
        return "\n".join(lines)


@contextlib.contextmanager
def stopping(stop: threading.Event, tell: Any) -> Iterator[None]:
    """Set `stop` on the first Ctrl-C or SIGTERM inside the block; raise KeyboardInterrupt on a second Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            os._exit(130)  # the trainings notice it, save, and stop
        stop.set()
        tell()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
