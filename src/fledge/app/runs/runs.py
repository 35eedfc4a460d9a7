"""What a page tells of runs besides their curves: how far they are, their settings, their checkpoints.

Everything is read from the run's folder, and nothing of it is trusted: settings are plain YAML without anchors, sizes are
bounded, and what cannot be read is a sentence.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import yaml

from fledge.app.runs.chart_list import lay_out
from fledge.app.runs.file_index import Entry
from fledge.app.runs.metrics import Curves, Row, is_number, primary_metric_of, read_last
from fledge.core.errors import FledgeError

MAX_CONFIG = 200_000  # bytes
MAX_DEPTH = 32  # of settings in settings
MAX_KEPT = 64  # runs whose curves are kept
MAX_FILES = 500  # checkpoints in a table
TAIL = 16384  # bytes at the end of the metrics that tell how far a run is
QUIET_S = 30.0  # without a new row, or five times what rows take, a run is not running


class Library:
    """The curves of the runs that are looked at, shared by all who look. The oldest give way."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Curves] = OrderedDict()
        self._glances: dict[str, tuple[float, Row]] = {}
        self._lock = threading.Lock()

    def curves(self, entry: Entry) -> Curves:
        """A run's curves, with what has been written since."""
        with self._lock:
            curves = self._kept.setdefault(entry.id, Curves(entry.path / "metrics.jsonl"))
            self._kept.move_to_end(entry.id)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        if entry.file("metrics.jsonl") is not None:
            curves.refresh()
        return curves

    def glance(self, entry: Entry) -> dict[str, Any]:
        """A run in a few figures, for a list of many: from the end of its metrics alone, read when they have changed."""
        path = entry.file("metrics.jsonl")
        changed = path.stat().st_mtime if path is not None else 0.0
        known = self._glances.get(entry.id)
        if known is None or known[0] != changed:
            known = self._glances[entry.id] = changed, read_last(path, TAIL) if path is not None else {}
        return describe(entry, known[1])


def describe(entry: Entry, last: Mapping[str, float]) -> dict[str, Any]:
    """A run in a few figures, by the newest of its metrics."""
    settings, trouble = read_settings(entry)
    primary_metric = primary_metric_of(last)
    total = settings.get("total_frames")
    figures = ("step", "frames", "seconds", "frames_per_second", "return", "memory_mb")
    return {
        "id": entry.id,
        "name": entry.name,
        "task": str(settings.get("task", "")),
        "algo": str(settings.get("algo", "")),
        "state": state_of(entry, last, total),
        "trouble": trouble,
        "changed": entry.changed,
        "headline": {
            "name": primary_metric,
            "value": last.get(f"{primary_metric}_recent", last.get(primary_metric)),
            "share": primary_metric != "return",
        },
        "total_frames": total if is_number(total) else None,
        **{name: last.get(name) for name in figures},
        "saves": last.get("checkpoint/saves"),
        "stall_p99_ms": last.get("checkpoint/stall_p99_ms"),
    }


def describe_fully(entry: Entry, curves: Curves) -> dict[str, Any]:
    """The same, and the charts that its metrics make."""
    return {**describe(entry, curves.last), "sections": lay_out(curves.columns, curves.primary_metric, curves.outcomes)}


def state_of(entry: Entry, last: Mapping[str, float], total: Any) -> str:
    """running, finished, stopped, or new: nothing was written yet."""
    if not last:
        return "new"
    if is_number(total) and last.get("frames", 0.0) >= total:
        return "finished"
    pace = last.get("seconds", 0.0) / max(last["step"], 1.0)
    try:
        quiet = time.time() - (entry.path / "metrics.jsonl").stat().st_mtime
    except OSError:
        return "stopped"
    return "running" if quiet < max(QUIET_S, 5 * pace) else "stopped"


