"""`fledge inspect`: show the contents of a run, a checkpoint or a recording."""

from __future__ import annotations

import click

from fledge.cli.group import as_json, main
from fledge.core.terminal import harmless, strict_json


@main.command()
@click.argument("target", type=click.Path())
@as_json
def inspect(target: str, as_json: bool) -> None:
    """Show the contents of TARGET: a run's folder, a shipped policy's name, or a .fledge, .pt, .pt.lz4, .safetensors or .frec.

    For a run: the newest checkpoint and all that were kept, step, primary metric, and the settings that differ from the
    defaults; then metadata, plain values and every tensor. For a recording: its episodes and how they ended.
    """
    from fledge.training.inspection import inspect_target, render

    found = inspect_target(target)
    lines = [strict_json(found)] if as_json else [harmless(line) for line in render(found)]
    click.echo("\n".join(lines))
