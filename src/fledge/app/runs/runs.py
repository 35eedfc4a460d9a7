"""Data of runs for the training page (progress, settings, checkpoints), and the page saved as one file.

The files of a run's folder are not trusted: settings are plain YAML without anchors, sizes are bounded, and a file that
cannot be read becomes a message.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from fledge.app.runs.chart_list import lay_out
from fledge.app.runs.file_index import Entry, FileIndex
from fledge.app.runs.metrics import Curves, Row, primary_metric_of, read_last
from fledge.app.server.assets import STATIC, make_page
from fledge.core.errors import ConfigError, FledgeError
from fledge.core.paths import check_output
from fledge.core.yaml_text import parse_yaml
from fledge.monitor.metrics_file import is_number

MODULE = STATIC / "charts" / "training.js"
MAX_CONFIG = 200_000  # bytes
MAX_KEPT = 64  # runs whose curves are kept
MAX_FILES = 500  # checkpoints in a table
TAIL = 16384  # bytes at the end of the metrics from which a run's progress is read
parse_settings = functools.lru_cache(maxsize=256)(parse_yaml)  # pages read the same files again and again
QUIET_S = 30.0  # a run counts as stopped if its last row is older than this and than five times the time between rows


Brief = tuple[tuple[Any, ...], Row, tuple[dict[str, Any], str]]
"""Stamps of the files, the newest value of each metric, and the settings in the list, with trouble in reading them."""


class RunCache:
    """Keeps the curves of the runs that were shown last, for all pages."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Curves] = OrderedDict()
        self._briefs: dict[str, Brief] = {}
        self._lock = threading.Lock()

    def curves(self, entry: Entry) -> Curves:
        """Return a run's curves, after reading what was written since the last call."""
        with self._lock:
            curves = self._kept.setdefault(entry.id, Curves(entry.path / "metrics.jsonl"))
            self._kept.move_to_end(entry.id)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        if entry.file("metrics.jsonl") is not None:
            curves.refresh()
        return curves

    def summaries(self, entries: Iterable[Entry]) -> list[dict[str, Any]]:
        """Return the result of `describe` for each run; only files that have changed since the last call are read."""
        found = {entry.id: (entry, self._brief(entry)) for entry in entries}
        self._briefs = {id: brief for id, (_, brief) in found.items()}  # forget runs that are gone
        return [describe(entry, *brief[1:]) for entry, brief in found.values()]

    def _brief(self, entry: Entry) -> Brief:
        stamp = tuple(stamp_of(entry.path / name) for name in ("metrics.jsonl", "config.yaml"))
        known = self._briefs.get(entry.id)
        if known is not None and known[0] == stamp:
            return known
        log, (settings, trouble) = entry.file("metrics.jsonl"), read_settings(entry)
        few: dict[str, Any] = {key: settings[key] for key in ("task", "algo", "total_frames") if key in settings}
        return stamp, read_last(log, TAIL) if log is not None else {}, (few, trouble)


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return numbers that change when a file is written or replaced; none if it cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def describe(
    entry: Entry, last: Mapping[str, float], known: tuple[Mapping[str, Any], str] | None = None
) -> dict[str, Any]:
    """Return the state, task, algorithm and main metrics of a run.

    Args:
        last: The newest value of each metric.
        known: The result of `read_settings`, of which only the keys that are shown are needed; None reads them.
    """
    settings, trouble = known or read_settings(entry)
    metric, total = primary_metric_of(last), settings.get("total_frames")
    figures = ("step", "frames", "seconds", "frames_per_second", "return", "memory_mb")
    value = last.get(f"{metric}_recent", last.get(metric))
    return {
        "id": entry.id,
        "name": entry.name,
        "task": str(settings.get("task", "")),
        "algo": str(settings.get("algo", "")),
        "state": state_of(entry, last, total),
        "trouble": trouble,
        "changed": entry.changed,
        "headline": {"name": metric, "value": value, "share": metric != "return"},
        "total_frames": total if is_number(total) else None,
        **{name: last.get(name) for name in figures},
        "saves": last.get("checkpoint/saves"),
        "stall_p99_ms": last.get("checkpoint/stall_p99_ms"),
    }


def describe_fully(entry: Entry, curves: Curves) -> dict[str, Any]:
    """Return the result of `describe`, and the charts of the run's metrics under "sections"."""
    sections = lay_out(curves.columns, primary_metric_of(curves.columns), curves.outcomes)
    return {**describe(entry, curves.last), "sections": sections}


def state_of(entry: Entry, last: Mapping[str, float], total: Any) -> str:
    """Return "running", "finished", "stopped", or "new" if nothing was written yet."""
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
    """Return a run's settings by dotted key, and the reason why they cannot be read ("" if they can)."""
    if (path := entry.file("config.yaml")) is None:
        missing = "has no config.yaml" if entry.path.is_dir() else "does not exist any more"
        return {}, f"This run {missing}."
    try:
        with open(path, "rb") as stream:
            text = stream.read(MAX_CONFIG + 1)
        if len(text) > MAX_CONFIG:
            return {}, f"config.yaml is larger than {MAX_CONFIG:,} bytes, which no run's settings are."
        content = parse_settings(text)
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, f"config.yaml cannot be read ({str(error).splitlines()[0]})."
    if not isinstance(content, dict):
        return {}, "config.yaml must map settings to values."
    return flat(content), ""