def read_settings(entry: Entry) -> tuple[dict[str, Any], str]:
    """A run's settings by dotted key, and what is wrong with them, "" where nothing is."""
    path = entry.file("config.yaml")
    if path is None:
        return {}, "This run has no config.yaml." if entry.path.is_dir() else "This run's folder is not there any more."
    try:
        with open(path, "rb") as stream:
            text = stream.read(MAX_CONFIG + 1)
        if len(text) > MAX_CONFIG:
            return {}, f"config.yaml is larger than {MAX_CONFIG:,} bytes: it is no run's."
        content = parse_plain(text)
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, f"config.yaml cannot be read ({str(error).splitlines()[0]})."
    if not isinstance(content, dict):
        return {}, "config.yaml is no run's: it must map settings to values."
    return flat(content), ""


@functools.lru_cache(maxsize=256)
def parse_plain(text: bytes) -> Any:
    """Plain values of YAML. Anchors, by which a few lines become gigabytes, are refused; and depth: libyaml's loader calls
    itself for each level, until the process is out of stack.
    """
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("it has anchors, which no run's settings have")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested deeper than {MAX_DEPTH} levels, as no run's settings are")
    try:
        return yaml.load(text, yaml.CSafeLoader)
    except (LookupError, AttributeError, TypeError) as error:  # what a tag such as !!bool makes of other text
        raise yaml.YAMLError("a value is not what its tag says") from error


def flat(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def compare_settings(entries: Iterable[Entry]) -> dict[str, Any]:
    """Settings of several runs side by side: rows of a key and each run's value as text, those that differ marked."""
    read = [(entry, *read_settings(entry)) for entry in entries]
    keys = dict.fromkeys(key for _, settings, _ in read for key in settings)
    rows = []
    for key in keys:
        values = [as_text(settings[key]) if key in settings else None for _, settings, _ in read]
        rows.append({"key": key, "values": values, "differs": len(set(values)) > 1})
    troubles = [f"{entry.name}: {trouble}" for entry, _, trouble in read if trouble]
    return {"runs": [entry.id for entry, _, _ in read], "rows": rows, "troubles": troubles}


def as_text(value: Any) -> str:
    """A setting's value as `key=value` words have it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def list_checkpoints(entry: Entry) -> list[dict[str, Any]]:
    """Files of a run's checkpoints, by name; none of them is opened."""
    folder = entry.path / "checkpoints"
    rows = []
    try:
        if not folder.resolve().is_relative_to(entry.path.resolve()):
            return []
        found = sorted(folder.iterdir())
    except OSError:
        return []
    for path in found:
        if path.suffix == ".fledge" and not path.name.startswith(".") and entry.file("checkpoints", path.name):
            with suppress(OSError):  # removed meanwhile
                stat = path.stat()
                name = os.fsencode(path.name).decode(errors="replace")
                rows.append({"file": name, "bytes": stat.st_size, "changed": stat.st_mtime})
    return rows[-MAX_FILES:]


def leads_out(entry: Entry) -> str:
    """The name of something among a run's checkpoints that is neither a folder nor a file that lies there; "" if none is."""
    for path in (entry.path / "checkpoints").iterdir():
        if (path.is_symlink() or not path.is_dir()) and path.exists() and entry.file("checkpoints", path.name) is None:
            return os.fsencode(path.name).decode(errors="replace")
    return ""


class Doctor:
    """What `fledge doctor` says of a run's checkpoints: it reads every byte, so one run at a time, and only when asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def examine(self, entry: Entry) -> dict[str, Any]:
        """The report, as `fledge doctor --json` has it without the place; or `{"trouble": sentence}`."""
        from fledge.storage.doctor import examine_folder, render

        folder = entry.path / "checkpoints"
        if not folder.resolve().is_relative_to(entry.path.resolve()) or not folder.is_dir():
            return {"trouble": "This run has saved no checkpoint yet."}
        if strange := leads_out(entry):
            return {"trouble": f"checkpoints/{strange} leads elsewhere: it is not read from here."}
        with self._lock:
            try:
                report = examine_folder(folder)
            except (FledgeError, OSError) as error:
                return {"trouble": str(error).replace(str(folder), entry.name)}
        lines = [line.replace(str(folder), entry.name) for line in render(report)]
        return {**report.as_dict(), "folder": entry.name, "lines": lines}
