"""`fledge report`: write a page about a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fledge.cli.group import INPUT, OVERRIDES, PATH, as_json, as_settings, check_output, main, task_option
from fledge.cli.task_options import read_vary


@main.command(epilog=OVERRIDES)
@click.argument("run", type=INPUT)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@task_option
@click.option("--out", type=PATH, help="Page to write (.html). [default: RUN/report.html]")
@click.option("--episodes", default=256, show_default=True, help="Episodes per policy and env config.")
@click.option("--seed", default=7, show_default=True, help="Seed of the held-out episodes.")
@click.option("--vary", help="Values of a setting to evaluate one after the other: env.moving_obstacles=0,80.")
@as_json
def report(
    run: Path,
    overrides: tuple[str, ...],
    out: Path | None,
    task: str | None,
    vary: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write a page about RUN: its curves, its evaluation beside the task's scripted policies, and pictures.

    device=cuda flies on a GPU.
    """
    check_output(out, "--out", (".html",))
    from fledge.evaluation import api

    options |= {"vary": read_vary(vary, {}), "quiet": as_json}
    settings = as_settings(overrides, api.report)
    options["device"] = settings.pop("device", "cpu")
    result = api.write_run_report(run, out, task, settings, **options)
    click.echo(json.dumps(result) if as_json else f"report: {result['report']}")
