"""Runs as one HTML file that needs no server: the training page with its scripts, styles and data inside.

data = collect(entries)                   what the page shows, as plain data: also what `fledge watch --json` prints
as_page(data)                             the HTML
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fledge.app.runs.file_index import Entry, FileIndex
from fledge.app.runs.metrics import Curves
from fledge.app.runs.runs import compare_settings, describe_fully, examine, list_checkpoints
from fledge.app.server.assets import STATIC
from fledge.app.server.bundle import make_page
from fledge.core.errors import ConfigError

MODULE = STATIC / "charts" / "training.js"


def save_runs(places: Sequence[Path], target: Path | None = None) -> dict[str, Any]:
    """Return what the training page shows of the runs in some places; write it as a page if `target` is given.

    Raises:
        ConfigError: There is no run, or `target` is not an .html file.
    """
    if target is not None and target.suffix != ".html":
        raise ConfigError(f"{target} must end in .html.")
    runs = FileIndex(places).runs()
    if not runs:
        raise ConfigError(f"{' and '.join(map(str, places))}: no run found. Pass a run's folder, or a folder of runs.")
    data = collect(runs, verify=True)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(as_page(data), encoding="utf-8")
    return data


def collect(entries: Sequence[Entry], verify: bool = False) -> dict[str, Any]:
    """Return all that the training page shows of some runs; with `verify`, also verify their checkpoints (slow)."""
    runs = []
    for entry in entries:
        curves = Curves(entry.path / "metrics.jsonl")
        if entry.file("metrics.jsonl") is not None:
            while curves.refresh():
                pass
        runs.append({"run": describe_fully(entry, curves), "curves": curves.since()})
    checkpoints = {
        entry.id: {"files": list_checkpoints(entry), **({"doctor": examine(entry)} if verify else {})}
        for entry in entries
    }
    return {"runs": runs, "settings": compare_settings(entries), "checkpoints": checkpoints}


def as_page(data: dict[str, Any]) -> str:
    """Return the page as HTML."""
    names = ", ".join(each["run"]["name"] for each in data["runs"])
    return make_page(f"{names} · Fledge", "<fledge-training></fledge-training>", data, "charts", [MODULE])
