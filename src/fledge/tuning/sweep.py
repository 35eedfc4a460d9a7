"""Sweep: the definition of a sweep. `sweep.json` in its folder holds it, so that further workers only need the folder."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fledge.core.errors import ConfigError
from fledge.core.json_file import read_json
from fledge.core.settings import refuse_code
from fledge.monitor.metrics_file import is_number
from fledge.storage.disk.durable import make_folder, write_text
from fledge.tasks.base import Task
from fledge.tasks.registry import LOCAL, find_named_task, is_code
from fledge.training.command import check_before_start
from fledge.training.config import make_config
from fledge.tuning.ranges import Range, check_ranges, read_ranges
from fledge.tuning.storage import check_storage

FILE = "sweep.json"
MODES, SAMPLERS, PRUNERS = ("search", "pbt"), ("tpe", "random", "grid"), ("median", "hyperband", "none")
LEAST = {"trials": 1, "evaluations": 0, "episodes": 1, "confirm": 1, "seeds": 0, "population": 4, "generations": 2}
NOT_SAVED = ("folder", "ranges", "fixed")


@dataclass
class Sweep:
    """The definition of a sweep."""

    folder: Path
    task: Task
    words: list[str]
    """Ranges and settings that all trials share, as the user wrote them."""
    preset: str | None = None
    mode: str = "search"
    trials: int = 24
    """Trials of the search, over all workers."""
    sampler: str = "tpe"
    pruner: str = "median"
    evaluations: int = 4
    """Evaluations during a trial, for the pruner; 0: none."""
    episodes: int = 256
    """Episodes of an evaluation."""
    confirm: int = 3
    """Best configurations to train again with further seeds, beside the preset."""
    seeds: int = 3
    population: int = 8
    generations: int = 8
    seed: int = 0
    storage: str = ""
    """URL of the storage without its password; "": a journal file in the folder."""
    heartbeat_s: float = 10.0
    """Seconds between signs of life of a worker. A job without one for STALE of them is taken over."""
    study: str = ""
    ranges: list[Range] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, known in (("mode", MODES), ("sampler", SAMPLERS), ("pruner", PRUNERS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, but must be {' or '.join(known)}.")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must be at least {least}.")
        if self.task.reference.startswith(LOCAL):
            raise ConfigError(
                f"{self.task.reference.removeprefix(LOCAL)} is defined in the calling program, from which the processes "
                "of the trials cannot import it: put it into a Python file."
            )
        check_storage(self.storage)
        self.ranges, self.fixed = read_ranges(self.words)
        if not self.ranges:
            raise ConfigError("A sweep needs at least one range: write ppo.lr=1e-4..1e-2, or key=a|b|c in quotes.")
        if self.preset and self.preset.endswith((".yaml", ".yml")):
            self.preset = os.path.abspath(self.preset)
        check_before_start(self.task, make_config(self.task, self.preset, ["ranks=1", *self.fixed]), 1)
        self.ranges = check_ranges(self.task, self.preset, self.ranges, self.fixed, self.mode == "pbt")
        self.study = self.study or f"fledge-{secrets.token_hex(4)}"
        if self.sampler == "grid" and self.mode == "search":
            points = 1
            for each in self.ranges:
                points *= len(each.grid)
            self.trials = min(self.trials, points)

    @property
    def jobs(self) -> int:
        """Number of trials: of the search, or members times generations."""
        return self.trials if self.mode == "search" else self.population * self.generations

    @property
    def start(self) -> dict[str, Any]:
        """The preset's values that lie in the ranges."""
        return {each.name: each.start for each in self.ranges if each.start is not None}

    def overrides(self, changes: Sequence[str] = ()) -> list[str]:
        """Return the overrides of a run of this sweep: one rank, the shared settings, then `changes`."""
        return ["ranks=1", "tensorboard=false", *self.fixed, *changes]

    def as_dict(self) -> dict[str, Any]:
        found = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {**{key: found[key] for key in found if key not in NOT_SAVED}, "task": self.task.reference}


def without_password(url: str) -> str:
    """Return a URL without its password, which must not be written to a file."""
    password = urlsplit(url).password
    return url.replace(f":{password}@", "@", 1) if password else url


