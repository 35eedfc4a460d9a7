"""Training: curves of one or several runs, their settings, and their checkpoints.

The page itself is `static/charts/training.js`; everything it shows is JSON under /api.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse, Response
from nicegui import ui

from fledge.app.runs import runs as shown
from fledge.app.runs.file_index import Entry
from fledge.app.runs.runs import describe_fully
from fledge.app.server.layout import add_module, add_styles, frame, mount
from fledge.app.server.server import Server

LABEL, PATH, ORDER = "Training", "/", 10
MAX_RUNS = 8  # that the page compares


def register(server: Server) -> None:
    """Add the training page and its data routes."""

    @ui.page(PATH, title="Training · Fledge")
    def page() -> None:
        add_styles("charts")
        add_module("charts/training.js")
        with frame(PATH):
            mount("fledge-training")

    def run_of(id: str) -> Entry:
        entry = server.files.find(id)
        if entry is None or entry.kind != "run":
            raise HTTPException(404, "This run does not exist any more: reload the page.")
        return entry

    def runs_of(ids: str) -> list[Entry]:
        return [run_of(id) for id in ids.split(",")[:MAX_RUNS] if id]

    @server.api.get("/api/runs")
    def runs() -> Any:
        return JSONResponse({"runs": server.runs.summaries(server.files.runs())})

    @server.api.get("/api/runs/{id}")
    def run(id: str, generation: int = 0, start: int = 0) -> Any:
        entry = run_of(id)
        curves = server.runs.curves(entry)
        return JSONResponse({"run": describe_fully(entry, curves), "curves": curves.since(generation, start)})

    @server.api.get("/api/settings")
    def settings(ids: str = "") -> Any:
        return JSONResponse(shown.compare_settings(runs_of(ids)))

    @server.api.get("/api/checkpoints/{id}")
    def checkpoints(id: str) -> Any:
        return JSONResponse({"files": shown.list_checkpoints(run_of(id))})

    @server.api.get("/api/doctor/{id}")
    def doctor(id: str) -> Any:
        # all ASCII: names of files may have bytes that are not UTF-8
        return Response(json.dumps(shown.examine(run_of(id))), media_type="application/json")

    @server.api.get("/api/save")
    def save(ids: str = "") -> Any:
        page = shown.as_page(shown.collect(runs_of(ids)))
        headers = {"content-disposition": 'attachment; filename="fledge-run.html"'}
        return Response(page, media_type="text/html", headers=headers)
