"""Watch: recordings and live trainings in a 3-D scene or on a tactical map."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nicegui import run, ui
from starlette.responses import FileResponse, JSONResponse, Response

from fledge.app.exporters.three import three_path
from fledge.app.runs.file_index import Entry
from fledge.app.server.layout import add_module, frame, mount
from fledge.app.server.server import Server
from fledge.core.errors import FledgeError

if TYPE_CHECKING:
    from fledge.app.recording_cache import Library

THREE = "/player/three.js"
LIVE_S = 120.0  # a run that wrote something as recently is offered to be watched live
SHOWN = 100  # of each kind
BRIEFS = 24  # recordings that are looked into for the list


_opening = threading.Lock()


def library_of(server: Server) -> Library:
    """The app's library; opened when it is first asked for, for worlds take seconds and much memory to load."""
    with _opening:
        if server.library is None:
            from fledge.app.recording_cache import Library
            from fledge.tasks.registry import find_task

            server.library = Library(server.shelf, find_task(server.config.task) if server.config.task else None)
            server.closing.append(server.library.close)
        found: Library = server.library
    return found


def register(server: Server) -> None:
    """Add the page's routes."""
    add_routes(server)
    if server.config.task:  # what is wrong with it is told before anything is served
        library_of(server)
    elif server.shelf.recordings():  # somebody will want to see them
        threading.Thread(target=library_of, args=(server,), daemon=True).start()

    @ui.page("/watch", title="Watch · Fledge", response_timeout=60.0)  # a world's code may have to be loaded
    async def shelf_page() -> None:
        recordings = [entry for entry in server.shelf.recordings() if not entry.live][:SHOWN]
        briefs = await run.io_bound(lambda: [library_of(server).brief(entry) for entry in recordings[:BRIEFS]])
        with frame("watch"):
            add_styles()
            show_shelf(server.shelf.runs()[:SHOWN], recordings, briefs or [])

    @ui.page("/watch/{entry}", title="Watch · Fledge")
    def replay_page(entry: str) -> None:
        found = server.shelf.find(entry)
        with frame("watch"):
            if found is None:
                add_styles()
                with ui.element("section").classes("fl-panel fp-empty"):
                    ui.label("There is no such recording here any more.").classes("fl-error")
                    ui.link("Back to the list", "/watch")
                return
            show_player(found)


def add_routes(server: Server) -> None:
    """What the player asks for."""

    def answer(id: str, make: Callable[[Library], Any]) -> Response:
        try:
            found = make(library_of(server))
        except FledgeError as error:
            return JSONResponse({"error": server.shelf.hide_place(str(error), id).rstrip(".")}, status_code=404)
        if isinstance(found, bytes):
            return Response(found, media_type="application/octet-stream", headers={"cache-control": "no-store"})
        return JSONResponse(found, headers={"cache-control": "no-store"})

    @server.api.get(THREE)
    def three() -> Response:
        return FileResponse(three_path(), media_type="text/javascript")

    @server.api.get("/film/{id}")
    def films(id: str) -> Response:
        return answer(id, lambda library: library.list(id))

    @server.api.get("/film/{id}/{number}")
    def film(id: str, number: int, start: int = 0, stage: int = 1, of: str = "") -> Response:
        return answer(id, lambda library: library.film(id, number, start, bool(stage), of))

    @server.api.get("/film/{id}/{number}/beams")
    def beams(id: str, number: int, start: int = 0, stop: int = 128, of: str = "") -> Response:
        return answer(id, lambda library: library.beams(id, number, start, stop, of))

    @server.api.get("/film/{id}/{number}/graph")
    def graph(id: str, number: int, frame: int = 0, of: str = "") -> Response:
        return answer(id, lambda library: library.graph(id, number, frame, of))


def add_styles() -> None:
    ui.add_head_html('<link rel="stylesheet" href="/assets/player/player.css">')


def show_player(entry: Entry) -> None:
    """The player of a recording, or of a run's training."""
    add_styles()
    mount("fledge-player", {"entry": entry.id, "three": THREE, "live": entry.kind == "run"})
    add_module("player/player.js")


def show_shelf(runs: Sequence[Entry], recordings: Sequence[Entry], briefs: Sequence[str]) -> None:
    """What there is to watch."""
    if not recordings and not runs:
        with ui.element("section").classes("fl-panel fp-empty"):
            ui.label("Nothing to watch yet.").classes("fp-heading")
            ui.label("Trainings and recordings in the folders that were given appear here by themselves. To make some:")
            for command in ("fledge train navigation", "fledge eval fledge-nav --record flights.frec"):
                ui.label(command).classes("fp-command")
        return
    if runs:
        ui.label("Trainings").classes("fp-heading")
        with ui.element("div").classes("fp-shelf"):
            for entry in runs:
                fresh = time.time() - entry.changed < LIVE_S
                show_card(entry, "live" if fresh else f"last written {ago(entry.changed)}", fresh)
    if recordings:
        ui.label("Recordings").classes("fp-heading")
        with ui.element("div").classes("fp-shelf"):
            for place, entry in enumerate(recordings):
                brief = briefs[place] if place < len(briefs) else ""
                show_card(entry, f"{size_of(entry)}, {ago(entry.changed)}", False, brief)


def show_card(entry: Entry, note: str, fresh: bool, brief: str = "") -> None:
    with ui.link(target=f"/watch/{entry.id}").classes("fl-panel fp-card"):
        ui.label(entry.name).classes("fp-card-name")
        if brief:
            ui.label(brief)
        ui.label(note).classes("fp-card-live" if fresh else "fl-note")


def size_of(entry: Entry) -> str:
    try:
        size = entry.path.stat().st_size
    except OSError:
        return "gone"
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def ago(when: float) -> str:
    """How long ago, in words."""
    seconds = max(0.0, time.time() - when)
    for length, word in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {word}{'s' if count > 1 else ''} ago"
    return "just now"
