"""`fledge doctor`: verify the checkpoints in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fledge.cli.group import INPUT, as_json, main
from fledge.core.terminal import harmless


@main.command()
@click.argument("target", type=INPUT)
@click.option("--repair", is_flag=True, help="Move damaged files to aside/ in that folder, and correct `latest`.")
@as_json
def doctor(target: Path, repair: bool, as_json: bool) -> None:
    """Verify every checkpoint in TARGET, a run or any folder, and list the good and the damaged ones.

    Also lists checkpoints that were saved as a difference from another file which is now missing or damaged, and temporary
    files of killed processes. Reads every byte; exits with 1 if anything is wrong. --repair deletes no file.
    """
    from fledge.storage.doctor import examine_folder, render, repair_folder

    report = repair_folder(target) if repair else examine_folder(target)
    lines = [json.dumps(report.as_dict())] if as_json else [harmless(line) for line in render(report)]
    click.echo("\n".join(lines))
    if not report.healthy:
        raise SystemExit(1)
