"""Commands that fly: eval, benchmark, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fledge.cli.group import OVERRIDES, as_json, help_config, task_option


@click.command(epilog=OVERRIDES)
@click.argument("words", nargs=-1, metavar="[POLICY]... [KEY=VALUE]...")
@task_option
@click.option("--navrl-checkpoint", type=click.Path(), help="NavRL's released .pt file, flown in the navrl preset.")
@click.option("--episodes", default=1024, show_default=True, help="Episodes to fly, per policy.")
@click.option(
    "--seed", type=int, help="Decides the held-out world. [default: 7, for tests; with --checkpoints 1, to choose by]"
)
@click.option(
    "--env",
    "env_preset",
    help="Preset to fly in, for example crossing, default, navrl, static, empty. [default: its own]",
)
@click.option("--movers", help="Numbers of moving obstacles to try one after the other, for example 0,40,80.")
@click.option("--vary", help="The same for any setting: --vary env.static_obstacles=100,350.")
@click.option(
    "--shield",
    help="Between each policy and its drones: orca (velocity obstacles) or planner (local map, looks ahead). Navigation.",
)
@click.option("--sampled", is_flag=True, help="Sample actions instead of taking the mean.")
@click.option("--checkpoints", is_flag=True, help="Fly every kept checkpoint of one run: the headline against time.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    help="Write a picture of the episodes, or of the curve: PNG, SVG, PDF or JPG.",
)
@click.option(
    "--record", type=click.Path(path_type=Path), help="Leave a recording of the most interesting episodes (.frec)."
)
@click.option(
    "--record-episodes", type=click.IntRange(1, 100_000), default=16, show_default=True, help="How many of them."
)
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads. [default: OMP_NUM_THREADS, else all cores]")
@help_config
@as_json
def eval(
    words: tuple[str, ...],
    task: str | None,
    navrl_checkpoint: str | None,
    episodes: int,
    seed: int | None,
    env_preset: str | None,
    movers: str | None,
    vary: str | None,
    shield: str | None,
    sampled: bool,
    checkpoints: bool,
    picture: Path | None,
    record: Path | None,
    record_episodes: int,
    threads: int | None,
    help_config: bool,
    as_json: bool,
) -> None:
    """Fly policies in worlds they have never seen, and count how it ends.

    POLICY is a run's folder, a policy file, a shipped policy's name, or a pilot: straight, gap, orca, planner. Each flies
    in the world it was trained for, unless you change it; several are flown on the same episodes and compared.
    """
    # a setting is key=value; a pilot with parameters is crank(shot=0.8)
    overrides = [w for w in words if "=" in w and "(" not in w.partition("=")[0]]
    policies = [w for w in words if w not in overrides]
    if help_config:
        from fledge.train.explain import explain_world

        return click.echo("\n".join(explain_world(policies, task, env_preset, overrides)))
    check_picture(picture)
    check_recording(record, checkpoints)
    import torch

    from fledge.core.machine import torch_threads
    from fledge.evaluate.command import EvalRequest, run_evaluations
    from fledge.evaluate.curve import run_curve
    from fledge.evaluate.episodes import TEST_SEED, VALIDATION_SEED

    if seed is None:
        seed = VALIDATION_SEED if checkpoints else TEST_SEED
    threads = threads or torch_threads()
    torch.set_num_threads(threads)
    request = EvalRequest(
        policies=policies,
        overrides=overrides,
        episodes=episodes,
        seed=seed,
        task=task,
        env_preset=env_preset,
        vary=read_vary(movers, vary),
        deterministic=not sampled,
        picture=picture,
        record=record,
        record_episodes=record_episodes,
        threads=threads,
        quiet=as_json,
        foreign=navrl_checkpoint,
        shield=shield,
    )
    rows = run_curve(request) if checkpoints else run_evaluations(request)
    if as_json:
        click.echo(json.dumps(rows[0] if len(rows) == 1 else rows))


def check_picture(picture: Path | None) -> None:
    """Refuse a picture that could not be written, before anything is flown for it."""
    if picture is not None and picture.suffix not in (".png", ".svg", ".pdf", ".jpg"):
        raise click.BadParameter(f"{picture.name} must end in .png, .svg, .pdf or .jpg.", param_hint="--picture")
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)


def check_recording(record: Path | None, checkpoints: bool) -> None:
    """Refuse a recording that could not be written, before anything is flown for it."""
    if record is None:
        return
    if record.suffix != ".frec":
        raise click.BadParameter(f"{record.name} must end in .frec.", param_hint="--record")
    if checkpoints:
        raise click.BadParameter(
            "of --checkpoints there is a curve: record one of them by its file.", param_hint="--record"
        )
    record.parent.mkdir(parents=True, exist_ok=True)


def read_vary(movers: str | None, vary: str | None) -> tuple[str, list[str]] | None:
    """The setting to vary and its values, from --movers or --vary."""
    if movers and vary:
        raise click.BadParameter("give --movers or --vary, not both.", param_hint="--movers")
    if movers:
        if not all(part.strip().isdigit() for part in movers.split(",")):
            raise click.BadParameter(
                "give whole numbers separated by commas, for example 0,40,80.", param_hint="--movers"
            )
        vary = f"env.moving_obstacles={movers}"
    if not vary:
        return None
    key, sign, values = vary.partition("=")
    if not sign or not values.strip():
        raise click.BadParameter("write env.key=value,value, for example env.speed_limit=1,2.", param_hint="--vary")
    return key.strip(), [part.strip() for part in values.split(",")]


@click.command(epilog=OVERRIDES)
@click.argument("name")
@click.argument("words", nargs=-1, metavar="[POLICY]... [KEY=VALUE]...")
@click.option("--task", default="navigation", show_default=True, help="Whose benchmark.")
@click.option("--only", is_flag=True, help="Fly the named policies alone, without the reference agents.")
@click.option("--navrl-checkpoint", type=click.Path(), help="NavRL's released .pt file, to fly it too.")
@click.option("--episodes", type=click.IntRange(1), default=1024, show_default=True, help="Per policy and world.")
@click.option("--seed", default=7, show_default=True, help="Decides the held-out worlds.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the table: PNG, SVG, PDF or JPG.")
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads. [default: OMP_NUM_THREADS, else all cores]")
@as_json
def benchmark(name: str, words: tuple[str, ...], task: str, navrl_checkpoint: str | None, **options: Any) -> None:
    """Compare policies by a protocol of the field, beside reference agents and published figures.

    NAME is crossing (a walled forest, 0 to 80 movers), navrl (its edges and rows, 0 to 120 movers), p2m (its arena, five
    settings) or density (columns alone, thin to thick). POLICY is what `fledge eval` takes; POLICY+SHIELD flies behind a
    shield: fledge-nav+planner. Figures of others are theirs, in their simulators.
    """
    check_picture(options["picture"])
    import torch

    from fledge.core.machine import torch_threads
    from fledge.evaluate.benchmark import BenchmarkRequest, run_benchmark
    from fledge.tasks.registry import find_task

    show_json, threads = options.pop("as_json"), options.pop("threads") or torch_threads()
    torch.set_num_threads(threads)
    policies, overrides = (
        [w for w in words if "=" not in w or "(" in w],
        [w for w in words if "=" in w and "(" not in w],
    )
    request = BenchmarkRequest(
        name, policies, overrides, foreign=navrl_checkpoint, threads=threads, quiet=show_json, **options
    )
    figures = run_benchmark(find_task(task), request)
    if show_json:
        click.echo(json.dumps(figures))


@click.command(epilog=OVERRIDES)
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@task_option
@click.option("--out", type=click.Path(path_type=Path), help="The page to write. [default: RUN/report.html]")
@click.option("--episodes", default=256, show_default=True, help="Episodes to fly, per policy and world.")
@click.option("--seed", default=7, show_default=True, help="Decides the held-out world.")
@click.option("--vary", help="Worlds to try one after the other: --vary env.moving_obstacles=0,80.")
@as_json
def report(
    run: Path,
    words: tuple[str, ...],
    task: str | None,
    out: Path | None,
    episodes: int,
    seed: int,
    vary: str | None,
    as_json: bool,
) -> None:
    """Write a page about RUN: its curves, how it does in the held-out world beside the task's pilots, and pictures."""
    from fledge.evaluate.command import EvalRequest
    from fledge.evaluate.report import report_on_run

    request = EvalRequest([], list(words), episodes, seed, task=task, vary=read_vary(None, vary), quiet=as_json)
    result = report_on_run(run, request, out or run / "report.html")
    click.echo(json.dumps(result) if as_json else f"report: {result['report']}")


COMMANDS = (eval, benchmark, report)
