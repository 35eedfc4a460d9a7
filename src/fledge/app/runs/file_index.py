"""Find the runs, sweeps and recordings in the given files and folders ("places"): the app shows nothing else.

    files = FileIndex([Path("runs")])
    files.runs(), files.recordings()       entries, newest first
    files.find("4f2a…")                    the entry of an id, or None; requests never name a path

An id is a hash of the path, so that a link stays valid when the server restarts. Places are scanned again every few
seconds at most.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from fledge.core.errors import ConfigError
from fledge.core.terminal import harmless

SUFFIX = ".frec"
DEPTH = 5  # levels of folders below a given place that are searched
MAX_ENTRIES = 2000
STALE_S = 3.0
SHARE = 10.0  # the time between scans is at least this many times a scan's duration, as a place may be a whole disk

PLACES = f"a run's folder, a folder of runs, or a {SUFFIX} file"


@dataclass(frozen=True)
class Entry:
    """A run, a sweep or a recording in the index."""

    id: str  # identifies the entry in pages and links
    kind: Literal["run", "sweep", "recording"]
    name: str  # its path below the given place, for display
    path: Path  # never sent to a page
    changed: float  # time of the last change, seconds since 1970
    live: bool = False  # a training writes this recording for live viewing

    def file(self, *names: str) -> Path | None:
        """Return the path of a file in a run's folder; None if it does not exist or is a link out of the folder."""
        path = self.path.joinpath(*names)
        try:
            return path if path.resolve().is_relative_to(self.path.resolve()) and path.is_file() else None
        except (OSError, RuntimeError):
            return None


def make_id(path: Path) -> str:
    """Return the id of a path: a hash, as 12 hexadecimal digits."""
    return hashlib.blake2b(os.fsencode(path.resolve()), digest_size=6).hexdigest()


def is_run(path: Path) -> bool:
    """Return whether a folder is a run: it has a config.yaml or a metrics.jsonl."""
    return (path / "config.yaml").is_file() or (path / "metrics.jsonl").is_file()


def is_sweep(path: Path) -> bool:
    """Return whether a folder is a sweep: it has a sweep.json."""
    return (path / "sweep.json").is_file()


class FileIndex:
    """Index of the runs and recordings that the app may show.

    Args:
        places: Runs, recordings, or folders of them.
        awaited: Accept places that do not exist yet.

    Raises:
        ConfigError: A place does not exist, or is a file but not a recording.
    """

    def __init__(self, places: Sequence[Path] = (), awaited: bool = False) -> None:
        for place in places:
            if not place.exists() and not awaited:
                raise ConfigError(f"{place} does not exist. Pass {PLACES}.")
            if place.is_file() and place.suffix != SUFFIX:
                raise ConfigError(f"{place} is not a recording, as it does not end in {SUFFIX}. Pass {PLACES}.")
        self.places = [place.resolve() for place in places]
        self._entries: dict[str, Entry] = {}
        self._scanned, self._took_s = float("-inf"), 0.0
        self._lock = threading.Lock()

    def entries(self) -> list[Entry]:
        """Return all runs, sweeps and recordings, newest first."""
        with self._lock:
            began = time.monotonic()
            if began - self._scanned > max(STALE_S, SHARE * self._took_s):
                self._entries = {entry.id: entry for entry in scan(self.places)}
                self._scanned = time.monotonic()
                self._took_s = self._scanned - began
            return sorted(self._entries.values(), key=lambda entry: -entry.changed)

    def runs(self) -> list[Entry]:
        """Return the runs, newest first."""
        return [entry for entry in self.entries() if entry.kind == "run"]

    def recordings(self) -> list[Entry]:
        """Return the recordings, newest first."""
        return [entry for entry in self.entries() if entry.kind == "recording"]

    def find(self, id: str) -> Entry | None:
        """Return the entry with this id; None if there is none."""
        self.entries()
        return self._entries.get(id)

    def hide_path(self, sentence: str, id: str) -> str:
        """Return a sentence in a form that pages may show: printable, with the name of entry `id` in place of its path."""
        entry = self.find(id)
        return harmless(sentence.replace(str(entry.path), entry.name) if entry is not None else sentence)


def scan(places: Iterable[Path]) -> Iterator[Entry]:
    """Yield the runs and recordings in these places, at most MAX_ENTRIES, without following links."""
    bases = [
        (place, place.parent if place.is_file() or is_run(place) or is_sweep(place) else place) for place in places
    ]
    return islice((entry for place, base in bases for entry in _scan(place, base, False, DEPTH)), MAX_ENTRIES)


def _scan(path: Path, base: Path, in_run: bool, depth: int) -> Iterator[Entry]:
    try:
        if path.is_symlink():
            return
        if path.is_file():
            if path.suffix == SUFFIX:
                live = in_run and path.parent.name == "live"
                yield Entry(make_id(path), "recording", name_of(path, base), path, path.stat().st_mtime, live)
            return
        if not in_run and is_run(path):
            in_run = True
            log, config = path / "metrics.jsonl", path / "config.yaml"
            changed = (log if log.exists() else config).stat().st_mtime
            yield Entry(make_id(path), "run", name_of(path, base), path, changed)
        if not in_run and is_sweep(path):
            told = path / "summary.json"
            changed = (told if told.exists() else path / "sweep.json").stat().st_mtime
            yield Entry(make_id(path), "sweep", name_of(path, base), path, changed)
        if depth:
            for inner in sorted(path.iterdir()):
                if (inner.is_dir() and inner.name not in ("checkpoints", "tensorboard")) or inner.suffix == SUFFIX:
                    yield from _scan(inner, base, in_run, depth - 1)
    except OSError:
        return  # deleted, or not readable


def name_of(path: Path, base: Path) -> str:
    """Return the path relative to `base` as text; bytes that are not UTF-8 are replaced."""
    name = os.fsencode(path.relative_to(base)).decode(errors="replace")
    return name if name != "." else path.name
