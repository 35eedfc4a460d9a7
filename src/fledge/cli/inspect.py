"""`fledge inspect`: show the contents of a run, a checkpoint, a recording or a flight log."""

from __future__ import annotations

from pathlib import Path

import click

from fledge.cli.group import as_json, main
from fledge.core.terminal import harmless, strict_json


@main.command()
@click.argument("target", type=click.Path())
@click.option("--all", "everything", is_flag=True, help="List every tensor and plain value, however many there are.")
@click.option(
    "--task", help="Task of the file, if it is your own code, which then runs: a Python file or module:object."
)
@click.option("--verify", is_flag=True, help="Read every tensor and name the damaged ones; then the exit code is 1.")
@as_json
def inspect(target: str, everything: bool, task: str | None, verify: bool, as_json: bool) -> None:
    """Show the contents of TARGET: a run, a shipped policy's name, or a file (.fledge, .pt, .pt.lz4, .safetensors, .frec,
    .flog).

    For a run or a folder of checkpoints: the command and machine that made it, its checkpoints (step, metric, and whether
    they hold everything or only the weights), its policy, and the settings that differ from the defaults. For a checkpoint
    or rollout: its entries; if the file is truncated, those that are complete. For a recording: its episodes and outcomes.
    For a robot's flight log: what happened in the flight, as `fledge-runtime log` prints it.
    """
    if target.endswith(".flog"):
        from fledge.deployment.flight_logs import describe_flight

        told, text = describe_flight(Path(target))
        return click.echo(strict_json(told) if as_json else "\n".join(map(harmless, text)))
    from fledge.tasks.registry import find_task
    from fledge.training.inspection import inspect_target, render

    found = inspect_target(target, find_task(task) if task else None, verify)
    lines = [strict_json(found)] if as_json else [harmless(line) for line in render(found, everything)]
    click.echo("\n".join(lines))
    if found.get("unreadable") or found.get("damaged"):
        raise SystemExit(1)
