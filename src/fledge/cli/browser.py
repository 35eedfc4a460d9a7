"""`fledge watch`, `fledge replay` and `fledge play`: the browser app; also beside `fledge train --live`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fledge.cli.group import PATH, main
from fledge.core.errors import ConfigError
from fledge.core.extras import extra

if TYPE_CHECKING:
    from fledge.app.server.server import Server

END_S = 20.0  # for a server that `serving_beside` started to end

OPTIONS = (
    click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one."),
    click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="Address to bind to. Any other than this machine's own requires a token; the printed link contains it.",
    ),
    click.option(
        "--token", envvar="FLEDGE_TOKEN", help="Secret that visitors must present. [default: generated if required]"
    ),
    click.option("--name", "names", multiple=True, help="Further host name of this server, for example a proxy's."),
    click.option("--no-browser", is_flag=True, help="Only print the link."),
)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command that serves the app."""
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
    """Serve the app until Ctrl-C, opened at the page whose path `page` returns."""
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
    """Yield a function that serves a run's folder in another process; that process ends with the block."""
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


@main.command()
@click.argument("places", nargs=-1, type=PATH, metavar="[RUN]...")
@click.option("--save", type=PATH, help="Write the training page as one HTML file, and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print all that the training page shows as JSON, and exit.")
@click.option("--with-parent", type=int, default=0, hidden=True)  # the process to end with
@server_options
def watch(places: tuple[Path, ...], save: Path | None, as_json: bool, **options: Any) -> None:
    """Watch trainings in the browser: curves, settings, checkpoints, and live episodes.

    RUN is a run's folder, a folder of runs, or a recording (.frec). [default: runs]
    """
    if not places and not Path("runs").is_dir():
        raise ConfigError("There is no folder 'runs' here. Pass a run's folder, or a folder of runs.")
    places = places or (Path("runs"),)
    if save is None and not as_json:
        return open_app(places, lambda server: "/", **options)
    from fledge.app.runs.saved_run import save_runs

    data = save_runs(places, save)
    if as_json:
        click.echo(json.dumps(data))
    elif save is not None:
        count = len(data["runs"])
        click.echo(f"{save}: {count} run{'s' if count > 1 else ''}, {save.stat().st_size:,} bytes.")


@main.command()
@click.argument("file", type=PATH)
@click.option("--task", help="Task of the recording, if it is code: a Python file or module:object.")
@click.option("--json", "as_json", is_flag=True, help="Print the list of episodes as JSON, and exit.")
@click.option("--episode", type=click.IntRange(0), help="With --json: print all that the page shows of this episode.")
@server_options
def replay(file: Path, task: str | None, as_json: bool, episode: int | None, **options: Any) -> None:
    """Replay a recording (.frec) in the browser: timeline, speed, follow camera, filter by outcome.

    `fledge convert FILE out.html` saves it as one page to send to someone.
    """
    from fledge.app.runs.file_index import make_id
    from fledge.storage import Recording

    if not file.is_file():
        raise ConfigError(f"{file} does not exist. Pass a recording (.frec).")
    if episode is not None and not as_json:
        raise ConfigError("--episode requires --json; in the browser, choose the episode in the list.")
    with Recording(file) as recording:  # report an unreadable file before anything is served
        if as_json:
            from fledge.app.exporters.json import episode_as_json
            from fledge.app.recordings.episode_payload import list_episodes
            from fledge.app.recordings.trajectory import task_of
            from fledge.tasks.registry import find_task

            known = task_of(recording, find_task(task) if task else None)
            data = list_episodes(recording, known) if episode is None else episode_as_json(recording, known, episode)
            click.echo(json.dumps(data))
            return
    open_app([file], lambda server: f"/watch/{make_id(file)}", task=task, **options)


@main.command()
@click.argument("overrides", nargs=-1, metavar="[TASK] [KEY=VALUE]...")
@server_options
def play(overrides: tuple[str, ...], **options: Any) -> None:
    """Play a match in the browser: against a pilot, a policy or another person; or watch policies, and take over.

    TASK is aircombat. KEY=VALUE is opponent=NAME (or blue=NAME and red=NAME: a pilot, a run's folder, a policy file, or
    `you`), seed=N, start=NAME (how it begins: head_on, random, ...), or a setting of the env, env.key=value.
    """
    with extra("ui"):
        import nicegui  # noqa: F401
    from fledge.app.play.play_args import read_play_args

    matches, path = read_play_args(overrides)

    def page(server: Server) -> str:
        from fledge.app.pages.play import use_matches

        use_matches(server, matches)
        return path

    open_app([Path("runs")] if Path("runs").is_dir() else [], page, **options)
