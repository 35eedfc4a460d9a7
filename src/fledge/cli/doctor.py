"""`fledge doctor`: check this machine, or verify the checkpoints in a folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from fledge.cli.group import INPUT, as_json, main
from fledge.core.terminal import harmless


@main.command()
@click.argument("target", type=INPUT, required=False)
@click.option("--repair", is_flag=True, help="Move damaged files to aside/ in that folder, and correct `latest`.")
@as_json
def doctor(target: Path | None, repair: bool, as_json: bool) -> None:
    """Check this machine; or, with TARGET, a run or any folder, verify every checkpoint in it.

    Without TARGET: checks Python, torch, Warp, GPU and driver, threads, memory, the folder of compiled kernels, fonts and the
    browser app, and names the fix for each problem.

    With TARGET: lists the good and the damaged checkpoints, those saved as a difference from another file that is now missing
    or damaged, and temporary files of killed processes. Reads every byte. --repair deletes no file.

    Exits with 1 if anything is wrong.
    """
    if target is None:
        if repair:
            raise click.UsageError("--repair needs a folder of checkpoints: fledge doctor FOLDER --repair.")
        return examine(as_json)
    from fledge.storage.doctor import examine_folder, render, repair_folder

    report = repair_folder(target) if repair else examine_folder(target)
    lines = [json.dumps(report.as_dict())] if as_json else [harmless(line) for line in render(report)]
    click.echo("\n".join(lines))
    if not report.healthy:
        raise SystemExit(1)


def examine(as_json: bool) -> None:
    """Print the checks of this machine."""
    from fledge.monitor.health import examine_machine, render

    checks = examine_machine()
    shown = json.dumps([dataclasses.asdict(check) for check in checks]) if as_json else "\n".join(render(checks))
    click.echo(shown)
    if any(check.state == "problem" for check in checks):
        raise SystemExit(1)
