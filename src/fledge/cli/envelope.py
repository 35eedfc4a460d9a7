"""`fledge envelope`: missile ranges of one geometry, or the accuracy of the precomputed range table that policies observe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fledge.cli.group import PATH, as_json, check_output, main


@main.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--picture", type=PATH, help="Write a picture: the ranges around the target, and paths over time.")
@click.option(
    "--check",
    type=click.IntRange(1, 10_000_000),
    metavar="N",
    help="Measure the errors of the range table over N random geometries.",
)
@as_json
def envelope(overrides: tuple[str, ...], picture: Path | None, check: int | None, as_json: bool) -> None:
    """Compute the ranges of a missile in air combat: R_max, R_tr (turn and run), R_ne (no escape), and the time to decide.

    Keys are own_speed, target_speed, aspect_deg (0: nose-on), off_boresight_deg, range_m, load_limits, and any of the
    duel's settings, for example: own_speed=300 target_speed=250 aspect_deg=30 env.missile.burn_s=8. The time to decide is how
    long the target can hold its course and still escape a shot by turning away. Without --check, missile flights are
    simulated, and no table is needed.
    """
    check_output(picture)
    from fledge.core.terminal import counting, make_console
    from fledge.tasks.registry import find_task

    queries = find_task("aircombat").metrics.queries()
    if check is not None:
        with counting(make_console(stderr=True), "brute force", check) as on_progress:
            found = queries["envelope_check"](overrides, check, on_progress)
    else:
        found = queries["envelope"](overrides, picture)
    if as_json:
        print(json.dumps(found))
    else:
        make_console().print(render_check(found) if check is not None else render_query(found))


def render_query(answer: dict[str, Any]) -> Any:
    """Return the missile ranges of one geometry as a text table."""
    from rich.table import Table

    title = (
        f"shooter {answer['own_speed']:g} m/s, target {answer['target_speed']:g} m/s, {answer['off_boresight_deg']:g}° off "
        f"boresight, aspect {answer['aspect_deg']:g}°"
    )
    shown = Table("", "", "", title=title, show_header=False)
    rows = (
        ("R_max", "r_max_m", "reaches a target that holds its course"),
        ("R_tr", "r_tr_m", "kills one that turns away and runs"),
        ("R_ne", "r_ne_m", "kills, whatever it does"),
    )
    for label, key, meaning in rows:
        shown.add_row(label, f"{answer[key] / 1000:.1f} km", meaning)
    seconds = answer["time_to_decide_s"]
    told = "never" if seconds is None else "too late" if seconds == 0 else f"{seconds:.1f} s"
    away = f"at {answer['range_m'] / 1000:g} km"
    shown.add_row("time to decide", told, f"{away}, until turning away no longer saves the target")
    for name, what in (("hold", "holds its course"), ("turn_away", "turns away")):
        hit = f"hit after {answer[f'flight_{name}_s']:.0f} s"
        miss = f"missed by {answer[f'miss_{name}_m'] / 1000:.1f} km"
        shown.add_row(f"shot {away}", hit if answer[f"kills_{name}"] else miss, f"if the target {what}")
    return shown


def render_check(found: dict[str, Any]) -> Any:
    """Return a text table of how far the precomputed range table is off, in percent."""
    from rich.table import Table

    shown = Table("", "R_max, hold", "R_tr, turn away", "R_ne", title=f"{found['geometries']:,} random geometries")
    for label, key in (("range error, median", "error_p50"), ("range error, 95 %", "error_p95")):
        shown.add_row(label, *(f"{found[name][key]:.2%}" for name in ("r_max_m", "r_tr_m", "r_ne_m")))
    for label, key in (
        ("false-safe", "false_safe"),
        ("false-safe at the border", "false_safe_at_border"),
        ("false alarm", "false_alarm"),
        ("false alarm at the border", "false_alarm_at_border"),
    ):
        shown.add_row(label, f"{found[f'{key}_hold']:.3%}", f"{found[f'{key}_turn_away']:.3%}", "")
    shown.caption = f"{1e9 * found['seconds_per_query']:.0f} ns a query"
    return shown
