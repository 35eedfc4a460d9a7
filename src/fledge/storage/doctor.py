"""Check and repair a folder of checkpoints: `fledge doctor`.

`examine_folder` reads every byte of every checkpoint and changes nothing. `repair_folder` first rewrites every good delta
whose base is damaged, so that it needs no base; then it moves bad files into the subfolder `aside/`, and points `latest` to
the newest good file. It deletes nothing, and does not touch files that a running process is writing.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fledge.core.errors import ConfigError, FledgeError, StorageError
from fledge.core.json_file import read_json
from fledge.core.paths import kind_of_path, not_a_file
from fledge.storage.checkpoint import EXTENSIONS, NATIVE, NUMBERED, sniff
from fledge.storage.disk.durable import TEMP_PREFIX, abandoned, folder_lock, write_text
from fledge.storage.format import interop
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.history.history import LATEST, latest_name
from fledge.storage.history.retention import WEIGHTS_ONLY
from fledge.storage.history.rewriting import rewrite_whole

ASIDE = "aside"
State = Literal["good", "damaged", "orphan", "leftover", "in use"]
FINE = ("good", "in use")
SHOWN = {"orphan": "without its base", "leftover": "left over", "in use": "being written"}


@dataclass(frozen=True)
class Finding:
    """State of one file.

    An "orphan" is an intact delta whose base is missing or damaged. A "leftover" is a temporary file of a killed process, or
    a history's file `latest` if the checkpoint that it names is missing or damaged. A file "in use" is being written by a
    running process.
    """

    file: str
    state: State
    bytes: int
    reason: str = ""  #: Why the file is not good.
    prefix: str | None = None  #: File name prefix of the history that saved it, if any.
    step: int | None = None  #: Training step that the history was given.
    sequence: int = 0  #: Order of saving in the history.
    whole: bool = True  #: False if the history has reduced it to weights.
    base: str | None = None  #: Name of its base, if it is a delta.


@dataclass(frozen=True)
class Report:
    """State of all checkpoints in a folder, and what `repair_folder` did to them."""

    folder: str
    files: tuple[Finding, ...]  #: Every checkpoint and every leftover, by name.
    resume: dict[str, str]  #: The file to resume from, by prefix of its history.
    repairs: tuple[str, ...] = ()  #: Sentences that say what `repair_folder` did.

    @property
    def healthy(self) -> bool:
        """True if there is nothing to repair."""
        return all(finding.state in FINE for finding in self.files)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict of plain values, for JSON."""
        return {**dataclasses.asdict(self), "healthy": self.healthy}


def examine_folder(folder: str | os.PathLike[str]) -> Report:
    """Check all checkpoints in a run's folder or a folder of checkpoints, without changing anything.

    Raises:
        ConfigError: There is no such folder, or no checkpoint in it.
    """
    place = Path(folder) / "checkpoints"
    place = place if place.is_dir() else Path(folder)
    if not place.is_dir():
        raise ConfigError(f"{folder} is not a folder: give the folder of a run, or a folder of checkpoints.")
    report = _survey(place)
    if not report.files:
        raise ConfigError(f"{place} holds no checkpoints: give the folder of a run, or a folder of checkpoints.")
    return report


def _survey(place: Path) -> Report:
    # Other tools may have folders named x.pt.
    paths = sorted(p for p in place.iterdir() if not p.is_dir() or p.suffix == NATIVE or _is_latest(p.name))
    found = [_examine_file(path) for path in paths if path.name.startswith(TEMP_PREFIX) or path.suffix in EXTENSIONS]
    whole = [f for f in found if f.state == "good" and f.prefix is not None and f.whole]
    whole.sort(key=lambda finding: (str(finding.prefix), finding.sequence, finding.step or 0))
    resume = {str(finding.prefix): finding.file for finding in whole}  # the newest of each
    good = {finding.file for finding in found if finding.state == "good"}
    known = {latest_name(prefix) for prefix in resume}
    for path in paths:
        if _is_latest(path.name):
            latest = _examine_latest(path, good)
            if latest.state != "damaged" or path.name in known:  # else it belongs to another tool
                found.append(latest)
    return Report(str(place), tuple(found), resume)


def _is_latest(name: str) -> bool:
    return name == LATEST or (name.startswith(f"{LATEST}_") and Path(name).suffix not in EXTENSIONS)


def _examine_file(path: Path) -> Finding:
    if not path.is_file():
        return Finding(path.name, "damaged", 0, f"it is {kind_of_path(path)}, not a regular file")
    size = path.stat().st_size
    if path.name.startswith(TEMP_PREFIX):
        left = abandoned(path)
        return Finding(
            path.name, "leftover" if left else "in use", size, "the process that wrote it was killed" if left else ""
        )
    try:
        kind = sniff(path)
        if kind != "native":
            interop.load(path, kind)
            return Finding(path.name, "good", size)
        with CheckpointFile(path) as opened:
            about = _note(path, opened)
            for number in range(len(opened.entries)):
                opened.stored_bytes(number)  # its own content first, then what it needs of its base
            try:
                for number in range(len(opened.entries)):
                    opened.read_bytes(number)
            except FledgeError as error:
                state: State = "damaged" if opened.base_file is None else "orphan"
                return Finding(path.name, state, size, str(error), **about)
            return Finding(path.name, "good", size, **about)
    except (FledgeError, OSError) as error:
        return Finding(path.name, "damaged", size, str(error))


