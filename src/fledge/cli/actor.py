"""`fledge actor`: collect for a learner on another machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import click

from fledge.cli.group import PATH, main, split_overrides, threads_option, use_threads
from fledge.core.errors import ConfigError


@main.command()
@click.argument("arguments", nargs=-1, metavar="[TASK] [KEY=VALUE]...")
@click.option("--learner", required=True, metavar="HOST:PORT", help="Address that the learner listens on.")
@click.option(
    "--token-file",
    type=PATH,
    help="File with the learner's secret: a copy of RUN/actors.token. [default: the environment variable FLEDGE_TOKEN]",
)
@click.option("--envs", type=click.IntRange(1), help="Envs to fly. [default: what the learner wants from all actors]")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:N or auto.")
@click.option(
    "--level", type=click.IntRange(0, 9), default=1, show_default=True, help="Compression of rollouts; 0: none."
)
@click.option(
    "--minutes",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Give up if the learner is away for so long.",
)
@threads_option
def actor(arguments: tuple[str, ...], token_file: Path | None, threads: int | None, **options: Any) -> None:
    """Fly for a learner on another machine: send rollouts, take over its newest policy.

    The learner is `fledge train ... actors.listen=HOST:PORT`. Actors may come and go at any time; with K actors,
    --envs of env.num_envs / K suits best. The learner tells the task and its settings. If the task or the reward is your own
    code, name it here too: TASK, or reward=FILE:NAME. env.KEY=VALUE changes a setting for this actor only.
    Ctrl-C ends the actor. The connection is authenticated, not encrypted: use SSH or WireGuard in networks of others.
    """
    from fledge.storage.exchange import check_token, read_token, split_address

    split_address(options["learner"])
    if token_file is None and "FLEDGE_TOKEN" not in os.environ:
        raise ConfigError("The learner's token is missing: pass --token-file FILE, or set FLEDGE_TOKEN.")
    token = read_token(token_file) if token_file else check_token(os.environ["FLEDGE_TOKEN"], "FLEDGE_TOKEN")
    from fledge.training.actor import Actor, ActorOptions
    from fledge.training.command import read_task

    use_threads(threads)
    tasks, overrides = split_overrides(arguments)
    task, overrides = read_task(tasks, overrides)
    found = Actor(
        ActorOptions(token=token, threads=threads, **options), task, overrides, lambda line: click.echo(line, err=True)
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found.run()
    except KeyboardInterrupt:
        click.echo(f"Stopped. This actor flew {found.frames:,} decisions.", err=True)
