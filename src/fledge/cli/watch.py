"""`fledge watch`: the training page of the browser app."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fledge.cli.group import INPUT, PATH, main
from fledge.cli.serving import open_app, server_options
from fledge.core.errors import ConfigError


def first_page(places: Sequence[Path]) -> str:
    """Return the path of the page to open: of a sweep, of one recording, the list of several, else the training page."""
    from fledge.app.runs.file_index import is_sweep, make_id

    if len(places) == 1 and is_sweep(places[0]):
        return f"/sweeps?id={make_id(places[0])}"
    if not all(place.is_file() for place in places):
        return "/"
    from fledge.storage import Recording

    for place in places:
        Recording(place).close()  # report an unreadable file before anything is served
    return f"/watch/{make_id(places[0])}" if len(places) == 1 else "/watch"


@main.command()
@click.argument("places", nargs=-1, type=INPUT, metavar="[RUN]...")
@click.option("--save", type=PATH, help="Write the training page as one HTML file, and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print all data of the training page as JSON, and exit.")
@click.option("--with-parent", type=int, default=0, hidden=True)  # the process to end with
@server_options
def watch(places: tuple[Path, ...], save: Path | None, as_json: bool, **options: Any) -> None:
    """Watch trainings in the browser: curves, settings, checkpoints, and live episodes.

    RUN is a run's folder, a sweep's folder, a folder of runs, or a recording (.frec), which is replayed. [default: runs]
    """
    if not places and not Path("runs").is_dir():
        raise ConfigError("The default folder 'runs' does not exist here: pass a run's folder, or a folder of runs.")
    places = places or (Path("runs"),)
    if save is None and not as_json:
        return open_app(places, lambda server: first_page(places), **options)
    from fledge.app.runs.runs import save_runs

    data = save_runs(places, save)
    if as_json:
        click.echo(json.dumps(data))
    elif save is not None:
        count = len(data["runs"])
        click.echo(f"{save}: {count} run{'s' if count > 1 else ''}, {save.stat().st_size:,} bytes.")