def _note(path: Path, opened: CheckpointFile) -> dict[str, Any]:
    """Return the fields of a `Finding` that come from the checkpoint's manifest and name.

    They are `base` and, if a history saved the file, also `prefix`, `step`, `sequence` and `whole`.
    """
    note, named = opened.metadata.get("history"), NUMBERED.fullmatch(path.name)
    about: dict[str, Any] = {"base": opened.base_file}
    if isinstance(note, dict) and named is not None and type(note.get("sequence")) is int:
        step = note.get("step")
        about |= {"prefix": named["prefix"], "step": step if type(step) is int else None}
        about |= {"sequence": note["sequence"], "whole": note.get(WEIGHTS_ONLY) is False}
    return about


def _examine_latest(path: Path, good: set[str]) -> Finding:
    """Check a history's file `latest`; it is good if it names a good checkpoint."""
    if not path.is_file():
        return Finding(path.name, "damaged", 0, f"it is {kind_of_path(path)}, not a regular file")
    size, content = path.stat().st_size, read_json(path)
    named = content.get("file") if isinstance(content, dict) else None
    if not isinstance(named, str):
        return Finding(path.name, "damaged", size, "it is not the JSON line that a history writes")
    if named in good:
        return Finding(path.name, "good", size)
    return Finding(path.name, "leftover", size, f"it names {named[:80]!r}, which is missing or damaged")


def repair_folder(folder: str | os.PathLike[str]) -> Report:
    """Repair a folder of checkpoints; return its new state, with what was done in `Report.repairs`."""
    place = Path(examine_folder(folder).folder)
    try:
        with folder_lock(place):
            report = _survey(place)
            done = list(_free_deltas(place, report))
            for bad in report.files:
                if bad.state not in FINE and not _is_latest(bad.file):
                    done.append(f"{_aside(place, bad)}: {SHOWN.get(bad.state, bad.state)}.")
            done += _point_latest(place, report)
            return dataclasses.replace(_survey(place), repairs=tuple(done))
    except OSError as error:
        raise StorageError(f"{place} cannot be repaired ({error.strerror}): check its permissions.") from error


def _free_deltas(place: Path, report: Report) -> Iterator[str]:
    """Rewrite good deltas whose base is damaged, so that they need no base; yield a sentence for each.

    Such a delta is good if the tensors that it needs from its base can still be read.
    """
    bad = {finding.file for finding in report.files if finding.state in ("damaged", "orphan")}
    for finding in report.files:
        if finding.state == "good" and finding.base in bad:
            rewrite_whole(place / finding.file)
            yield f"{finding.file} was rewritten without its base {finding.base}, which is damaged."


def _aside(place: Path, finding: Finding) -> str:
    """Move a file to `aside/` without overwriting another; return a message such as "x was moved to aside/x"."""
    plain, number = finding.file.lstrip("."), 1
    target = place / ASIDE / plain
    while target.exists():
        number += 1
        target = place / ASIDE / f"{plain}~{number}"
    target.parent.mkdir(exist_ok=True)
    os.rename(place / finding.file, target)
    return f"{finding.file} was moved to {ASIDE}/{target.name}"


def _point_latest(place: Path, report: Report) -> Iterator[str]:
    """Point each history's `latest` to its newest good file, or move `latest` aside; yield a sentence for each change."""
    states = {finding.file: finding for finding in report.files}
    for prefix, file in report.resume.items():
        name = latest_name(prefix)
        if name not in states or states[name].state != "good":
            if kind := not_a_file(place / name):  # must not be replaced
                yield f"{_aside(place, states[name])}: it is {kind}."
            write_text(place / name, json.dumps({"file": file, "step": states[file].step}) + "\n")
            yield f"{name} now names {file}, the newest good file."
            states.pop(name, None)
    for finding in states.values():
        if _is_latest(finding.file) and finding.state != "good":
            yield f"{_aside(place, finding)}: no file of its history is good."


def render(report: Report) -> Iterator[str]:
    """Yield the report as lines of text."""
    states: list[str] = [finding.state for finding in report.files if not _is_latest(finding.file)]
    good = states.count("good")
    counts = {state: states.count(state) for state in ("damaged", *SHOWN)}
    counted = [f"{count} {SHOWN.get(state, state)}" for state, count in counts.items() if count]
    yield ", ".join([f"{report.folder}: {good} good checkpoint{'' if good == 1 else 's'}", *counted])
    for prefix, file in report.resume.items():
        step = next(finding.step for finding in report.files if finding.file == file)
        yield f"resume: {file}, step {step}" + ("" if prefix == "checkpoint" else f" (of {prefix})")
    if not report.resume:
        yield "resume: no whole checkpoint of a history is good"
    for finding in report.files:
        if finding.state != "good":
            reason = f": {finding.reason}" if finding.reason else ""
            yield f"{finding.file}: {SHOWN.get(finding.state, finding.state)}{reason}"
    yield from (f"repaired: {sentence}" for sentence in report.repairs)
    if not report.healthy and not report.repairs:
        yield f"fledge doctor {report.folder} --repair moves bad files into {ASIDE}/ and deletes nothing."
