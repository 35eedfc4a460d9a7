"""Play a match against a scripted policy, a learned one or another person; or watch policies, and take over any time.

/play                  choose both sides; a link such as /play?blue=you&red=crank&start=head_on&seed=7 starts that match
/play/new              starts a match (POST, JSON)        /play/{match}                the match
/play/{match}/socket   see `play/socket.py`               /play/{match}/state.json     what the page shows
/play/{match}/fight.frec, fight.acmi                      the match as a file

The elements <fledge-lobby> and <fledge-match> are the task's own: `TaskView.page`/index.js defines them.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response, WebSocket
from nicegui import ui

from fledge.app.play.socket import serve_player
from fledge.app.server.layout import add_module, add_style, frame, mount
from fledge.app.server.server import Server
from fledge.core.errors import ConfigError, FledgeError

if TYPE_CHECKING:
    from fledge.app.play.match import Match
    from fledge.app.play.match_manager import MatchManager

LABEL, PATH, ORDER = "Play", "/play", 30
FILES = {"fight.frec": "application/octet-stream", "fight.acmi": "text/plain; charset=utf-8"}
OVER = "This match is over and was removed."

_opening = threading.Lock()


def matches_of(server: Server) -> MatchManager:
    """Return the app's match manager; the first call creates it, because loading the simulator takes a moment."""
    from fledge.app.play.match_manager import MatchManager

    with _opening:
        found: MatchManager = server.matches or use_matches(server, MatchManager())
    runs = server.files.runs()
    for entry, told in zip(runs, server.runs.summaries(runs), strict=True):
        if told["task"] == found.roster.task.reference:
            found.roster.put(entry.name, str(entry.path))
    return found


def use_matches(server: Server, matches: MatchManager) -> MatchManager:
    """Make `matches` the app's match manager, close it when the app stops, and return it."""
    server.matches = matches
    task = matches.roster.task
    if task.view.page is not None:
        server.task_pages[task.name] = task.view.page
    server.closing.append(matches.close)
    return matches


def register(server: Server) -> None:
    """Add the lobby, the match page, and their data routes."""

    @ui.page(PATH, title="Play · Fledge", response_timeout=60.0)  # loading the simulator may take that long
    async def lobby() -> None:
        from fledge.app.play.roster import PERSON

        matches = await asyncio.to_thread(matches_of, server)
        choices = {"names": matches.roster.names(), "starts": matches.roster.starts()}
        with frame(PATH):
            if add_task_page(server):
                mount("fledge-lobby", {**choices, "matches": matches.listed(), "person": PERSON})

    @ui.page("/play/{match}", title="Play · Fledge")
    async def match_page(match: str) -> None:
        with frame(PATH):
            if find(server, match) is None:
                with ui.element("section").classes("fl-panel"):
                    ui.label(OVER)
                    ui.link("Start another", PATH)
            elif add_task_page(server):
                mount("fledge-match", {"match": match})

    add_routes(server)


def add_task_page(server: Server) -> bool:
    """Load the task's scripts and styles into the page; if the task has none, show a message and return False."""
    name = server.matches.roster.task.name
    scripts = server.task_pages.urls(name, "index.js")
    if not scripts:
        ui.label(f"{name} cannot be played in the browser: its view has no page with an index.js.").classes("fl-error")
        return False
    for style in server.task_pages.urls(name, "*.css"):
        add_style(style)
    add_module(scripts[0])
    return True


def find(server: Server, name: str) -> Match | None:
    return None if server.matches is None else server.matches.matches.get(name)


def add_routes(server: Server) -> None:
    """Add the data routes of matches: start, state, files, socket."""

    @server.api.post("/play/new")
    async def begin(request: Request) -> Response:
        try:
            asked = json.loads(await request.body())
            names = [asked.get(side, "you") for side in ("blue", "red")]
            if not all(isinstance(name, str) for name in names):
                raise ConfigError('blue and red must be text: the name of a pilot or policy, or "you" for a person.')
            start, seed = asked.get("start") or None, asked.get("seed")
            if not isinstance(start, str | None):
                raise ConfigError(
                    f"start={start!r:.99} must be the name of a start position. Choose one that the page lists."
                )
            if not isinstance(seed, int | None) or isinstance(seed, bool):
                raise ConfigError(f"seed={seed!r:.99} must be a whole number, or left out for a random one.")
            matches = await asyncio.to_thread(matches_of, server)
            name = await asyncio.to_thread(matches.begin, names, start, seed)
        except FledgeError as error:
            return answer({"error": str(error)}, 400)
        except (ValueError, AttributeError, RecursionError):
            return answer({"error": "The request must be a JSON object with blue, red, start and seed."}, 400)
        return answer({"id": name})

    @server.api.get("/play/{match}/state.json")
    async def state(match: str) -> Response:
        found = find(server, match)
        if found is None:
            return answer({"error": OVER}, 404)
        graph = await asyncio.to_thread(found.graph_for, "")
        return answer(await asyncio.to_thread(found.state, "") | {"graph": None if graph is None else graph[2]})

    @server.api.get("/play/{match}/{file}")
    async def download(match: str, file: str) -> Response:
        found = find(server, match)
        if found is None or file not in FILES:
            return answer({"error": "This file does not exist."}, 404)
        content = await asyncio.to_thread(as_file, found, file)
        saved_as = f'attachment; filename="fight-{found.fight.seed}{Path(file).suffix}"'
        return Response(content, media_type=FILES[file], headers={"content-disposition": saved_as})

    @server.api.websocket("/play/{match}/socket")
    async def socket(websocket: WebSocket, match: str) -> None:
        await serve_player(websocket, find(server, match))


def answer(content: Any, status: int = 200) -> Response:
    return Response(json.dumps(content, default=float), status, media_type="application/json")


def as_file(match: Match, file: str) -> bytes:
    """Return the match so far as bytes: a recording if `file` is "fight.frec", else the format that its extension names."""
    from fledge.app.exporters import export_recording

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fight.frec"
        with match.lock:
            match.fight.save(path)
        if (target := Path(folder) / file) != path:
            export_recording(path, target, task=match.fight.task.reference)
        return target.read_bytes()
