"""The app as one object, and serving it.

    server = build(AppConfig(folders=[Path("runs")]))
    serve(server)                          until Ctrl-C

Pages are registered by their modules: `register(server)` adds routes to `server.api` (FastAPI) and pages by `ui.page`. One
process serves one app: NiceGUI's pages are global.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fledge.app.runs.file_index import FileIndex
from fledge.app.server.guard import MAX_MESSAGE, MIN_TOKEN, Guard, is_local, small_page
from fledge.core.errors import ConfigError
from fledge.core.extras import extra
from fledge.core.machine import limit_malloc_arenas
from fledge.core.parent_process import when_parent_ends

PAGES = ("training", "replay", "play")
HERE = Path(__file__).parents[1] / "static"
SERVED = (".js", ".css", ".svg")  # of this folder


@dataclass
class AppConfig:
    """How the app is served.

    Attributes:
        host: What it is bound to; others than this machine reach it only when told so, and then with a token.
        port: 0 takes a free one.
        token: What visitors must show; where the host is not this machine, one is made up.
        folders: What it may show: runs, recordings, and folders of them.
        dark: Light (False), dark (True), or as the system has it (None), until a person chooses.
        names: Further names that the server may be called by, for example of a proxy in front of it.
        with_parent: The process of the training that started it: the folders may not be there yet, and it ends with the
            training; 0: nobody's.
        task: The task of recordings that name one which is code, as somebody gave it.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None
    folders: Sequence[Path] = ()
    dark: bool | None = None
    names: Sequence[str] = ()
    with_parent: int = 0
    task: str | None = None

    def __post_init__(self) -> None:
        if self.token is None and not is_local(self.host):
            self.token = secrets.token_urlsafe(24)
        if self.token is not None and (
            len(self.token) < MIN_TOKEN
            or not self.token.isascii()
            or not self.token.isprintable()
            or set(self.token) & set(' ";,\\&#')
        ):
            raise ConfigError(
                f"The token must have at least {MIN_TOKEN} letters, digits or -._~: leave it out, and one is made up."
            )


@dataclass
class Server:
    """The app while it is built and served.

    Attributes:
        config: How it is served.
        shelf: What may be shown.
        api: Routes for data: `@server.api.get("/film/{id}")`. Websocket routes, too: the guard checks their origin.
        app: The whole, guarded: what a server runs.
        closing: Called when the server stops.
        arena: Fights that are played, once there are any.
        library: Recordings that are shown, once somebody looks.
    """

    config: AppConfig
    shelf: FileIndex
    api: Any
    app: Any = None
    closing: list[Any] = field(default_factory=list)
    sock: socket.socket | None = None
    arena: Any = None
    library: Any = None

    @property
    def url(self) -> str:
        """Where it is, once it is bound; with the token, if there is one."""
        host = "localhost" if is_local(self.config.host) else self.config.host
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        token = f"/?token={quote(self.config.token, safe='')}" if self.config.token else ""
        return f"http://{f'[{host}]' if ':' in host else host}:{self.config.port}{token}"

    def link(self, path: str) -> str:
        """The address of one page."""
        base, _, token = self.url.partition("/?")
        return base + path + (("&" if "?" in path else "?") + token if token else "")


def build(config: AppConfig) -> Server:
    """The app with all its pages, not yet served."""
    os.environ.setdefault("NICEGUI_STORAGE_PATH", os.devnull)  # it keeps nothing on the disk
    with extra("ui"):
        from fastapi import FastAPI
        from nicegui import app as nicegui_app
        from nicegui import ui

    server = Server(
        config,
        FileIndex(config.folders, bool(config.with_parent)),
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
    )
    put_nonces()
    refuse_attachments()
    serve_assets(server.api)
    tell_what_is_missing(nicegui_app)
    for name in PAGES:
        import_module(f"fledge.app.pages.{name}").register(server)
    nicegui_app.on_shutdown(lambda: [close() for close in server.closing])
    ui.run_with(
        server.api,
        title="Fledge",
        favicon=HERE / "favicon.svg",
        dark=config.dark,
        language="en-US",
        reconnect_timeout=20.0,
        message_history_length=200,
        binding_refresh_interval=None,
        tailwind=False,
        show_welcome_message=False,
    )
    server.app = Guard(server.api, config.host, config.token, config.names, config.port)
    return server


