"""Training: curves of one or several runs, their settings, and the health of their checkpoints.

The page itself is `charts/training.js`; here is what it asks for. Everything it shows is JSON under /api.
"""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse, Response
from nicegui import ui

from fledge.app.runs.file_index import Entry
from fledge.app.runs.runs import Doctor, Library, compare_settings, describe_fully, list_checkpoints
from fledge.app.runs.saved_run import as_page, collect
from fledge.app.server.layout import add_module, add_style, frame, mount
from fledge.app.server.server import Server

MAX_RUNS = 8  # side by side
GONE = "There is no such run here any more."


def register(server: Server) -> None:
    """Add the page's routes."""
    library, doctor = Library(), Doctor()

    @ui.page("/", title="Training · Fledge")
    def page() -> None:
        add_style("charts/training.css")
        add_module("charts/training.js")
        with frame("training"):
            mount("fledge-training")

    def run_of(id: str) -> Entry:
        entry = server.shelf.find(id)
        if entry is None or entry.kind != "run":
            raise HTTPException(404, GONE)
        return entry

    def runs_of(ids: str) -> list[Entry]:
        return [run_of(id) for id in ids.split(",")[:MAX_RUNS] if id]

    @server.api.get("/api/runs")
    def runs() -> Any:
        return JSONResponse({"runs": [library.glance(entry) for entry in server.shelf.runs()]})

    @server.api.get("/api/runs/{id}")
    def run(id: str, generation: int = 0, start: int = 0) -> Any:
        entry = run_of(id)
        curves = library.curves(entry)
        return JSONResponse({"run": describe_fully(entry, curves), "curves": curves.since(generation, start)})

    @server.api.get("/api/settings")
    def settings(ids: str = "") -> Any:
        return JSONResponse(compare_settings(runs_of(ids)))

    @server.api.get("/api/checkpoints/{id}")
    def checkpoints(id: str) -> Any:
        return JSONResponse({"files": list_checkpoints(run_of(id))})

    @server.api.get("/api/doctor/{id}")
    def examine(id: str) -> Any:
        return JSONResponse(doctor.examine(run_of(id)))

    @server.api.get("/api/save")
    def save(ids: str = "") -> Any:
        page = as_page(collect(runs_of(ids)))
        headers = {"content-disposition": 'attachment; filename="fledge-run.html"'}
        return Response(page, media_type="text/html", headers=headers)
