"""`fledge tune`: search the settings of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fledge.cli.group import PATH, as_json, as_settings, main, split_overrides
from fledge.core.errors import InterruptedRunError

RANGES = (
    "Ranges: ppo.lr=1e-4..1e-2 (logarithmic, as the ends differ by a factor of 10 or more; lin:LOW..HIGH and log:LOW..HIGH "
    "choose), ppo.epochs=1..8 (whole numbers, as the setting is one), env.num_envs=64..512:64 (steps), and in quotes "
    "'algo=ppo|sac' (choices). All other KEY=VALUE are settings of all trials."
)


@main.command(epilog=RANGES)
@click.argument("arguments", nargs=-1, metavar="[TASK] [KEY=RANGE]... [KEY=VALUE]...")
@click.option(
    "--folder", type=PATH, help="Folder of the sweep; one that holds a sweep is joined. [default: runs/<time>-sweep]"
)
@click.option(
    "--preset", help="Training preset to start from; the first trial has its values. [default: as `fledge train`]"
)
@click.option("--trials", type=click.IntRange(1), help="Trials of the search, over all workers. [default: 24]")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Trials at the same time here.")
@click.option("--sampler", type=click.Choice(["tpe", "random", "grid"]), help="How to draw trials. [default: tpe]")
@click.option(
    "--pruner", type=click.Choice(["median", "hyperband", "none"]), help="Which trials to stop. [default: median]"
)
@click.option("--evaluations", type=click.IntRange(0), help="Evaluations during a trial, for the pruner. [default: 4]")
@click.option("--episodes", type=click.IntRange(1), help="Episodes of a trial's final evaluation. [default: 256]")
@click.option("--confirm", type=click.IntRange(1), help="Best trials to train again, beside the preset. [default: 3]")
@click.option("--seeds", type=click.IntRange(0), help="Further seeds of each of them; 0: do not confirm. [default: 3]")
@click.option("--mode", type=click.Choice(["search", "pbt"]), help="pbt: population-based training. [default: search]")
@click.option("--population", type=click.IntRange(4), help="Members, with --mode pbt. [default: 8]")
@click.option("--generations", type=click.IntRange(2), help="Generations, with --mode pbt. [default: 8]")
@click.option("--seed", type=int, help="Seed of the sweep and of its trials. [default: 0]")
@click.option(
    "--storage",
    help="Study on a server: postgresql://USER@HOST/DATABASE or grpc://HOST:PORT. [default: a journal file in the folder]",
)
@click.option("--heartbeat", "heartbeat_s", type=click.FloatRange(0.1), hidden=True)
@as_json
def tune(arguments: tuple[str, ...], folder: Path | None, as_json: bool, **options: Any) -> None:
    """Search settings for the best policy.

    TASK is as for `fledge train`. Every trial is an ordinary run in SWEEP/trials; its objective is the task's primary
    metric on the validation seed. The best trials and the preset are then trained with further seeds, and their means on
    the test seed are reported. SWEEP/best.yaml is a preset for `fledge train --preset`; SWEEP/report.html shows the sweep,
    `fledge watch SWEEP` while it runs.

    Further workers join with `fledge tune --folder SWEEP`, on any machine that sees the folder. Ctrl-C saves the running
    trials; the same command goes on. A killed worker's trial is continued by another one.
    """
    from fledge.training.command import read_task
    from fledge.tuning.api import tune as run_tune

    tasks, overrides = split_overrides(arguments)
    task, overrides = read_task(tasks, overrides)
    settings = as_settings(overrides, run_tune)
    result = run_tune(task, folder, **options, **settings)
    if as_json:
        click.echo(json.dumps(result.summary))
    if result.interrupted:
        raise SystemExit(InterruptedRunError.exit_code)