def flat(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as a flat dict with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def compare_settings(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the settings of several runs side by side: for each key one value per run, and whether the values differ."""
    read = [(entry, *read_settings(entry)) for entry in entries]
    rows = []
    for key in dict.fromkeys(key for _, settings, _ in read for key in settings):
        values = [as_text(settings[key]) if key in settings else None for _, settings, _ in read]
        rows.append({"key": key, "values": values, "differs": len(set(values)) > 1})
    troubles = [f"{entry.name}: {trouble}" for entry, _, trouble in read if trouble]
    return {"runs": [entry.id for entry, _, _ in read], "rows": rows, "troubles": troubles}


def as_text(value: Any) -> str:
    """Return a setting's value as text, as written in `key=value`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        text = str(value)
    except ValueError:  # Python refuses to print larger numbers
        return "a whole number of more than 4,300 digits"
    return text if len(text) <= 200 else f"{text[:200]}…"


def list_checkpoints(entry: Entry) -> list[dict[str, Any]]:
    """Return the name, size in bytes and time of change of each checkpoint file of a run, as JSON-able values."""
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
            with suppress(OSError):  # deleted meanwhile
                stat = path.stat()
                name = os.fsencode(path.name).decode(errors="replace")
                rows.append({"file": name, "bytes": stat.st_size, "changed": stat.st_mtime})
    return rows[-MAX_FILES:]


def outside_link(entry: Entry) -> str:
    """Return the name of the first checkpoint file that is a link out of the run's folder; "" if there is none."""
    for path in (entry.path / "checkpoints").iterdir():
        if (path.is_symlink() or not path.is_dir()) and path.exists() and entry.file("checkpoints", path.name) is None:
            return os.fsencode(path.name).decode(errors="replace")
    return ""


_examining = threading.Lock()


def examine(entry: Entry) -> dict[str, Any]:
    """Verify a run's checkpoints: return the report of `fledge doctor --json` without paths, or `{"trouble": message}`.

    Only one run is verified at a time, as this reads every byte of its checkpoints.
    """
    from fledge.storage.doctor import examine_folder, render

    folder = entry.path / "checkpoints"
    if not folder.resolve().is_relative_to(entry.path.resolve()) or not folder.is_dir():
        return {"trouble": "This run has saved no checkpoint yet."}
    if strange := outside_link(entry):
        return {"trouble": f"checkpoints/{strange} is a link out of the run's folder, so the checkpoints are not read."}
    if not _examining.acquire(timeout=1.0):  # waiting for longer would use up the threads that answer other requests
        return {"trouble": "The checkpoints of another run are being verified. Try again when that is done."}
    try:
        report = examine_folder(folder)
    except (FledgeError, OSError) as error:
        return {"trouble": str(error).replace(str(folder), entry.name)}
    finally:
        _examining.release()
    lines = [line.replace(str(folder), entry.name) for line in render(report)]
    return {**report.as_dict(), "folder": entry.name, "lines": lines}


def save_runs(places: Sequence[Path], target: Path | None = None) -> dict[str, Any]:
    """Return the data of the training page for the runs in some files and folders; if `target` is given, save the page there.

    Raises:
        ConfigError: There is no run, or `target` is not an .html file.
    """
    if target is not None:
        check_output(target, (".html",))
    runs = FileIndex(places).runs()
    if not runs:
        raise ConfigError(f"{' and '.join(map(str, places))}: no run found. Pass a run's folder, or a folder of runs.")
    data = collect(runs, verify=True)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(as_page(data), encoding="utf-8")
    return data


def collect(entries: Sequence[Entry], verify: bool = False) -> dict[str, Any]:
    """Return the data of the training page for some runs; with `verify`, also verify their checkpoints (slow)."""
    runs = []
    for entry in entries:
        curves = Curves(entry.path / "metrics.jsonl")
        if entry.file("metrics.jsonl") is not None:
            while curves.refresh():
                pass
        runs.append({"run": describe_fully(entry, curves), "curves": curves.since()})
    checkpoints: dict[str, dict[str, Any]] = {entry.id: {"files": list_checkpoints(entry)} for entry in entries}
    for entry in entries if verify else ():
        checkpoints[entry.id]["doctor"] = examine(entry)
    return {"runs": runs, "settings": compare_settings(entries), "checkpoints": checkpoints}


def as_page(data: dict[str, Any]) -> str:
    """Return the training page with this data as one HTML file."""
    names = ", ".join(each["run"]["name"] for each in data["runs"])
    return make_page(f"{names} · Fledge", "<fledge-training></fledge-training>", data, "charts", [MODULE])
