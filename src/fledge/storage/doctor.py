"""`fledge doctor`: what of a folder of checkpoints can be trusted, and putting it in order.

Contract
    `examine_folder` reads every byte of every checkpoint in a folder and says which are good, which are damaged (with the
    reason), which are deltas that lost their base, what killed processes left over, and whether `latest` names a good
    file. It changes nothing. `repair_folder` then puts right what can be: what is no good moves into `aside/` there,
    `latest` names the newest good one again, and a good delta to a damaged file is first made to stand alone. Nothing is
    deleted, and files that a living process is writing are left alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fledge.core.errors import ConfigError, FledgeError, StorageError
from fledge.storage.checkpoint import NATIVE, NUMBERED, load_foreign, sniff
from fledge.storage.disk.durable import TEMP_PREFIX, abandoned, folder_lock, write_text
from fledge.storage.format.reader import CheckpointFile
from fledge.storage.history.thinning import rewrite_whole

SUFFIXES = (NATIVE, ".pt", ".pth", ".lz4", ".safetensors")
LATEST = "latest"
ASIDE = "aside"
State = Literal["good", "damaged", "orphan", "leftover", "in use"]
WORDS = {"orphan": "lost its base", "leftover": "left over", "in use": "being written"}


@dataclass(frozen=True)
class Finding:
    """What one file is.

    Attributes:
        file: Its name.
        state: "good"; "damaged"; "orphan", a delta whose base is gone; "leftover" of a killed process, or a `latest` that
            names no good file; "in use" by a living one.
        bytes: Its size.
        reason: Why it is not good.
        prefix: The history that it belongs to, if it does; with the next three as `history.save` noted them.
        base: The file that it is a delta to.
    """

    file: str
    state: State
    bytes: int
    reason: str = ""
    prefix: str | None = None
    step: int | None = None
    sequence: int = 0
    whole: bool = True
    base: str | None = None


@dataclass(frozen=True)
class Report:
    """What a folder is like.

    Attributes:
        folder: Where.
        files: Every checkpoint and every leftover, by name.
        resume: Per history, by its prefix, the file to resume from.
        repairs: After `repair_folder`, what was done, in sentences.
    """

    folder: str
    files: tuple[Finding, ...]
    resume: dict[str, str]
    repairs: tuple[str, ...] = field(default=())

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to repair."""
        return all(finding.state in ("good", "in use") for finding in self.files)

    def as_dict(self) -> dict[str, Any]:
        """All of it, JSON-able."""
        return {**dataclasses.asdict(self), "healthy": self.healthy}


def examine_folder(folder: str | os.PathLike[str]) -> Report:
    """What a folder of checkpoints, or a run's, is like; nothing is changed.

    Raises:
        ConfigError: There is no such folder, or no checkpoint in it.
    """
    place = Path(folder) / "checkpoints"
    place = place if place.is_dir() else Path(folder)
    if not place.is_dir():
        raise ConfigError(f"{folder} is no folder: give a run's, or one with checkpoints in it.")
    report = _survey(place)
    if not report.files:
        raise ConfigError(f"{place} holds no checkpoints: give a run's folder, or one with checkpoints in it.")
    return report


def _survey(place: Path) -> Report:
    paths = sorted(path for path in place.iterdir() if path.is_file())
    found = [_examine_file(path) for path in paths if path.name.startswith(TEMP_PREFIX) or path.suffix in SUFFIXES]
    resume: dict[str, Finding] = {}
    for finding in found:
        if finding.state == "good" and finding.prefix is not None and finding.whole:
            best = resume.setdefault(finding.prefix, finding)
            if (finding.sequence, finding.step or 0) > (best.sequence, best.step or 0):
                resume[finding.prefix] = finding
    names = {prefix: finding.file for prefix, finding in resume.items()}
    good = {finding.file for finding in found if finding.state == "good"}
    known = {_latest_of(prefix) for prefix in names}
    for path in paths:
        if _is_latest(path.name):
            latest = _examine_latest(path, good)
            if latest.state != "damaged" or path.name in known:  # else some other tool's
                found.append(latest)
    return Report(str(place), tuple(found), names)


def _latest_of(prefix: str) -> str:
    """Name of a history's `latest`."""
    return LATEST if prefix == "checkpoint" else f"{LATEST}_{prefix}"


def _is_latest(name: str) -> bool:
    return name == LATEST or (name.startswith(f"{LATEST}_") and Path(name).suffix not in SUFFIXES)


