"""Watch recordings and live trainings in a 3-D scene or on a map.

/watch                                  list of runs and recordings     /watch/{entry}    the player
/recordings/{id}                        the list of episodes (JSON)
/recordings/{id}/{number}               an episode (see `recordings/episode_payload.py`), its /beams and its /graph
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from nicegui import run, ui
from starlette.responses import FileResponse, JSONResponse, Response

from fledge.app.runs.file_index import Entry
from fledge.app.server.assets import CACHE, three_path
from fledge.app.server.layout import add_module, add_styles, frame, mount
from fledge.app.server.server import Server
from fledge.core.errors import FledgeError

if TYPE_CHECKING:
    from fledge.app.recordings.recording_cache import RecordingCache

LABEL, PATH, ORDER = "Watch", "/watch", 20
THREE = "/player/three.js"
LIVE_S = 120.0  # a run that wrote something within this time is marked live
MAX_SHOWN = 100  # runs, and as many recordings
MAX_SUMMARIES = 24  # recordings that are opened for the list

_opening = threading.Lock()


def recordings_of(server: Server) -> RecordingCache:
    """Return the app's recording cache; the first call creates it, because loading a task takes seconds."""
    with _opening:
        if server.recordings is None:
            from fledge.app.recordings.recording_cache import RecordingCache
            from fledge.tasks.registry import find_task

            task = find_task(server.config.task) if server.config.task else None
            server.recordings = RecordingCache(server.files, task, server.task_pages)
            server.closing.append(server.recordings.close)
        found: RecordingCache = server.recordings
    return found


def register(server: Server) -> None:
    """Add the list, the player page, and their data routes."""
    add_routes(server)
    if server.config.task:  # report a wrong task before anything is served
        recordings_of(server)
    elif server.files.recordings():  # they will probably be shown: load their tasks now
        threading.Thread(target=recordings_of, args=(server,), daemon=True).start()

    @ui.page(PATH, title="Watch · Fledge", response_timeout=60.0)  # loading a task may take that long
    async def list_page() -> None:
        recordings = [entry for entry in server.files.recordings() if not entry.live][:MAX_SHOWN]
        some = recordings[:MAX_SUMMARIES]
        summaries = await run.io_bound(lambda: [recordings_of(server).summary(entry) for entry in some])
        with frame(PATH):
            add_styles("player")
            show_list(server.files.runs()[:MAX_SHOWN], recordings, summaries or [])

    @ui.page("/watch/{entry}", title="Watch · Fledge")
    def player_page(entry: str) -> None:
        found = server.files.find(entry)
        with frame(PATH):
            add_styles("player")
            if found is None:
                with ui.element("section").classes("fl-panel fp-empty"):
                    ui.label("This recording does not exist any more.").classes("fl-error")
                    ui.link("Back to the list", PATH)
                return
            mount("fledge-player", {"entry": found.id, "three": THREE, "live": found.kind == "run"})
            add_module("player/player.js")


def add_routes(server: Server) -> None:
    """Add the data routes of the player: episodes, beams, graphs, three.js."""

    def answer(id: str, make: Callable[[RecordingCache], Any]) -> Response:
        try:
            found = make(recordings_of(server))
        except FledgeError as error:
            return JSONResponse({"error": server.files.hide_path(str(error), id).rstrip(".")}, status_code=404)
        if isinstance(found, bytes):
            return Response(found, media_type="application/octet-stream")
        return JSONResponse(found)

    @server.api.get(THREE)
    def three() -> Response:
        return FileResponse(three_path(), media_type="text/javascript", headers=CACHE)

    @server.api.get("/recordings/{id}")
    def episodes(id: str) -> Response:
        return answer(id, lambda cache: cache.list(id))

    @server.api.get("/recordings/{id}/{number}")
    def episode(id: str, number: int, start: int = 0, stage: int = 1, of: str = "") -> Response:
        return answer(id, lambda cache: cache.episode(id, number, start, bool(stage), of))

    @server.api.get("/recordings/{id}/{number}/beams")
    def beams(id: str, number: int, start: int = 0, stop: int = 128, of: str = "") -> Response:
        return answer(id, lambda cache: cache.beams(id, number, start, stop, of))

    @server.api.get("/recordings/{id}/{number}/graph")
    def graph(id: str, number: int, frame: int = 0, of: str = "") -> Response:
        return answer(id, lambda cache: cache.graph(id, number, frame, of))


def show_list(runs: Sequence[Entry], recordings: Sequence[Entry], summaries: Sequence[str]) -> None:
    """Show a card for each run and recording."""
    if not recordings and not runs:
        with ui.element("section").classes("fl-panel fp-empty"):
            ui.label("Nothing to watch yet.").classes("fp-heading")
            ui.label("Trainings and recordings in the given folders appear here. To make some:")
            for command in ("fledge train navigation", "fledge eval fledge-nav --record flights.frec"):
                ui.label(command).classes("fp-command")
        return
    if runs:
        ui.label("Trainings").classes("fp-heading")
        with ui.element("div").classes("fp-cards"):
            for entry in runs:
                fresh = time.time() - entry.changed < LIVE_S
                show_card(entry, "live" if fresh else f"last written {ago(entry.changed)}", fresh)
    if recordings:
        ui.label("Recordings").classes("fp-heading")
        with ui.element("div").classes("fp-cards"):
            for entry, summary in zip(recordings, chain(summaries, repeat("")), strict=False):
                show_card(entry, f"{size_of(entry)}, {ago(entry.changed)}", False, summary)


def show_card(entry: Entry, note: str, fresh: bool, summary: str = "") -> None:
    with ui.link(target=f"/watch/{entry.id}").classes("fl-panel fp-card"):
        ui.label(entry.name).classes("fp-card-name")
        if summary:
            ui.label(summary)
        ui.label(note).classes("fp-card-live" if fresh else "fl-note")


def size_of(entry: Entry) -> str:
    """Return the size of an entry's file as text, such as "3.2 MB"."""
    try:
        size = entry.path.stat().st_size
    except OSError:
        return "deleted"
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def ago(when: float) -> str:
    """Return how long ago a time (seconds since 1970) was, as text such as "2 hours ago"."""
    seconds = max(0.0, time.time() - when)
    for length, word in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {word}{'s' if count > 1 else ''} ago"
    return "just now"
