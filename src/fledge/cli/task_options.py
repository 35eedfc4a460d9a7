"""Options that a task adds to `fledge eval` and `fledge benchmark`, read when one of these commands is parsed."""

from __future__ import annotations

from typing import Any

import click

from fledge.tasks.eval_options import EvalOption, eval_options


class TaskOptionsCommand(click.Command):
    """A command that also has the options of all tasks, which its callback receives as keywords."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        can_vary = any(param.name == "vary" for param in params)
        added = [
            click.Option([option.flag], help=option.help) for option in eval_options() if can_vary or not option.vary
        ]
        return [*params[:-1], *added, *params[-1:]]  # --help stays last


def keyword(option: EvalOption) -> str:
    """Return the keyword argument with which a command's callback receives an option."""
    return option.flag.removeprefix("--").replace("-", "_")


def interop_file(given: dict[str, Any]) -> str | None:
    """Remove the options that name another project's policy file from `given`, and return that file, or None."""
    return next(filter(None, [given.pop(keyword(o), None) for o in eval_options() if o.interop]), None)


def read_vary(vary: str | None, given: dict[str, Any]) -> tuple[str, list[str]] | None:
    """Return the setting to vary and its values, from --vary or from a task's option, which is removed from `given`."""
    for option in eval_options():
        listed = given.pop(keyword(option), None) if option.vary else None
        if listed and vary:
            raise click.BadParameter(f"pass {option.flag} or --vary, not both.", param_hint=option.flag)
        if listed:
            vary = f"{option.vary}={listed}"
    if not vary:
        return None
    key, sign, values = vary.partition("=")
    if not sign or not values.strip():
        raise click.BadParameter(
            f"{vary!r} must be env.key=value,value, for example env.speed_limit=1,2.", param_hint="--vary"
        )
    return key.strip(), [part.strip() for part in values.split(",")]
