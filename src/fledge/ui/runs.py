"""What a page tells of runs besides their curves: how far they are, their settings, their checkpoints.

Everything is read from the run's folder, and nothing of it is trusted: settings are plain YAML without anchors, sizes are
bounded, and what cannot be read is a sentence.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from fledge.core.errors import FledgeError
from fledge.ui.chart_list import lay_out
from fledge.ui.metrics import Curves
from fledge.ui.shelf import Entry

MAX_CONFIG = 200_000  # bytes
MAX_KEPT = 64  # runs whose curves are kept
MAX_FILES = 500  # checkpoints in a table
QUIET_S = 30.0  # without a new row, or five times what rows take, a run is not running


class Library:
    """The curves of the runs that are looked at, shared by all who look. The oldest give way."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Curves] = OrderedDict()
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


TAIL = 65536  # bytes at the end of the metrics that tell how far a run is


def glance(entry: Entry) -> dict[str, Any]:
    """A run in a few figures, for a list of many: from the end of its metrics alone."""
    curves = Curves(entry.path / "metrics.jsonl")
    if entry.file("metrics.jsonl") is not None:
        curves.read_end(TAIL)
    told = describe(entry, curves)
    del told["sections"]
    return told


def describe(entry: Entry, curves: Curves) -> dict[str, Any]:
    """A run in a few figures, and the charts that its metrics make."""
    settings, trouble = read_settings(entry)
    last, headline = curves.last, curves.headline
    share = headline != "return"
    total = settings.get("total_frames")
    value = last.get(f"{headline}_recent", last.get(headline))
    return {
        "id": entry.id,
        "name": entry.name,
        "task": str(settings.get("task", "")),
        "algo": str(settings.get("algo", "")),
        "state": state_of(entry, curves, total),
        "trouble": trouble,
        "changed": entry.changed,
        "headline": {"name": headline, "value": value, "share": share},
        "step": last.get("step"),
        "frames": last.get("frames"),
        "total_frames": total if isinstance(total, int | float) else None,
        "seconds": last.get("seconds"),
        "frames_per_second": last.get("frames_per_second"),
        "return": last.get("return"),
        "memory_mb": last.get("memory_mb"),
        "saves": last.get("checkpoint/saves"),
        "stall_p99_ms": last.get("checkpoint/stall_p99_ms"),
        "sections": lay_out(curves.columns, headline, curves.outcomes),
    }


def state_of(entry: Entry, curves: Curves, total: Any) -> str:
    """running, finished, stopped, or new: nothing was written yet."""
    frames = curves.last.get("frames", 0.0)
    if isinstance(total, int | float) and curves.rows and frames >= total:
        return "finished"
    pace = curves.last.get("seconds", 0.0) / max(curves.last.get("step", 1.0), 1.0)
    try:
        quiet = time.time() - (entry.path / "metrics.jsonl").stat().st_mtime
    except OSError:
        return "new"
    if quiet < max(QUIET_S, 5 * pace):
        return "running" if curves.rows else "new"
    return "stopped" if curves.rows else "new"


def read_settings(entry: Entry) -> tuple[dict[str, Any], str]:
    """A run's settings by dotted key, and what is wrong with them, "" where nothing is."""
    path = entry.file("config.yaml")
    if path is None:
        return {}, "This run has no config.yaml."
    try:
        with open(path, "rb") as stream:
            text = stream.read(MAX_CONFIG + 1)
        if len(text) > MAX_CONFIG:
            return {}, f"config.yaml is larger than {MAX_CONFIG:,} bytes: it is no run's."
        content = yaml.load(text, PlainLoader)
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, f"config.yaml cannot be read ({str(error).splitlines()[0]})."
    if not isinstance(content, dict):
        return {}, "config.yaml is no run's: it must map settings to values."
    return flat(content), ""


class PlainLoader(yaml.CSafeLoader):
    """Plain values; anchors, by which a few lines become gigabytes, are refused."""

    def compose_node(self, parent: Any, index: int) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has anchors, which no run's settings have")
        return super().compose_node(parent, index)


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
        for path in sorted(folder.iterdir()):
            if path.suffix == ".fledge" and not path.name.startswith("."):
                stat = path.stat()
                rows.append({"file": path.name, "bytes": stat.st_size, "changed": stat.st_mtime})
    except OSError:
        pass
    return rows[-MAX_FILES:]


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
        with self._lock:
            try:
                report = examine_folder(folder)
            except (FledgeError, OSError) as error:
                return {"trouble": str(error).replace(str(folder), entry.name)}
        lines = [line.replace(str(folder), entry.name) for line in render(report)]
        return {**report.as_dict(), "folder": entry.name, "lines": lines}
