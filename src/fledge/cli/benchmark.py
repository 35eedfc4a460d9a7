"""`fledge benchmark`: compare policies by a published protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fledge.cli.group import OVERRIDES, as_json, check_picture, main, split_overrides, threads_option, use_threads
from fledge.cli.task_options import TaskOptionsCommand, interop_file


@main.command(cls=TaskOptionsCommand, epilog=OVERRIDES)
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[POLICY]... [KEY=VALUE]...")
@click.option("--task", default="navigation", show_default=True, help="Task that has the benchmark.")
@click.option("--only", is_flag=True, help="Evaluate the named policies only, without the reference agents.")
@click.option("--episodes", type=click.IntRange(1), default=1024, show_default=True, help="Per policy and env config.")
@click.option("--seed", default=7, show_default=True, help="Seed of the held-out episodes.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the table: PNG, SVG, PDF or JPG.")
@threads_option
@as_json
def benchmark(
    name: str,
    arguments: tuple[str, ...],
    task: str,
    only: bool,
    episodes: int,
    seed: int,
    picture: Path | None,
    threads: int | None,
    as_json: bool,
    **task_options: Any,
) -> None:
    """Compare policies by a published protocol, beside reference agents and published figures.

    NAME is crossing (a walled forest, 0 to 80 movers), navrl (its edges and rows, 0 to 120 movers), p2m (its arena, five
    settings) or density (columns only, sparse to dense). POLICY is as for `fledge eval`; POLICY+SHIELD adds a safety
    filter: fledge-nav+planner. Published figures come from their authors' simulators.
    """
    check_picture(picture)
    from fledge.evaluation.benchmark import BenchmarkRequest, run_benchmark
    from fledge.tasks.registry import find_task

    policies, overrides = split_overrides(arguments)
    request = BenchmarkRequest(
        name=name,
        policies=policies,
        overrides=overrides,
        episodes=episodes,
        seed=seed,
        only=only,
        foreign=interop_file(task_options),
        picture=picture,
        threads=use_threads(threads),
        quiet=as_json,
    )
    figures = run_benchmark(find_task(task), request)
    if as_json:
        click.echo(json.dumps(figures))
