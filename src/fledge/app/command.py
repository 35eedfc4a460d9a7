"""`fledge watch`, `fledge replay` and `fledge play`: the same app, opened at one of its pages."""

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

from fledge.core.errors import ConfigError
from fledge.core.extras import extra

if TYPE_CHECKING:
    from fledge.app.server.server import Server

END_S = 20.0  # that a server beside a training has to end

COMMON = (
    click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one."),
    click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="What to bind to. Anything but this machine needs a token; one is made up and stands in the printed link.",
    ),
    click.option(
        "--token", envvar="FLEDGE_TOKEN", help="The token that visitors must show. [default: made up, where needed]"
    ),
    click.option(
        "--name", "names", multiple=True, help="A name that others call this server by, of a proxy for example."
    ),
    click.option("--no-browser", is_flag=True, help="Only print the link."),
)


def served(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every command that serves."""
    for option in reversed(COMMON):
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
    """Serve the app until Ctrl-C, opened at the page whose path `page` gives."""
    from fledge.app.runs.file_index import FileIndex
    from fledge.app.server.server import AppConfig, bind, build, serve

    config = AppConfig(host, port, token, folders, names=names, with_parent=with_parent, task=task)
    FileIndex(folders, bool(with_parent))  # a wrong path is told before anything is loaded or bound
    sock = bind(config)
    # NiceGUI looks at every object there is, torch's old ones too
    warnings.filterwarnings("ignore", message=".*reduce_op.*")
    server = build(config)
    server.sock = sock
    serve(server, page(server), open_browser=not no_browser)


@click.command()
@click.argument("places", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN]...")
@click.option(
    "--save", type=click.Path(path_type=Path), help="Write the training page of RUN as one HTML file, and end."
)
@click.option("--json", "as_json", is_flag=True, help="Print all that the training page shows as JSON, and end.")
@click.option("--with-parent", type=int, default=0, hidden=True)  # the process to end with
@served
def watch(places: tuple[Path, ...], save: Path | None, as_json: bool, **options: Any) -> None:
    """Watch trainings in the browser: curves, settings, checkpoints, and their worlds.

    RUN is a run's folder, a folder of runs, or a recording (.frec). [default: runs]
    """
    if not places and not Path("runs").is_dir():
        raise ConfigError("There is no folder runs here: name a run's folder, or a folder of runs.")
    places = places or (Path("runs"),)
    if save is None and not as_json:
        return open_app(places, lambda server: "/", **options)
    told = tell_runs(places, save)
    if as_json:
        click.echo(json.dumps(told))
    elif save is not None:
        click.echo(
            f"{save}: {len(told['runs'])} run{'s' if len(told['runs']) > 1 else ''}, {save.stat().st_size:,} bytes."
        )


def tell_runs(places: Sequence[Path], save: Path | None) -> dict[str, Any]:
    """What the training page shows of the runs in some places; written as a page, if `save` names one."""
    from fledge.app.runs.file_index import FileIndex
    from fledge.app.runs.saved_run import as_page, collect

    if save is not None and save.suffix != ".html":
        raise ConfigError(f"{save} must end in .html.")
    runs = FileIndex(places).runs()
    if not runs:
        raise ConfigError(f"{' and '.join(map(str, places))} holds no run: give a run's folder, or a folder of runs.")
    told = collect(runs, examine=True)
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        save.write_text(as_page(told), encoding="utf-8")
    return told


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--task", help="The recording's task, where it is code: a Python file or module:object.")
@click.option("--json", "as_json", is_flag=True, help="Print all that the page lists as JSON, and end.")
@click.option("--episode", type=click.IntRange(0), help="With --json: all that the page shows of this one.")
@served
def replay(file: Path, task: str | None, as_json: bool, episode: int | None, **options: Any) -> None:
    """Replay a recording (.frec) in the browser: timeline, speed, follow camera, by outcome.

    `fledge convert FILE out.html` saves it as a page that can be sent to someone.
    """
    from fledge.app.runs.file_index import make_id
    from fledge.storage import Recording

    if not file.is_file():
        raise ConfigError(f"{file} is not there: give a recording (.frec).")
    if episode is not None and not as_json:
        raise ConfigError("--episode goes with --json; in the browser, choose it in the list.")
    with Recording(file) as recording:  # what cannot be read is told before anything is served
        if as_json:
            from fledge.app.episode_payload import list_films, task_of
            from fledge.app.exporters.convert import film_as_json
            from fledge.tasks.registry import find_task

            known = task_of(recording, find_task(task) if task else None)
            told = list_films(recording, known) if episode is None else film_as_json(recording, known, episode)
            click.echo(json.dumps(told))
            return
    open_app([file], lambda server: f"/watch/{make_id(file)}", task=task, **options)


@click.command()
@click.argument("words", nargs=-1, metavar="[TASK] [KEY=VALUE]...")
@served
def play(words: tuple[str, ...], **options: Any) -> None:
    """Fight in the browser: against a pilot, an agent or another person; or watch agents, and take over.

    TASK is aircombat. Words are opponent=NAME (or blue=NAME and red=NAME: a pilot, a run's folder, a policy file, or `you`),
    seed=N, start=NAME (how it begins: head_on, random, ...), and settings of the world, env.key=value.
    """
    with extra("ui"):
        import nicegui  # noqa: F401
    from fledge.app.play.play_args import read_invitation

    arena, path = read_invitation(words)

    def page(server: Server) -> str:
        from fledge.app.pages.play import open_arena

        open_arena(server, arena)
        return path

    folders = [Path("runs")] if Path("runs").is_dir() else []
    open_app(folders, page, **options)


@contextmanager
def watching(port: int) -> Iterator[Callable[[Path], None]]:
    """Beside a training: gives what to call with its folder; serves it in a process of its own until the training ends."""
    started: list[subprocess.Popen[bytes]] = []

    def start(folder: Path) -> None:
        words = ["watch", str(folder), "--port", str(port), "--no-browser"]
        words += ["--with-parent", str(os.getpid())]
        command = ["nice", "-n", "5", sys.executable, "-m", "fledge.cli", *words]
        # a session of its own: Ctrl-C is for the training, which saves first
        started.append(subprocess.Popen(command, start_new_session=True))

    try:
        yield start
    finally:
        for process in started:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:  # stopped, or stuck: the training does not wait for it
                process.kill()
                process.wait()


COMMANDS = (watch, replay, play)
