"""`fledge advise`: recommend settings for storage and collection."""

from __future__ import annotations

import json
from typing import Any

import click

from fledge.cli.group import OVERRIDES, PATH, as_json, help_config, main, show_training, split_overrides


@main.command(epilog=OVERRIDES)
@click.argument("arguments", nargs=-1, metavar="[TASK] [KEY=VALUE]...")
@click.option("--preset", help="Training preset to advise on; it must use PPO. [default: the task's]")
@click.option("--budget", default=0.02, show_default=True, help="Share of training time that saving may cost.")
@click.option("--seconds", default=60.0, show_default=True, help="Time to spend on comparing the ways to collect.")
@click.option("--picture", type=PATH, help="Write a picture of the measured values (PNG).")
@help_config
@as_json
def advise(arguments: tuple[str, ...], preset: str | None, help_config: bool, as_json: bool, **options: Any) -> None:
    """Measure this config, and recommend whether to compress, archive or pipeline rollouts, and how often to save.

    Prints the decision tree with the measured values, and the settings to use. Takes a few minutes.
    """
    tasks, overrides = split_overrides(arguments)
    if help_config:
        return show_training(tasks, preset, overrides)
    from fledge.advise.command import run_advise

    result = run_advise(tasks, preset, overrides, quiet=as_json, **options)
    if as_json:
        click.echo(json.dumps(result))
