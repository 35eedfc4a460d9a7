"""`fledge learn-on`: let a policy go on learning from new experience."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fledge.cli.group import PATH, as_json, as_settings, help_config, main, split_overrides, task_option
from fledge.core.errors import ConfigError

EPILOG = "Change settings with key=value, for example candidates=4; --help-config lists them all."


@main.command("learn-on", epilog=EPILOG)
@click.argument("arguments", nargs=-1, metavar="RUN [KEY=VALUE]...")
@click.option(
    "--from",
    "source",
    help="New experience: env:KEY=VALUE,... for the run's env with other settings, simulated; a folder of rollouts; or "
    "listen:HOST:PORT for rollouts that other programs send. [default: that of the last call]",
)
@click.option("--folder", type=PATH, help="Folder of the accepted policies. [default: RUN/learn_on]")
@click.option("--list", "listed", is_flag=True, help="List all candidates with their figures on old and new worlds.")
@click.option("--back", is_flag=True, help="Go back to the policy before the newest accepted one.")
@click.option("--to", type=click.IntRange(0), metavar="N", help="Go back to the accepted policy N.")
@task_option
@help_config
@as_json
def learn_on(
    arguments: tuple[str, ...],
    source: str | None,
    folder: Path | None,
    listed: bool,
    back: bool,
    to: int | None,
    task: str | None,
    help_config: bool,
    as_json: bool,
) -> None:
    """Let a policy go on learning from new experience, and keep what it could do before.

    It learns from new and old experience together, bound to the policy before. Each candidate flies held-out episodes:
    it is accepted only if it loses no more than `tolerance` on old worlds (one-sided 95 % test) and gains on new ones.
    Accepted policies are the checkpoints of RUN/learn_on, a run like any other: `fledge eval RUN/learn_on` evaluates the
    newest, `--list` shows all, `--back` goes back. RUN stays as it is. Ctrl-C stops; the same command continues.
    """
    from fledge.training.learn_on.folder import read_folder, table

    names, overrides = split_overrides(arguments)
    if help_config:
        from fledge.core.config_help import explain_settings
        from fledge.training.learn_on.config import LearnOnConfig

        return click.echo("\n".join(explain_settings([("", LearnOnConfig())])))
    if len(names) != 1:
        raise click.UsageError(f"Name one run, such as runs/mine; got {', '.join(names) or 'none'}.")
    if listed or back or to is not None:
        if source is not None or overrides or (back and to is not None):
            raise click.UsageError("--list, --back and --to N take only RUN, one of them at a time.")
        place = read_folder(folder or Path(names[0]))
        if not listed:
            place.go_back(to)
    else:
        from fledge.training.learn_on.api import learn_on as learn

        if any(word.startswith("env.") for word in overrides):
            raise ConfigError("Settings of the new world belong to the source: write --from env:KEY=VALUE.")
        run = learn(names[0], source, folder, task=task, progress=not as_json, **as_settings(overrides, learn))
        place = read_folder(run.folder)
    if as_json:
        facts = {"folder": str(place.path), "parent": place.parent, "candidates": place.rows}
        return click.echo(json.dumps(facts))
    from fledge.core.terminal import make_console

    make_console().print(table(place.rows))
