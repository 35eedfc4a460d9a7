"""`fledge eval`: evaluate policies on held-out episodes."""

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
    help_config,
    main,
    split_overrides,
    task_option,
    threads_option,
    use_threads,
)
from fledge.cli.task_options import TaskOptionsCommand, interop_file, read_vary


@main.command(cls=TaskOptionsCommand, epilog=OVERRIDES)
@click.argument("arguments", nargs=-1, metavar="[POLICY]... [KEY=VALUE]...")
@task_option
@click.option("--episodes", default=1024, show_default=True, help="Episodes per policy.")
@click.option(
    "--seed", type=int, help="Seed of the held-out episodes. [default: 7 (test), or 1 (validation) with --checkpoints]"
)
@click.option(
    "--env",
    "env_preset",
    help="Env preset: crossing, swarm, default, navrl, static or empty. A trained policy keeps its own sensors and decision "
    "rate. [default: the policy's own env]",
)
@click.option("--vary", help="Values of a setting to evaluate one after the other: env.static_obstacles=100,350.")
@click.option(
    "--shield",
    help="Safety filter between each policy and its drones: orca (velocity obstacles) or planner (local map).",
)
@click.option("--sampled", is_flag=True, help="Sample actions instead of taking the mean.")
@click.option("--checkpoints", is_flag=True, help="Evaluate every checkpoint of one run, to show progress over time.")
@click.option(
    "--picture",
    type=PATH,
    help="Write a picture of the episodes, or of the curve: PNG, SVG, PDF or JPG. Of several policies: FILE_POLICY.png.",
)
@click.option(
    "--record",
    type=PATH,
    help="Write a recording of the most interesting episodes (.frec). Of several policies: FILE_POLICY.frec.",
)
@click.option(
    "--record-episodes", type=click.IntRange(1, 100_000), default=16, show_default=True, help="Episodes in --record."
)
@threads_option
@help_config
@as_json
def eval(
    arguments: tuple[str, ...],
    seed: int | None,
    vary: str | None,
    sampled: bool,
    checkpoints: bool,
    threads: int | None,
    help_config: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Evaluate policies on episodes that they were not trained on.

    POLICY is a run's folder, a policy file, a shipped policy's name, or a scripted policy: straight, gap, orca, planner.
    A single policy flies in its training env, at full difficulty (in navigation: all movers, no starts inside the forest).
    Several policies fly the same episodes, in the training env of the first trained policy, each with its own sensors and
    decision rate. perception=NAME sets the faults of detector, LiDAR and odometry (in navigation): perfect, typical, poor;
    sensor=NAME the sensor of scripted policies: navrl, mid360, ouster16, d435, vl53l5cx. device=cuda flies on a GPU.
    """
    policies, overrides = split_overrides(arguments)
    if help_config:
        from fledge.training.explain import explain_world

        return click.echo("\n".join(explain_world(policies, options["task"], options["env_preset"], overrides)))
    check_output(options["picture"])
    check_output(options["record"], "--record", (".frec",))
    if checkpoints and options["record"]:
        message = "--checkpoints writes no recording: name one checkpoint's file instead."
        raise click.BadParameter(message, param_hint="--record")
    from fledge.core.terminal import make_console, say
    from fledge.evaluation.episodes import TEST_SEED, VALIDATION_SEED
    from fledge.evaluation.evaluate import evaluate

    if seed is None:
        seed = VALIDATION_SEED if checkpoints else TEST_SEED
    options |= {"vary": read_vary(vary, options), "interop": interop_file(options)}
    options |= {"picture": options["picture"] or False, "threads": use_threads(threads)}
    result = evaluate(
        policies,
        options.pop("env_preset"),
        seed=seed,
        deterministic=not sampled,
        checkpoints=checkpoints,
        progress=not as_json,
        **options,
        **as_settings(overrides, evaluate),
    )
    if as_json:
        return click.echo(json.dumps(result.rows[0] if len(result.rows) == 1 else result.rows))
    make_console().print(*result.render())
    if result.note:
        say(make_console(stderr=True), result.note)
