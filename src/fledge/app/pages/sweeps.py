"""Sweeps: history, importances, parallel coordinates and slices of a sweep, live, with links to the runs of its trials.

The page reads only the sweep's `summary.json`, which the workers replace after every event; it never opens the study.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from nicegui import ui

from fledge.app.runs.file_index import Entry, make_id
from fledge.app.server.layout import add_module, add_styles, frame, mount
from fledge.app.server.server import Server
from fledge.tuning.summary import read_summary

LABEL, PATH, ORDER = "Sweeps", "/sweeps", 15
QUIET_S = 60.0  # a sweep counts as stopped if its summary is older


def summary_of(entry: Entry) -> dict[str, Any]:
    """Return the summary of a sweep for the page: with its present state, and the ids of the trials' runs."""
    found = read_summary(entry.path)
    trials = [row for row in found.get("trials", []) if isinstance(row, dict) and isinstance(row.get("run"), str)]
    for row in trials:
        run = entry.path / row["run"]
        row["id"] = make_id(run) if run.is_dir() and run.resolve().is_relative_to(entry.path.resolve()) else None
    state = str(found.get("state", "new"))
    if state in ("search", "confirm") and time.time() - entry.changed > QUIET_S:
        state = "stopped"
    return {**found, "trials": trials, "state": state, "id": entry.id, "name": entry.name}


def register(server: Server) -> None:
    """Add the page and its data routes."""

    @ui.page(PATH, title="Sweeps · Fledge")
    def page() -> None:
        add_styles("charts")
        add_styles("sweeps")
        add_module("sweeps/sweeps.js")
        with frame(PATH):
            mount("fledge-sweeps")

    @server.api.get("/api/sweeps")
    def sweeps() -> Any:
        found = [entry for entry in server.files.entries() if entry.kind == "sweep"]
        return JSONResponse({"sweeps": [{"id": entry.id, "name": entry.name} for entry in found]})

    @server.api.get("/api/sweeps/{id}")
    def sweep(id: str) -> Any:
        entry = server.files.find(id)
        if entry is None or entry.kind != "sweep":
            raise HTTPException(404, "This sweep does not exist any more: reload the page.")
        return JSONResponse(summary_of(entry))
