"""Runs as one HTML file that needs no server: the same page, with its scripts, styles and data inside.

data = collect(entries)                   what the page shows, as plain data: also what `fledge watch --json` prints
as_page(data)                             the HTML
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fledge.app.exporters.bundle import page
from fledge.app.runs.file_index import Entry
from fledge.app.runs.metrics import Curves
from fledge.app.runs.runs import Doctor, compare_settings, describe_fully, list_checkpoints

MODULES = ("format", "scale", "hub", "lines", "chart", "source", "tables", "summary", "training")
PARTS = tuple(f"charts/{name}.js" for name in MODULES)
STYLES = ("style.css", "charts/training.css")


def collect(entries: Sequence[Entry], examine: bool = False) -> dict[str, Any]:
    """All that the training page shows of some runs; with `examine` also what `fledge doctor` says, which reads a lot."""
    runs = []
    for entry in entries:
        curves = Curves(entry.path / "metrics.jsonl")
        if entry.file("metrics.jsonl") is not None:
            while curves.refresh():
                pass
        runs.append({"run": describe_fully(entry, curves), "curves": curves.since()})
    doctor = Doctor()
    checkpoints = {
        entry.id: {"files": list_checkpoints(entry), **({"doctor": doctor.examine(entry)} if examine else {})}
        for entry in entries
    }
    return {"runs": runs, "settings": compare_settings(entries), "checkpoints": checkpoints}


def as_page(data: dict[str, Any]) -> str:
    """The page as one file."""
    names = ", ".join(each["run"]["name"] for each in data["runs"])
    return page(f"{names} · Fledge", "<fledge-training></fledge-training>", data, PARTS, STYLES)
