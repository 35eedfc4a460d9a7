"""`fledge play`: a match in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fledge.cli.group import main
from fledge.cli.serving import open_app, server_options
from fledge.core.extras import extra


@main.command()
@click.argument("overrides", nargs=-1, metavar="[TASK] [KEY=VALUE]...")
@server_options
def play(overrides: tuple[str, ...], **options: Any) -> None:
    """Play a match in the browser against a scripted pilot, a policy or another person; or watch policies, and take over.

    TASK is aircombat. KEY=VALUE is opponent=NAME, or blue=NAME and red=NAME, where NAME is a scripted pilot, a run's folder,
    a policy file, or `you`; seed=N; start=NAME (start position: head_on, random, ...); or a setting of the env, env.key=value.
    """
    with extra("ui"):
        import nicegui  # noqa: F401
    from fledge.app.play.match_manager import read_play_args

    matches, path = read_play_args(overrides)

    def page(server: Any) -> str:
        from fledge.app.pages.play import use_matches

        use_matches(server, matches)
        return path

    open_app([Path("runs")] if Path("runs").is_dir() else [], page, **options)
