"""The group of all commands, and options and functions that several commands share."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from fledge.core.errors import FledgeError

OVERRIDES = "Change settings with key=value, for example env.num_envs=512; --help-config lists them all."
PATH = click.Path(path_type=Path)
PICTURES = (".png", ".svg", ".pdf", ".jpg")


class Commands(click.Group):
    """A group of commands that prints a FledgeError as one sentence and exits with the error's code."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "bench":
            ctx.fail("Benchmarks run from a checkout: python -m benchmarks sim.")
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except BrokenPipeError:
            raise  # click exits quietly
        except (FledgeError, OSError) as error:
            if "--debug" in sys.argv:
                raise
            message = error if isinstance(error, FledgeError) else os_error_message(error)
            if note := os.environ.get("FLEDGE_CHILD"):  # a rank leaves its error to the process that started it
                Path(note).write_text(str(message))
                sys.exit(getattr(error, "exit_code", 1))
            click.echo(f"{self.name}: {message}", err=True)
            sys.exit(getattr(error, "exit_code", 1))


def os_error_message(error: OSError) -> str:
    """Return a sentence that says which path the system refused, and what to do."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename} cannot be made: there is a file where a folder is needed. Choose another place."
    return f"{error.filename or 'The output'} cannot be used ({error.strerror or error}): choose another place."


debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")


@click.group("fledge", cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@debug_option
@click.version_option(package_name="fledge")
def main() -> None:
    """Fledge teaches policies to fly."""


help_config = click.option(
    "--help-config",
    is_flag=True,
    help="List every setting with its value in this command, meaning and limits, and exit.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print figures as one JSON object.")
task_option = click.option(
    "--task",
    help="Task of the policy, if it is your own code: a Python file or module:object. [default: the file's own]",
)
threads_option = click.option(
    "--threads", type=click.IntRange(1, 1024), help="CPU threads. [default: OMP_NUM_THREADS, else all cores]"
)


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words of a command line into names and key=value overrides.

    A name may have parameters, such as crank(shot=0.8), which is no override.
    """
    overrides = [word for word in words if "=" in word and "(" not in word.partition("=")[0]]
    return [word for word in words if word not in overrides], overrides


def as_settings(overrides: Sequence[str], function: Callable[..., Any]) -> dict[str, Any]:
    """Return key=value overrides as keywords for `function`, a function of the Python API; the last value of a key counts."""
    from fledge.core.overrides import split_override

    settings: dict[str, Any] = {}
    for key, value in map(split_override, overrides):
        if key in inspect.signature(function).parameters:
            raise click.UsageError(f"{key}={value} is not a setting. If you mean the option, write --{key} {value}.")
        settings.pop(key, None)
        settings[key] = value
    return settings


def show_training(
    tasks: Sequence[str], preset: str | None, overrides: Sequence[str], resume: Path | None = None
) -> None:
    """Print every setting of a training run and the source of its value."""
    from fledge.training.explain import explain_training

    click.echo("\n".join(explain_training(tasks, preset, overrides, resume)))


def use_threads(threads: int | None) -> int:
    """Set the number of PyTorch threads (None: OMP_NUM_THREADS if set, else all cores), and return it."""
    import torch

    from fledge.core.machine import torch_threads

    threads = threads or torch_threads()
    torch.set_num_threads(threads)
    return threads


def check_output(path: Path | None, option: str = "--picture", endings: Sequence[str] = PICTURES) -> None:
    """Raise an error if an output file cannot be written or has a wrong ending, before any work is done for it."""
    if path is None:
        return
    if path.suffix not in endings:
        known = " or ".join([", ".join(endings[:-1]), endings[-1]]).removeprefix(" or ")
        raise click.BadParameter(f"{path.name} must end in {known}.", param_hint=option)
    path.parent.mkdir(parents=True, exist_ok=True)
