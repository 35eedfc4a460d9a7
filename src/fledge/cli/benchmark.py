"""`fledge benchmark`: compare policies by a published protocol."""

from __future__ import annotations

import json
from typing import Any

import click

from fledge.cli.group import (
    OVERRIDES,
    PATH,
    as_json,
    as_settings,
    check_output,
    main,
    split_overrides,
    threads_option,
    use_threads,
)
from fledge.cli.task_options import TaskOptionsCommand, interop_file


@main.command(cls=TaskOptionsCommand, epilog=OVERRIDES)
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[POLICY]... [KEY=VALUE]...")
@click.option("--task", default="navigation", show_default=True, help="Task that has the benchmark.")
@click.option("--only", is_flag=True, help="Evaluate the named policies only, without the reference agents.")
@click.option(
    "--columns",
    default="",
    metavar="NAME,...",
    help="Headings of the env configs to fly in. By default all of the table.",
)
@click.option(
    "--episodes", type=click.IntRange(1), default=1024, show_default=True, help="Episodes per policy and env config."
)
@click.option("--seed", default=7, show_default=True, help="Seed of the held-out episodes.")
@click.option("--picture", type=PATH, help="Write a picture of the table: PNG, SVG, PDF or JPG.")
@threads_option
@as_json
def benchmark(
    name: str,
    arguments: tuple[str, ...],
    task: str,
    only: bool,
    columns: str,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare policies by a published protocol, beside reference agents and published results.

    NAME is crossing (a walled forest, 0 to 80 movers), navrl (the forest of NavRL, github.com/Zhefan-Xu/NavRL, 0 to 120
    movers), p2m (the arena of P2M, five settings), sando (obstacle worlds of SANDO, github.com/mit-acl/sando, 50 to 200
    obstacles), fapp (the scene of FAPP, github.com/arclab-hku/FAPP), density (columns only, sparse to dense), swarm (2 to 32
    drones), worlds (six kinds of generated worlds, ten movers), faults (crossing under one fault of perception, wind or
    drone at a time) or transfer (crossing with drones that fly in other simulators under a PX4-like autopilot; MuJoCo and
    PyFlyt if they are installed). POLICY is as for `fledge eval`;
    POLICY+SHIELD adds a safety filter, for example fledge-nav+planner. All policies fly with the same goal radius, collision
    radius and time limit. Published results come from their authors' simulators. device=cuda flies on a GPU.
    """
    check_output(options["picture"])
    from fledge.core.terminal import make_console
    from fledge.evaluation.api import benchmark as run

    policies, overrides = split_overrides(arguments)
    options |= {"threads": use_threads(threads), "progress": not as_json, "interop": interop_file(options)}
    chosen = [each.strip() for each in columns.split(",") if each.strip()]
    result = run(name, policies, task=task, only=only, columns=chosen, **options, **as_settings(overrides, run))
    if as_json:
        return click.echo(json.dumps(result.to_dict()))
    make_console().print(*result.render())
