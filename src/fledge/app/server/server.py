"""Build the app as one object, and serve it.

    server = build(AppConfig(folders=[Path("runs")]))
    serve(server)                          until Ctrl-C

The modules in `app/pages` add their routes. A process can serve one app, because NiceGUI's pages are global.
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
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fledge.app.runs.file_index import FileIndex
from fledge.app.runs.runs import RunCache
from fledge.app.server.assets import STATIC, TaskPages, serve_assets
from fledge.app.server.guard import MAX_MESSAGE, MIN_TOKEN, Guard, is_local, small_page
from fledge.app.server.page_socket import check_messages
from fledge.core.errors import ConfigError
from fledge.core.extras import extra
from fledge.core.machine import limit_malloc_arenas
from fledge.core.parent_process import when_parent_ends

TOKEN_CHARACTERS = {chr(code) for code in range(33, 127)} - set('";,\\&#')


@dataclass
class AppConfig:
    """Settings of the server."""

    host: str = "127.0.0.1"  # address to bind to; if other machines can reach it, a token is required
    port: int = 8080  # 0 chooses a free port
    token: str | None = None  # secret that visitors must present; generated if it is required
    folders: Sequence[Path] = ()  # runs, recordings, and folders of them that the app may show
    names: Sequence[str] = ()  # further host names of this server, for example the name of a proxy
    with_parent: int = (
        0  # process id of a training: the server ends with it, and its folder may not exist yet; 0 for none
    )
    task: str | None = None  # reference of the task of recordings, if it is a class of your own

    def __post_init__(self) -> None:
        if self.token is None and not is_local(self.host):
            self.token = secrets.token_urlsafe(24)
        if self.token is not None and (len(self.token) < MIN_TOKEN or set(self.token) - TOKEN_CHARACTERS):
            raise ConfigError(
                f"The token must have at least {MIN_TOKEN} characters, such as letters, digits and -._~, but no spaces and "
                'none of ";,\\&#. Leave it out to generate one.'
            )


@dataclass
class Server:
    """The app: its settings, routes, socket and caches. `build` makes it and `serve` runs it."""

    config: AppConfig
    files: FileIndex  # runs and recordings that may be shown
    api: Any  # FastAPI app for data routes, `@server.api.get("/api/runs")`, and websockets; the guard checks their origin
    app: Any = None  # the complete ASGI app with the guard around it
    closing: list[Any] = field(default_factory=list)  # functions to call when the server stops
    sock: socket.socket | None = None  # the listening socket, once it is bound
    runs: RunCache = field(default_factory=RunCache)  # what the pages have read of runs
    task_pages: TaskPages = field(default_factory=TaskPages)  # page folders of the loaded tasks
    matches: Any = None  # the `MatchManager`, once the play page is used
    recordings: Any = None  # the `RecordingCache`, once a recording is shown

    @property
    def url(self) -> str:
        """Return the address of the start page, with the token if there is one; valid once the port is bound."""
        host = "localhost" if is_local(self.config.host) else self.config.host
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        token = f"/?token={quote(self.config.token, safe='')}" if self.config.token else ""
        return f"http://{f'[{host}]' if ':' in host else host}:{self.config.port}{token}"

    def link(self, path: str) -> str:
        """Return the address of a page, with the token if there is one."""
        base, _, token = self.url.partition("/?")
        return base + path + (("&" if "?" in path else "?") + token if token else "")


def build(config: AppConfig) -> Server:
    """Build the app with all its pages."""
    os.environ.setdefault("NICEGUI_STORAGE_PATH", os.devnull)  # NiceGUI stores nothing on disk
    with extra("ui"):
        from fastapi import FastAPI
        from nicegui import app as nicegui_app
        from nicegui import ui

    files = FileIndex(config.folders, awaited=bool(config.with_parent))
    server = Server(config, files, FastAPI(docs_url=None, redoc_url=None, openapi_url=None))
    put_nonces()
    check_messages()
    serve_assets(server.api, server.task_pages)
    answer_missing_pages(nicegui_app)
    from fledge.app.pages import find_pages
    from fledge.app.server.layout import navigation

    for page in find_pages():
        navigation[page.PATH] = page.LABEL
        page.register(server)
    nicegui_app.on_shutdown(lambda: [close() for close in server.closing])
    ui.run_with(
        server.api,
        title="Fledge",
        favicon=STATIC / "favicon.svg",
        dark=None,  # the system's, until the user chooses
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
    """Mark the scripts in NiceGUI's page template with a nonce, so that no other inline script can run."""
    from jinja2 import FunctionLoader
    from nicegui import client

    environment = client.templates.env
    before = environment.loader
    assert before is not None

    def load(name: str) -> str:
        source = before.get_source(environment, name)[0]
        return source.replace("<script", '<script nonce="{{ request.scope.state.nonce }}"')

    environment.loader = FunctionLoader(load)


def answer_missing_pages(nicegui_app: Any) -> None:
    """Answer an unknown address with a sentence and a link to the start page, or with JSON if no HTML was requested."""
    from starlette.responses import HTMLResponse, JSONResponse, Response

    @nicegui_app.exception_handler(404)
    async def missing(request: Any, error: Exception) -> Response:
        sentence = "This page does not exist."
        if "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"error": sentence}, 404)
        return HTMLResponse(small_page(sentence, "/"), 404)


def bind(config: AppConfig) -> socket.socket:
    """Return a listening socket, and set `config.port` to its port.

    Raises:
        ConfigError: The port cannot be bound.
    """
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
            f"Port {config.port} on {config.host} cannot be used ({reason}). Choose another with --port; --port 0 takes a "
            "free one."
        ) from error
    config.port = sock.getsockname()[1]
    return sock


def serve(server: Server, path: str = "/", open_browser: bool = False) -> None:
    """Print the address of a page and serve until Ctrl-C."""
    import uvicorn

    from fledge.app.server.connections import MAX_CONNECTIONS, HttpProtocol, WebSocketProtocol

    limit_malloc_arenas()
    sock = server.sock or bind(server.config)
    settings = uvicorn.Config(
        server.app, proxy_headers=False, log_level="warning", access_log=False, server_header=False, ws_max_size=MAX_MESSAGE,
        timeout_keep_alive=30, timeout_graceful_shutdown=2, limit_concurrency=MAX_CONNECTIONS + 1, http=HttpProtocol,
        ws=WebSocketProtocol, ws_per_message_deflate=False,
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