def put_nonces() -> None:
    """NiceGUI's page has scripts in it: mark exactly those, so that no other script in a page can run."""
    from jinja2 import FunctionLoader
    from nicegui import client

    environment = client.templates.env
    before = environment.loader
    assert before is not None

    def load(name: str) -> str:
        source = before.get_source(environment, name)[0]
        return source.replace("<script", '<script nonce="{{ request.scope.state.nonce }}"')

    environment.loader = FunctionLoader(load)


def refuse_attachments() -> None:
    """No page of ours sends bytes over NiceGUI's socket, whose protocol lets a message announce any number of them first,
    and keeps what came until the last is there.
    """
    from nicegui import core

    known: Any = core.sio.packet_class

    class Plain(known):
        def decode(self, encoded_packet: Any) -> Any:
            count = super().decode(encoded_packet)
            if count:
                raise ValueError("a message with attachments, which no page of ours sends")
            return count

    core.sio.packet_class = Plain


def tell_what_is_missing(nicegui_app: Any) -> None:
    """A page that is not there is one sentence and a way back; who asks for data gets JSON."""
    from starlette.responses import HTMLResponse, JSONResponse, Response

    @nicegui_app.exception_handler(404)
    async def missing(request: Any, error: Exception) -> Response:
        sentence = "There is no such page here."
        if "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"error": sentence}, 404)
        return HTMLResponse(small_page(sentence, "/"), 404)


def serve_assets(api: Any) -> None:
    """The modules and styles of this folder, and nothing else of it."""
    from starlette.responses import Response
    from starlette.staticfiles import StaticFiles

    class Assets(StaticFiles):
        async def get_response(self, path: str, scope: Any) -> Response:
            if Path(path).suffix not in SERVED:
                return Response(status_code=404)
            response = await super().get_response(path, scope)
            response.headers["cache-control"] = "no-cache"  # asked for each time, sent when it changed
            return response

    api.mount("/assets", Assets(directory=HERE))


def bind(config: AppConfig) -> socket.socket:
    """A listening socket. StorageError where there can be none."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((config.host, config.port))
        sock.listen(64)
    except (OSError, OverflowError) as error:
        sock.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"Port {config.port} on {config.host} cannot be had ({reason}): take another with --port, or 0 for a free one."
        ) from error
    config.port = sock.getsockname()[1]
    return sock


def serve(server: Server, path: str = "/", open_browser: bool = False) -> None:
    """Serve until Ctrl-C; prints where."""
    import uvicorn

    from fledge.app.server.header_timeout import Patient

    limit_malloc_arenas()
    sock = server.sock or bind(server.config)
    settings = uvicorn.Config(
        server.app, proxy_headers=False, log_level="warning", access_log=False, server_header=False, ws_max_size=MAX_MESSAGE,
        timeout_keep_alive=30, timeout_graceful_shutdown=2, limit_concurrency=200, http=Patient,
    )  # fmt: skip
    link = server.link(path)
    how = "until the training ends" if server.config.with_parent else "Ctrl-C stops"
    print(f"open {link}  ({how})", file=sys.stderr, flush=True)
    if open_browser:
        threading.Timer(1.0, lambda: webbrowser.open(link)).start()
    running = uvicorn.Server(settings)
    if server.config.with_parent:
        when_parent_ends(server.config.with_parent, lambda: setattr(running, "should_exit", True))
    with contextlib.suppress(KeyboardInterrupt):
        running.run(sockets=[sock])
