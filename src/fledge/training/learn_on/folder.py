"""The folder of `fledge learn-on`: a run whose checkpoints are the accepted policies.

    config.yaml      the config of the run that it began with, so that the folder is a run for every other command
    run.json         the command and the machine
    learn_on.json    the source, the settings, and a row for each candidate, accepted or refused; `parent`, the run that it
                     began with, unless the folder is RUN/learn_on
    checkpoints/     the accepted policies by their number; 0 is the policy that it began with
    metrics.csv      the same rows

A checkpoint holds its own row, and is written before that row in `learn_on.json`: after a kill between both, `rows` takes it
from there. Who writes holds the folder's `RunLock`, and reads the folder after taking it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fledge.agents.policy_file import is_past_self
from fledge.core.errors import ConfigError, StorageError
from fledge.core.json_file import read_json
from fledge.core.terminal import strict_json
from fledge.core.text_table import TextTable
from fledge.evaluation.run_info import write_run_info
from fledge.monitor.loggers import FileLogger
from fledge.storage import CheckpointHistory
from fledge.storage.disk.durable import write_text
from fledge.training.run_lock import RunLock

NAME, STATE = "learn_on", "learn_on.json"
Row = dict[str, Any]


class LearnOnFolder:
    """Accepted policies and the rows of all candidates.

    Args:
        path: The folder; `create` makes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history = CheckpointHistory(path / "checkpoints", keep_whole=2)
        self.state: dict[str, Any] = {}
        self.read()

    def read(self) -> None:
        """Read `learn_on.json`, and the rows of checkpoints that it lacks; writes nothing."""
        if self.exists:
            found = read_json(self.path / STATE)
            if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
                raise StorageError(f"{self.path / STATE} is damaged: move the folder away to start again.")
            self.state = found
            self._add_missing()

    @property
    def exists(self) -> bool:
        return (self.path / STATE).is_file()

    @property
    def rows(self) -> list[Row]:
        """Rows of all candidates, in order; the first is the policy that the folder began with."""
        return list(self.state.get("rows", []))

    @property
    def parent(self) -> str:
        """The run or the policy file that the folder began with."""
        return self.state.get("parent") or os.path.dirname(os.path.abspath(self.path))

    def set_parent(self, parent: str) -> None:
        """Name the run or the policy file that the folder began with; RUN/learn_on belongs to RUN, wherever that is."""
        self.state.pop("parent", None)
        place = os.path.abspath(parent)
        if os.path.abspath(self.path) != os.path.join(place, NAME):
            self.state["parent"] = place if os.path.exists(parent) or is_past_self(Path(parent)) else parent

    def create(self, cfg: Any, parent: str, command: list[str], device: str) -> None:
        """Make the folder a run, beginning with `learn_on.json` without rows, which makes it a folder of learn-on."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.state = {"rows": []}
        self.set_parent(parent)
        self._write()
        new = self.path / "config.new"
        OmegaConf.save(OmegaConf.structured(cfg), new)
        new.replace(self.path / "config.yaml")
        write_run_info(self.path, shlex.join(command), None, {}, {}, device)

    def save(self, row: Row, checkpoint: Mapping[str, Any] | None = None) -> None:
        """Add a row; `checkpoint` is the state of an accepted policy, which is written first."""
        if checkpoint is not None:
            self.history.save(dict(checkpoint), row["candidate"], metric=row["old"], metadata=row)
        self.state["rows"].append(row)
        self._write()

    def note(self, **facts: Any) -> None:
        """Set entries of `learn_on.json` besides the rows; the next `save` writes them."""
        self.state |= facts

    def go_back(self, number: int | None) -> Row:
        """Make an accepted policy the newest again, as a new checkpoint; return its row.

        Args:
            number: Number of the checkpoint; None: the one before the newest.

        Raises:
            StorageError: `learn_on` is running in the folder.
        """
        with RunLock(self.path):
            self.read()
            return self._go_back(number)

    def _go_back(self, number: int | None) -> Row:
        entries = {entry.step: entry for entry in self.history.entries()}
        rows = [row for row in self.rows if row["accepted"] and row["candidate"] in entries]
        choices = [row["candidate"] for row in rows[:-1]]
        if number is None:
            number = earlier(rows)
        if number is None or number not in choices:
            names = ", ".join(map(str, choices)) or "none"
            raise ConfigError(
                f"{self.path} has no earlier accepted policy{'' if number is None else f' {number}'}: it can go back to "
                f"{names}."
            )
        row = next(row for row in rows if row["candidate"] == number)
        made = {**row, "candidate": self.rows[-1]["candidate"] + 1, "back_to": number, "reason": f"back to {number}"}
        self.save(made, self.history.load(entries[number]))
        return made

    def _add_missing(self) -> None:
        last = self.rows[-1]["candidate"] if self.rows else -1
        missing = [
            entry.metadata for entry in self.history.entries() if entry.step > last and "candidate" in entry.metadata
        ]
        if missing:
            self.state["rows"] += missing

    def _write(self) -> None:
        write_text(self.path / STATE, strict_json(self.state) + "\n")
        log = FileLogger(self.path, -1)
        for row in self.rows:
            log.log(row["candidate"], {key: value for key, value in row.items() if isinstance(value, int | float)})
        log.close()


def earlier(rows: list[Row]) -> int | None:
    """Return the number of the policy that flew before the newest; going back repeatedly goes further back."""
    number: int | None = rows[-1]["candidate"] if rows else None
    by_number = {row["candidate"]: row for row in rows}
    while number is not None and "back_to" in by_number[number]:
        number = by_number[number]["back_to"]
    lower = [row["candidate"] for row in rows if number is not None and row["candidate"] < number]
    return max(lower, default=None)


def table(rows: list[Row]) -> TextTable:
    """Return the rows as a table."""
    columns = ("", "decision", "old worlds", "new worlds")
    note = "In brackets: change > one-sided 95 % bound, on old worlds since the start, on new ones since the last accepted."
    refused = [index for index, row in enumerate(rows) if not row["accepted"]]
    cells = [[str(row["candidate"]), decision(row), figure(row, "old"), figure(row, "new")] for row in rows]
    return TextTable(columns, cells, note=note, dim=refused)


def decision(row: Row) -> str:
    """Return the outcome of a candidate in a few words."""
    if row["accepted"]:
        return row["reason"] or "accepted"
    return f"refused: {row['reason'].partition(':')[0]}"


def figure(row: Row, name: str) -> str:
    """Return a score with its change and the bound of the change."""
    score, mean, low = row.get(name), row.get(f"{name}_change"), row.get(f"{name}_low")
    told = "not flown" if score is None else f"{score:.3f}"
    digits = 4 if score is None else 3
    return told if mean is None else f"{told} ({mean:+.{digits}f} > {low:+.{digits}f})"


def read_folder(run: Path) -> LearnOnFolder:
    """Return the folder of a run, RUN/learn_on, or RUN itself if that is one; raise ConfigError if there is none."""
    found = LearnOnFolder(run if (run / STATE).is_file() else run / NAME)
    if not found.rows:
        raise ConfigError(
            f"{run} has not learned on yet: `fledge learn-on {shlex.quote(str(run))} --from SOURCE` starts it."
        )
    return found