def _examine_file(path: Path) -> Finding:
    size = path.stat().st_size
    if path.name.startswith(TEMP_PREFIX):
        left = abandoned(path)
        return Finding(path.name, "leftover" if left else "in use", size, "its writer was killed" if left else "")
    try:
        kind = sniff(path)
        if kind != "native":
            load_foreign(path, kind)
            return Finding(path.name, "good", size)
        with CheckpointFile(path) as opened:
            about = _note(path, opened)
            for number in range(len(opened.entries)):
                opened.stored_bytes(number)  # its own, before what it needs of others
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
    """What a history noted about a file."""
    note, named = opened.metadata.get("history"), NUMBERED.fullmatch(path.name)
    about: dict[str, Any] = {"base": opened.base_file}
    if isinstance(note, dict) and named is not None and type(note.get("sequence")) is int:
        step = note.get("step")
        about |= {"prefix": named["prefix"], "step": step if type(step) is int else None}
        about |= {"sequence": note["sequence"], "whole": note.get("thin") is False}
    return about


def _examine_latest(path: Path, good: set[str]) -> Finding:
    """A history's `latest`: good when it names a good file."""
    size = path.stat().st_size
    try:
        named = json.loads(path.read_text())["file"]
    except (OSError, ValueError, KeyError, TypeError):
        return Finding(path.name, "damaged", size, "it is not the JSON line that a history writes")
    if named in good:
        return Finding(path.name, "good", size)
    return Finding(path.name, "leftover", size, f"it names {str(named)[:80]!r}, which is not there or no good")


def repair_folder(folder: str | os.PathLike[str]) -> Report:
    """Put a folder in order; returns what it is like then, and what was done."""
    place = Path(examine_folder(folder).folder)
    try:
        with folder_lock(place):
            report = _survey(place)
            done = [*_free_deltas(place, report), *_move_aside(place, report), *_point_latest(place, report)]
            return dataclasses.replace(_survey(place), repairs=tuple(done))
    except OSError as error:
        raise StorageError(f"{place} cannot be put in order ({error.strerror}): check its permissions.") from error


def _free_deltas(place: Path, report: Report) -> Iterator[str]:
    """Good deltas to damaged files: of a damaged file, some tensors may be well."""
    bad = {finding.file for finding in report.files if finding.state in ("damaged", "orphan")}
    for finding in report.files:
        if finding.state == "good" and finding.base in bad:
            rewrite_whole(place / finding.file)
            yield f"{finding.file} stands alone now: it was a delta to {finding.base}, which is damaged."


def _move_aside(place: Path, report: Report) -> Iterator[str]:
    for finding in report.files:
        if finding.state not in ("good", "in use") and not _is_latest(finding.file):
            yield f"{_aside(place, finding)}: {WORDS.get(finding.state, finding.state)}."


def _aside(place: Path, finding: Finding) -> str:
    """Move a file out of the way, over no other; says so."""
    plain, number = finding.file.lstrip("."), 1
    target = place / ASIDE / plain
    while target.exists():
        number += 1
        target = place / ASIDE / f"{plain}~{number}"
    target.parent.mkdir(exist_ok=True)
    os.rename(place / finding.file, target)
    return f"{finding.file} was moved to {ASIDE}/{target.name}"


def _point_latest(place: Path, report: Report) -> Iterator[str]:
    """`latest` of every history names its newest good file; one of a history that has none is moved aside."""
    states = {finding.file: finding for finding in report.files}
    for prefix, file in report.resume.items():
        name = _latest_of(prefix)
        if name not in states or states[name].state != "good":
            write_text(place / name, json.dumps({"file": file, "step": states[file].step}) + "\n")
            yield f"{name} names {file} now, the newest that is good."
            states.pop(name, None)
    for finding in states.values():
        if _is_latest(finding.file) and finding.state != "good":
            yield f"{_aside(place, finding)}: no file of its history is good."


def render(report: Report) -> Iterator[str]:
    """Lines for people."""
    counts = [(sum(finding.state == state for finding in report.files), word) for state, word in (
        ("good", "good"), ("damaged", "damaged"), ("orphan", "without their base"), ("leftover", "left over"),
        ("in use", "being written"),
    )]  # fmt: skip
    yield f"{report.folder}: {', '.join(f'{count} {word}' for count, word in counts if count)}"
    for prefix, file in report.resume.items():
        step = next(finding.step for finding in report.files if finding.file == file)
        yield f"resume: {file}, step {step}" + ("" if prefix == "checkpoint" else f" (of {prefix})")
    if not report.resume:
        yield "resume: no whole checkpoint of a history is good"
    for finding in report.files:
        if finding.state != "good":
            word = WORDS.get(finding.state, finding.state)
            yield f"{finding.file}: {word}{f': {finding.reason}' if finding.reason else ''}"
    yield from (f"repaired: {sentence}" for sentence in report.repairs)
    if not report.healthy and not report.repairs:
        yield f"fledge doctor {report.folder} --repair moves what is no good into {ASIDE}/ and deletes nothing."
