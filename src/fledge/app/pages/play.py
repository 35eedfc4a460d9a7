"""Play: a fight against a pilot, an agent or another person; and agents against each other, to be taken over at any moment.

/play                  who fights whom; a link such as /play?blue=you&red=crank&start=head_on&seed=7 begins that fight
/play/new              begins one (POST, JSON)            /play/{match}                the fight
/play/{match}/socket   see `ui/socket.py`                 /play/{match}/state.json     what the page shows, as figures
/play/{match}/fight.frec, fight.acmi                      the fight as a file
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
from fledge.app.server.layout import add_module, frame, mount
from fledge.app.server.server import Server
from fledge.core.errors import ConfigError, FledgeError

if TYPE_CHECKING:
    from fledge.app.play.match import Match
    from fledge.app.play.match_manager import Arena

SIDES = ("blue", "red")
FILES = {"fight.frec": "application/octet-stream", "fight.acmi": "text/plain; charset=utf-8"}


_opening = threading.Lock()


def arena_of(server: Server) -> Arena:
    """The app's arena; made when it is first asked for, for the simulator takes a moment to load."""
    from fledge.app.play.match_manager import Arena

    with _opening:
        found: Arena = server.arena or open_arena(server, Arena())
    for entry in server.shelf.runs():
        found.roster.put(entry.name, str(entry.path))
    return found


def open_arena(server: Server, arena: Arena) -> Arena:
    """Let the app's fights be in this arena; it closes with the app."""
    server.arena = arena
    server.closing.append(arena.close)
    return arena


def register(server: Server) -> None:
    """Add the page's routes."""

    @ui.page("/play", title="Play · Fledge", response_timeout=60.0)  # the simulator may have to be loaded
    async def lobby() -> None:
        from fledge.app.play.roster import PERSON

        arena = await asyncio.to_thread(arena_of, server)
        options = {
            "names": arena.roster.names(),
            "starts": arena.roster.starts(),
            "matches": arena.listed(),
            "person": PERSON,
            "task": arena.roster.task.name,
        }
        with frame("play"):
            add_styles()
            add_module("duel/lobby.js")
            mount("fledge-lobby", options)

    @ui.page("/play/{match}", title="Play · Fledge")
    async def fight(match: str) -> None:
        with frame("play"):
            add_styles()
            if find(server, match) is None:
                with ui.element("section").classes("fl-panel fd-lobby"):
                    ui.label("This fight is over and gone.")
                    ui.link("Begin another", "/play")
                return
            add_module("duel/duel.js")
            mount("fledge-duel", {"match": match})

    add_routes(server)


def add_styles() -> None:
    ui.add_head_html('<link rel="stylesheet" href="/assets/duel/duel.css">')


def find(server: Server, name: str) -> Match | None:
    return None if server.arena is None else server.arena.matches.get(name)


def add_routes(server: Server) -> None:
    """Data beside the pages."""

    @server.api.post("/play/new")
    async def begin(request: Request) -> Response:
        try:
            asked = json.loads(await request.body())
            names = [read_name(asked, side) for side in SIDES]
            start, seed = asked.get("start") or None, asked.get("seed")
            if not isinstance(start, str | None) or not isinstance(seed, int | None) or isinstance(seed, bool):
                raise ConfigError("The start must be a name, and the seed a whole number.")
            arena = await asyncio.to_thread(arena_of, server)
            name = await asyncio.to_thread(arena.begin, names, start, seed)
        except FledgeError as error:
            return answer({"error": str(error)}, 400)
        except (ValueError, AttributeError, RecursionError):
            return answer({"error": "The fight was not understood."}, 400)
        return answer({"id": name})

    @server.api.get("/play/{match}/state.json")
    async def state(match: str) -> Response:
        found = find(server, match)
        if found is None:
            return answer({"error": "This fight is over and gone."}, 404)
        graph = await asyncio.to_thread(found.graph_for, "")
        return answer(await asyncio.to_thread(found.told, "") | {"graph": None if graph is None else graph[2]})

    @server.api.get("/play/{match}/{file}")
    async def download(match: str, file: str) -> Response:
        found = find(server, match)
        if found is None or file not in FILES:
            return answer({"error": "There is no such file."}, 404)
        content = await asyncio.to_thread(as_file, found, file)
        name = f"fight-{found.fight.seed}{Path(file).suffix}"
        return Response(
            content, media_type=FILES[file], headers={"content-disposition": f'attachment; filename="{name}"'}
        )

    @server.api.websocket("/play/{match}/socket")
    async def socket(websocket: WebSocket, match: str) -> None:
        await serve_player(websocket, find(server, match))


def read_name(asked: Any, side: str) -> str:
    name = asked.get(side, "you")
    if not isinstance(name, str):
        raise ConfigError(f"{side} must be a name.")
    return name


def answer(content: Any, status: int = 200) -> Response:
    return Response(json.dumps(content, default=float), status, media_type="application/json")


def as_file(match: Match, file: str) -> bytes:
    """The fight so far, as a recording or for Tacview."""
    from fledge.evaluate.recordings import convert_recording

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fight.frec"
        with match.lock:
            match.fight.save(path)
        if file.endswith(".acmi"):
            convert_recording(path, path.with_suffix(".acmi"), None, match.fight.task.reference)
            path = path.with_suffix(".acmi")
        return path.read_bytes()
