"""The group of all commands, and options and functions that several commands share."""

from __future__ import annotations

import errno
import inspect
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from fledge.core import paths
from fledge.core.errors import ConfigError, FledgeError, InterruptedRunError
from fledge.core.paths import check_readable, os_error_message
from fledge.core.terminal import harmless

OVERRIDES = "Change settings with key=value, for example env.num_envs=512; --help-config lists them all."
PATH = click.Path(path_type=Path)
PICTURES = (".png", ".svg", ".pdf", ".jpg")


class InputPath(click.Path):
    """The type of an argument that must be an existing file or folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return check_readable(Path(value))


INPUT = InputPath()


class Commands(click.Group):
    """A group of commands that prints a FledgeError as one sentence and exits with the error's code."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "bench":
            ctx.fail("Benchmarks run from a checkout: python -m benchmarks sim.")
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # print any name on any terminal, as stderr does
        try:
            code = super().main(*args, **kwargs | {"standalone_mode": False})
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a full disk becomes a sentence
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo(f"{self.name}: Stopped.", err=True)
            sys.exit(InterruptedRunError.exit_code)
        except (click.ClickException, FledgeError, OSError) as error:
            if "--debug" in sys.argv and not isinstance(error, click.ClickException):
                raise
            sys.exit(fail(self.name or "fledge", error))
        sys.exit(code if isinstance(code, int) else 0)


def fail(name: str, error: click.ClickException | FledgeError | OSError) -> int:
    """Print an error as one line and return its exit code.

    A rank of a distributed training writes the error to the file FLEDGE_CHILD instead, for the process that started it.
    """
    if isinstance(error, BrokenPipeError):  # the reader of the output has left
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  so that the interpreter can flush it
        return 1
    message, code = str(error), int(getattr(error, "exit_code", 1))
    if isinstance(error, click.ClickException):
        message = error.format_message()
        context = getattr(error, "ctx", None)
        message += f" See `{context.command_path} --help`." if context is not None else ""
    elif not isinstance(error, FledgeError):
        message = os_error_message(error)
    if note := os.environ.get("FLEDGE_CHILD"):  # of a rank
        Path(note).write_text(message, encoding="utf-8")
    else:
        click.echo(f"{name}: {harmless(message)}", err=True)
    return code


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
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
task_option = click.option(
    "--task",
    help="Task of the policy, if it is your own code: a Python file or module:object. [default: the file's own]",
)
threads_option = click.option(
    "--threads", type=click.IntRange(1, 1024), help="CPU threads. [default: OMP_NUM_THREADS, else all cores]"
)


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words of a command line into names and key=value overrides; crank(shot=0.8) is a name with a parameter."""
    overrides = [word for word in words if "=" in word and "(" not in word.partition("=")[0]]
    return [word for word in words if word not in overrides], overrides


def as_settings(overrides: Sequence[str], function: Callable[..., Any]) -> dict[str, Any]:
    """Return key=value overrides as keywords for `function`, a function of the Python API; the last value of a key counts.

    `device` is written as a setting in every command, as in `fledge train`.
    """
    from fledge.core.overrides import split_override

    settings: dict[str, Any] = {}
    for key, value in map(split_override, overrides):
        if key in inspect.signature(function).parameters and key != "device":
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
    try:
        paths.check_output(path, endings)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint=option) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
