"""`fledge train`: train a policy."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import signal
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fledge.cli.group import OVERRIDES, PATH, as_json, as_settings, help_config, main, show_training, split_overrides
from fledge.cli.preset_list import preset_list
from fledge.cli.serving import serving_beside
from fledge.core.errors import ConfigError, InterruptedRunError

UNSAVED = "Stopped before anything was saved."


class RunPath(click.Path):
    """The type of an option that takes a run's folder, as a Path, or its URL, as text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) else Path(value)


RUN = RunPath()

SETTING = re.compile(r"[\w.]+=")  # how an override begins; crank(shot=0.8) is a value


@main.command(
    epilog=f"{OVERRIDES} As options too: --seed 3, --num-envs 512.", context_settings={"ignore_unknown_options": True}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[TASK] [KEY=VALUE]...")
@click.option(
    "--preset",
    help=f"Training preset: {preset_list('train')}; or a YAML file with the settings that differ from the preset that "
    "its `base: NAME` names. [default: the preset of `algo`, else fast]",
)
@click.option("--folder", type=PATH, help="Folder of the run. [default: runs/<time>]")
@click.option(
    "--resume",
    type=RUN,
    help="Continue this run exactly where it stopped. `auto` continues the run in --folder if there is one, and starts "
    "a new run otherwise; use it in jobs that a scheduler restarts. A URL downloads the run that checkpoint_url saved "
    "there into --folder [default: runs/NAME].",
)
@click.option("--force", is_flag=True, help="Train even if a process that has ended left the folder locked.")
@click.option("--task", "task_option", help="The same as TASK.")
@click.option("--live", is_flag=True, help="Show the run in the browser while it trains, as `fledge watch RUN` does.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port for --live.")
@help_config
@as_json
def train(
    arguments: tuple[str, ...],
    preset: str | None,
    folder: Path | None,
    resume: Path | str | None,
    force: bool,
    task_option: str | None,
    live: bool,
    port: int,
    help_config: bool,
    as_json: bool,
) -> None:
    """Train a policy: watch it learn, stop and resume at any time.

    TASK is navigation (the default), aircombat, gym:ID for any Gymnasium env, a Python file such as examples/hover.py, or
    module:object. Ctrl-C saves and stops; `--resume RUN` continues. --preset navrl uses the task, network and
    settings of NavRL (github.com/Zhefan-Xu/NavRL). hardware=NAME chooses sizes for a machine (small, medium, large);
    perception=NAME the faults of detector, LiDAR and odometry in navigation (perfect, typical, poor), sensor=NAME
    its sensor (navrl, mid360, ouster16, d435, vl53l5cx).
    """
    tasks, overrides = split_overrides(read_flags(arguments))
    tasks += [task_option] if task_option else []
    auto, url = str(resume) == "auto", resume if isinstance(resume, str) else ""
    if auto and folder is None:
        raise ConfigError("--resume auto needs the run's folder: add --folder RUN.")
    if auto and folder is not None and help_config:
        resume = folder if (folder / "config.yaml").exists() else None
    if help_config:
        if url:
            raise ConfigError("--help-config does not download a run: pass the folder of a run on this machine.")
        return show_training(tasks, preset, overrides, Path(resume) if resume else None)
    if resume is not None and folder is not None and not auto and not url:
        raise ConfigError(
            "--folder and --resume RUN cannot be used together: pass --folder for a new run, --resume RUN to continue a run, "
            "or --folder RUN --resume auto for either."
        )
    try:
        with stopping_at_once():
            from fledge.training.api import train as train_policy
            from fledge.training.command import read_task

        task, overrides = read_task(tasks, overrides)
        settings = as_settings(overrides, train_policy)
        with serving_beside(port) as watch:
            run = train_policy(
                task or "navigation",
                preset,
                folder if resume is None or auto or url else resume,
                url or ("auto" if auto else resume is not None),
                force=force,
                on_start=watch if live else None,
                **settings,
            )
    except KeyboardInterrupt as stopped:
        raise InterruptedRunError(str(stopped) or UNSAVED) from None
    if as_json and run.final_metrics:
        click.echo(json.dumps({"run": str(run.folder), **run.final_metrics}))


@contextlib.contextmanager
def stopping_at_once() -> Iterator[None]:
    """Make Ctrl-C end the process at once inside the block. Packages that load there would ignore a KeyboardInterrupt."""

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


def read_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--name value` as `name=value`; raise an error for misspelt options of the command."""
    if not any(argument.startswith("-") for argument in arguments):
        return list(arguments)
    own = [name for option in click.get_current_context().command.params for name in option.opts]
    for argument in arguments:
        name = argument.partition("=")[0]
        near = difflib.get_close_matches(name, own, n=1, cutoff=0.85) if name.startswith("--") else []
        if near:
            raise click.NoSuchOption(name, possibilities=near)
    from fledge.tasks.registry import task_names

    return flags_to_overrides(arguments, task_names())


def flags_to_overrides(arguments: Sequence[str], not_values: Collection[str] = ()) -> list[str]:
    """Rewrite `--name value` as `name=value`, and `--name` without a value as `name=true`.

    Args:
        not_values: Arguments that are never the value of a flag, such as the name of a task.

    Raises:
        ConfigError: An argument is a short flag, such as -n.
    """
    out: list[str] = []
    rest = list(arguments)
    while rest:
        item = rest.pop(0)
        if item.startswith("--") and len(item) > 2:
            name, sign, value = item[2:].partition("=")
            if not sign:
                ends = not rest or rest[0].startswith("--") or rest[0] in not_values or SETTING.match(rest[0])
                value = "true" if ends else rest.pop(0)
            out.append(f"{name.replace('-', '_')}={value}")
        elif item.startswith("-") and "=" not in item:
            raise ConfigError(f"{item} is not an option: write --name value, or name=value, for example num_envs=512.")
        else:
            out.append(item)
    return out
