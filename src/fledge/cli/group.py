"""The group of all commands, and the options that several of them have."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fledge.core.errors import FledgeError

OVERRIDES = "Settings are changed by key=value words, for example env.num_envs=512; --help-config lists them all."


class Commands(click.Group):
    """Turns our errors into one sentence and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        debug = "--debug" in sys.argv
        try:
            return super().main(*args, **kwargs)
        except FledgeError as error:
            if debug:
                raise
            click.echo(f"fledge: {error}", err=True)
            sys.exit(error.exit_code)
        except BrokenPipeError:
            raise  # click ends quietly
        except OSError as error:
            if debug:
                raise
            click.echo(f"fledge: {sentence_of(error)}", err=True)
            sys.exit(1)


def sentence_of(error: OSError) -> str:
    """What the system refused, and what to do."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename} cannot be made: there is a file where a folder is needed. Choose another place."
    return f"{error.filename or 'The output'} cannot be used ({error.strerror or error}): choose another place."


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="fledge")
def main(debug: bool) -> None:
    """Fledge teaches policies to fly."""


def show_training(tasks: Sequence[str], preset: str | None, words: Sequence[str], resume: Path | None = None) -> None:
    """Print every setting of a training as it would run, and where its value comes from."""
    from fledge.train.explain import explain_training

    click.echo("\n".join(explain_training(tasks, preset, words, resume)))


help_config = click.option(
    "--help-config", is_flag=True, help="List every setting as it would be used here, with its meaning and limits."
)


as_json = click.option("--json", "as_json", is_flag=True, help="Print figures as one JSON object.")
task_option = click.option(
    "--task", help="The policy's task, where it is code: a Python file or module:object. [default: what the file says]"
)
