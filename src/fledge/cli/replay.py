"""`fledge replay`: a recording in the browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fledge.cli.group import INPUT, main
from fledge.cli.serving import open_app, server_options
from fledge.core.errors import ConfigError


@main.command()
@click.argument("file", type=INPUT)
@click.option("--task", help="Task of the recording, if it is your own code: a Python file or module:object.")
@click.option("--json", "as_json", is_flag=True, help="Print the list of episodes as JSON, and exit.")
@click.option("--episode", type=click.IntRange(0), help="With --json: print all data of this episode.")
@server_options
def replay(file: Path, task: str | None, as_json: bool, episode: int | None, **options: Any) -> None:
    """Replay a recording (.frec) in the browser: timeline, speed, follow camera, filter by outcome.

    `fledge convert FILE out.html` saves it as one page to send to someone.
    """
    from fledge.app.runs.file_index import make_id
    from fledge.storage import Recording

    if file.is_dir():
        raise ConfigError(f"{file} is a folder. Pass a recording (.frec).")
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
