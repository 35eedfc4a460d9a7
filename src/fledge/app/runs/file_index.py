"""FileIndex: what may be shown. Runs and recordings under the places that were given, by ids that the server made.

    shelf = FileIndex([Path("runs")])
    shelf.runs(), shelf.recordings()       entries, newest first
    shelf.find("4f2a…")                    the entry, or None; a path is never taken from outside

An id is a hash of the place, so that a link outlives the server. The shelf looks again every few seconds.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fledge.core.errors import ConfigError

SUFFIX = ".frec"
DEPTH = 5  # folders below a given one
MOST = 2000  # entries
STALE_S = 3.0
SHARE = 10.0  # what looking took, so many times, passes until the next look: a whole disk may have been given

Kind = Literal["run", "recording"]


@dataclass(frozen=True)
class Entry:
    """One thing to show.

    Attributes:
        id: What a page and a link call it.
        kind: What it is.
        name: What a person calls it: its path below the place that was given.
        path: Where it is; it does not leave the server.
        changed: When it was last written to, seconds since 1970.
        run: Of a recording in a run's folder, the run's id.
        live: Of a recording that a training is writing for watchers.
    """

    id: str
    kind: Kind
    name: str
    path: Path
    changed: float
    run: str | None = None
    live: bool = False

    def file(self, *names: str) -> Path | None:
        """A file of a run's folder, if it is one and lies in it: a link that leads out of it does not count."""
        path = self.path.joinpath(*names)
        try:
            return path if path.resolve().is_relative_to(self.path.resolve()) and path.is_file() else None
        except (OSError, RuntimeError):
            return None

    def as_dict(self) -> dict[str, object]:
        """What a page may know."""
        return {"id": self.id, "kind": self.kind, "name": self.name, "changed": self.changed, "run": self.run,
                "live": self.live}  # fmt: skip


def make_id(path: Path) -> str:
    """The id of a place."""
    return hashlib.blake2b(os.fsencode(path.resolve()), digest_size=6).hexdigest()


def is_run(path: Path) -> bool:
    """Whether a folder is a run's."""
    return (path / "config.yaml").is_file() or (path / "metrics.jsonl").is_file()


class FileIndex:
    """What may be shown.

    Args:
        places: Runs, recordings, or folders that hold such; they may be empty yet.
        awaited: Places may not be there yet, either.

    Raises:
        ConfigError: when there is no such place, or a file that is no recording.
    """

    def __init__(self, places: Sequence[Path] = (), awaited: bool = False) -> None:
        for place in places:
            if not place.exists() and not awaited:
                raise ConfigError(f"{place} is not there: give a run's folder, a folder of runs, or a {SUFFIX} file.")
            if place.is_file() and place.suffix != SUFFIX:
                raise ConfigError(
                    f"{place} is no recording: give a run's folder, a folder of runs, or a {SUFFIX} file."
                )
        self.places = [place.resolve() for place in places]
        self._entries: dict[str, Entry] = {}
        self._looked, self._took_s = float("-inf"), 0.0
        self._lock = threading.Lock()

    def add(self, place: Path) -> Entry:
        """Put one more thing on the shelf, for example a fight that was just recorded."""
        with self._lock:
            self.places.append(place.resolve())
            self._looked = float("-inf")
        found = self.find(make_id(place))
        assert found is not None, f"{place} is neither a run nor a recording"
        return found

    def entries(self) -> list[Entry]:
        """All of them, newest first."""
        with self._lock:
            began = time.monotonic()
            if began - self._looked > max(STALE_S, SHARE * self._took_s):
                self._entries = {entry.id: entry for entry in look_through(self.places)}
                self._looked = time.monotonic()
                self._took_s = self._looked - began
            return sorted(self._entries.values(), key=lambda entry: -entry.changed)

    def runs(self) -> list[Entry]:
        """The runs, newest first."""
        return [entry for entry in self.entries() if entry.kind == "run"]

    def recordings(self) -> list[Entry]:
        """The recordings, newest first."""
        return [entry for entry in self.entries() if entry.kind == "recording"]

    def find(self, id: str) -> Entry | None:
        """The entry of this id."""
        self.entries()
        return self._entries.get(id)

    def hide_place(self, sentence: str, id: str) -> str:
        """What to tell a page about an entry; where it is on this machine stays here."""
        entry = self.find(id)
        return sentence.replace(str(entry.path), entry.name) if entry is not None else sentence


def look_through(places: Iterable[Path]) -> Iterator[Entry]:
    """The entries under some places; links in them are not followed: they may lead out, or round and round."""
    count = 0
    for place in places:
        base = place.parent if place.is_file() or is_run(place) else place
        for entry in _look(place, base, None, DEPTH):
            yield entry
            count += 1
            if count >= MOST:
                return


def _look(path: Path, base: Path, run: str | None, depth: int) -> Iterator[Entry]:
    try:
        if path.is_symlink():
            return
        if path.is_file():
            if path.suffix == SUFFIX:
                changed = path.stat().st_mtime
                live = run is not None and path.parent.name == "live"
                yield Entry(make_id(path), "recording", name_of(path, base), path, changed, run, live)
            return
        if run is None and is_run(path):
            run = make_id(path)
            yield Entry(run, "run", name_of(path, base), path, changed_at(path))
        if depth:
            for inner in sorted(path.iterdir()):
                if (inner.is_dir() and inner.name not in ("checkpoints", "tensorboard")) or inner.suffix == SUFFIX:
                    yield from _look(inner, base, run, depth - 1)
    except OSError:
        return  # gone, or not ours to read


def name_of(path: Path, base: Path) -> str:
    """A path below a place, as people read it, whatever bytes it has."""
    name = os.fsencode(path.relative_to(base)).decode(errors="replace")
    return name if name != "." else path.name


def changed_at(run: Path) -> float:
    """When a run was last written to."""
    for name in ("metrics.jsonl", "config.yaml"):
        try:
            return (run / name).stat().st_mtime
        except OSError:
            continue
    return 0.0
