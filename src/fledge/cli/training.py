"""Commands about a training: train, and advise on one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fledge.app.command import watching
from fledge.cli.group import OVERRIDES, as_json, help_config, show_training
from fledge.core.errors import ConfigError, InterruptedRunError

UNSAVED = "Stopped before anything was saved."


@click.command(
    epilog=f"{OVERRIDES} As options too: --seed 3, --num-envs 512.", context_settings={"ignore_unknown_options": True}
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TASK] [KEY=VALUE]...")
@click.option(
    "--preset",
    help="Training preset: for navigation fast, navrl, sac, td3, dqn; for aircombat fast, league, exploiter, dqn; or a YAML "
    "file of what differs from one, which its "
    "`base: NAME` names. [default, of both: algo's]",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Folder of the run. [default: runs/<time>]")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run exactly where it stopped.")
@click.option("--task", "task_word", help="The same as TASK, in front of or behind other words.")
@click.option("--live", is_flag=True, help="Show it in the browser meanwhile, as `fledge watch RUN` does.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Of --live.")
@help_config
@as_json
def train(
    words: tuple[str, ...],
    preset: str | None,
    folder: Path | None,
    resume: Path | None,
    task_word: str | None,
    live: bool,
    port: int,
    help_config: bool,
    as_json: bool,
) -> None:
    """Train a policy: watch it learn, stop and resume at will.

    TASK is navigation (the default), aircombat, gym:ID for any Gymnasium env, a Python file such as examples/hover.py, or
    module:object. Ctrl-C saves and stops; `--resume RUN` goes on.
    """
    given = read_flags(words)
    overrides = [w for w in given if "=" in w]
    tasks = [w for w in given if "=" not in w] + ([task_word] if task_word else [])
    if help_config:
        return show_training(tasks, preset, overrides, resume)
    try:
        with stopping_at_once():
            from fledge.train.command import run_training

        with watching(port) as watch:
            result = run_training(tasks, preset, overrides, folder, resume, watch if live else None)
    except KeyboardInterrupt:
        raise InterruptedRunError(UNSAVED) from None
    if as_json and result is not None:
        click.echo(json.dumps(result))


@contextlib.contextmanager
def stopping_at_once() -> Iterator[None]:
    """Ctrl-C ends the process while big packages load, some of which would swallow a KeyboardInterrupt."""

    def stop(number: int, frame: Any) -> None:
        click.echo(f"fledge: {UNSAVED}", err=True)
        os._exit(InterruptedRunError.exit_code)

    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def read_flags(words: Sequence[str]) -> list[str]:
    """Words with `--name value` as `name=value`, unless what stands there was meant to be one of the command's options."""
    if not any(word.startswith("-") for word in words):
        return list(words)
    import difflib

    own = [name for option in click.get_current_context().command.params for name in option.opts]
    for word in words:
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, own, n=1, cutoff=0.85) if name.startswith("--") else []
        if near:
            raise click.NoSuchOption(name, possibilities=near)
    from fledge.core.overrides import flags_to_overrides
    from fledge.tasks.registry import task_names

    return flags_to_overrides(words, task_names())


@click.command(epilog=OVERRIDES)
@click.argument("words", nargs=-1, metavar="[TASK] [KEY=VALUE]...")
@click.option("--preset", help="The training to advise on (PPO). [default: the task's]")
@click.option("--budget", default=0.02, show_default=True, help="Share of training time that saving may cost.")
@click.option("--seconds", default=60.0, show_default=True, help="Time to spend on comparing the ways to collect.")
@click.option("--picture", type=click.Path(path_type=Path), help="Write the figures as a picture (PNG).")
@help_config
@as_json
def advise(
    words: tuple[str, ...],
    preset: str | None,
    budget: float,
    seconds: float,
    picture: Path | None,
    help_config: bool,
    as_json: bool,
) -> None:
    """Should I compress, archive, pipeline, and how often save? Measured here, with this config.

    Prints the decision tree with the measured numbers, and the settings to use. Takes a few minutes.
    """
    tasks, overrides = [w for w in words if "=" not in w], [w for w in words if "=" in w]
    if help_config:
        return show_training(tasks, preset, overrides)
    from fledge.advise import advise as measure_and_decide
    from fledge.advise import render, save_plot, settings_line
    from fledge.core.terminal import doing, make_console
    from fledge.train.config import make_config

    if len(tasks) > 1:
        raise ConfigError(f"{' and '.join(tasks)} came, but the advice is about one task.")
    cfg = make_config(tasks[0] if tasks else "navigation", preset, overrides)
    if picture and (picture.suffix != ".png" or not picture.parent.is_dir()):
        raise ConfigError(f"{picture} cannot be written: give a .png in a folder that exists.")
    with doing(make_console(stderr=True), "advise") as on_progress:
        result = measure_and_decide(cfg, budget, seconds, on_progress)
    if picture:
        save_plot(result, picture)
        click.echo(f"picture: {picture}", err=True)
    if as_json:
        click.echo(json.dumps(result))
    else:
        make_console().print(*render(result), sep="\n")
        make_console().print(settings_line(result), soft_wrap=True)


COMMANDS = (train, advise)
