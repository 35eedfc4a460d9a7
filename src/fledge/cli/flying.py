"""`fledge envelope`."""

from __future__ import annotations

from pathlib import Path

import click

from fledge.cli.group import as_json, check_picture, main


@main.command()
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--picture", type=click.Path(path_type=Path), help="Draw the ranges around the target, and time over ground."
)
@click.option("--check", type=click.IntRange(1, 10_000_000), metavar="N", help="The table's errors over N geometries.")
@as_json
def envelope(words: tuple[str, ...], picture: Path | None, check: int | None, as_json: bool) -> None:
    """How far a missile reaches in air combat: R_max, R_tr (turn and run), R_ne (no escape), and the time to decide.

    Words are own_speed, target_speed, aspect_deg (0: nose-on), off_boresight_deg, range_m, load_limits, and any of the
    duel's settings, for example: own_speed=300 target_speed=250 aspect_deg=30 env.missile.burn_s=8. Without --check,
    everything is flown out, and no table is needed.
    """
    check_picture(picture)

    from fledge.core.code import find_object

    find_object("fledge.tasks.aircombat.spacetime.command:run")(words, picture, check, as_json)