def open_sweep(folder: Path, task: Task | None, words: Sequence[str], options: Mapping[str, Any]) -> Sweep:
    """Return the sweep in a folder; create it if there is none.

    Args:
        task: Required for a new sweep, and if the task is the user's own code, as code that only a file names is not run.
        words: Ranges and settings. Of a sweep that exists, only settings that name code are required, for the same reason.
        options: Other fields of `Sweep` that the user gave.

    Raises:
        ConfigError: The folder holds another sweep.
    """
    if not (folder / FILE).exists():
        if task is None:
            raise ConfigError(f"{folder} holds no sweep to join: name a task and ranges for a new one.")
        sweep = Sweep(folder, task, list(words), **options)
        other = sorted(path.name for path in folder.glob("[!.]*")) if folder.is_dir() else []
        if other and not (folder / FILE).exists():  # looked at again: another worker may have just created the sweep
            raise ConfigError(
                f"{folder} holds other files, such as {other[0]}, and no sweep: choose a new or empty folder."
            )
        make_folder(folder)
        own = folder / f".{FILE}-{secrets.token_hex(4)}"
        write_text(own, json.dumps(sweep.as_dict() | {"storage": without_password(sweep.storage)}, indent=1) + "\n")
        try:
            os.link(own, folder / FILE)  # fails if another worker was first
            return sweep
        except FileExistsError:
            pass
        finally:
            own.unlink()
    return _join(folder, task, words, options)


def _join(folder: Path, task: Task | None, words: Sequence[str], options: Mapping[str, Any]) -> Sweep:
    known = read_json(folder / FILE)
    if not isinstance(known, dict) or not _is_definition(known):
        raise ConfigError(f"{folder / FILE} cannot be read as a sweep: name another folder.")
    given = {**options, "storage": without_password(options.get("storage", known["storage"]))}
    if str(given.get("preset", "")).endswith((".yaml", ".yml")):
        given["preset"] = os.path.abspath(given["preset"])
    other = [f"{key}={value}" for key, value in given.items() if known[key] != value and key != "trials"]
    other += [word for word in words if word not in known["words"]]
    if task is not None and task.reference != known["task"] and not is_code(task.reference):
        other.append(f"task {task.reference}")
    if other:
        raise ConfigError(
            f"{folder} already holds a sweep, to which {other[0]} does not belong: choose another folder, or go on with "
            f"`fledge tune --folder {folder}`."
        )
    trials = options.get("trials", known["trials"])
    if trials != known["trials"]:
        if known["mode"] == "pbt" or trials < known["trials"]:
            raise ConfigError(
                f"trials is {trials}, but the sweep has {known['trials']}: it can only grow, in a search."
            )
        known["trials"] = trials
        write_text(folder / FILE, json.dumps(known, indent=1) + "\n")
    task = task or find_named_task(str(known["task"]), asked_by=str(folder))
    content = {key: value for key, value in known.items() if key not in ("task", "storage")}
    sweep = Sweep(folder, task, storage=options.get("storage", known["storage"]), **content)
    refuse_code(make_config(task, sweep.preset, sweep.fixed), words)
    return sweep


def _is_definition(known: Mapping[str, Any]) -> bool:
    """Return whether the content of `sweep.json` has all fields, and no others, and values of their types."""
    fields = {each.name: each for each in dataclasses.fields(Sweep) if each.name not in NOT_SAVED}
    words, preset = known.get("words"), known.get("preset")
    if known.keys() != fields.keys() or not isinstance(words, list) or not isinstance(known["task"], str):
        return False
    if not all(isinstance(word, str) for word in words) or not isinstance(preset, str | None):
        return False
    plain = {name: type(each.default) for name, each in fields.items() if name not in ("words", "task", "preset")}
    return all(
        type(known[name]) is kind or (kind is float and type(known[name]) is int) for name, kind in plain.items()
    ) and is_number(known["heartbeat_s"])


def grown(sweep: Sweep) -> int:
    """Return the number of trials in `sweep.json`, which another command may have raised."""
    found = read_json(sweep.folder / FILE)
    trials = found.get("trials") if isinstance(found, dict) else None
    return max(sweep.trials, trials) if type(trials) is int else sweep.trials
