"""Serve the browser app, for `fledge watch`, `fledge replay`, `fledge play` and `fledge train --live`."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fledge.app.server.server import Server

END_S = 20.0  # for a server that `serving_beside` started to end

OPTIONS = (
    click.option(
        "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one."
    ),
    click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="Address to bind to. Addresses that other machines can reach need a token, which the printed link contains.",
    ),
    click.option(
        "--token", envvar="FLEDGE_TOKEN", help="Secret that visitors must present. [default: generated if required]"
    ),
    click.option("--name", "names", multiple=True, help="Further host name of this server, for example a proxy's."),
    click.option("--no-browser", is_flag=True, help="Only print the link."),
)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for serving the browser app to a command."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def open_app(
    folders: Sequence[Path],
    page: Callable[[Server], str],
    port: int,
    host: str,
    token: str | None,
    names: Sequence[str],
    no_browser: bool,
    with_parent: int = 0,
    task: str | None = None,
) -> None:
    """Serve the app until Ctrl-C, and open the page whose path `page` returns."""
    from fledge.app.runs.file_index import FileIndex
    from fledge.app.server.server import AppConfig, bind, build, serve

    config = AppConfig(host, port, token, folders, names=names, with_parent=with_parent, task=task)
    FileIndex(folders, bool(with_parent))  # report a wrong path before anything is loaded or bound
    sock = bind(config)
    # NiceGUI inspects all objects, deprecated ones of torch included
    warnings.filterwarnings("ignore", message=".*reduce_op.*")
    server = build(config)
    server.sock = sock
    serve(server, page(server), open_browser=not no_browser)


@contextmanager
def serving_beside(port: int) -> Iterator[Callable[[Path], None]]:
    """Yield a function that serves a run's folder in another process, which ends when the block ends."""
    started: list[subprocess.Popen[bytes]] = []

    def start(folder: Path) -> None:
        words = ["watch", str(folder), "--port", str(port), "--no-browser", "--with-parent", str(os.getpid())]
        command = ["nice", "-n", "5", sys.executable, "-m", "fledge.cli", *words]
        # in a session of its own: Ctrl-C is for the training, which saves first
        started.append(subprocess.Popen(command, start_new_session=True))

    try:
        yield start
    finally:
        for process in started:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
