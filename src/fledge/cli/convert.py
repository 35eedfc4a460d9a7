"""`fledge convert`: convert a checkpoint or a recording."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fledge.cli.group import as_json, main
from fledge.core.errors import ConfigError


@main.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--episode", type=click.IntRange(0), help="Episode of a recording, counted from 0. [default: 0; all]")
@click.option("--task", help="Task of a recording if it is code: a Python file or module:object.")
@as_json
def convert(source: Path, target: Path, episode: int | None, task: str | None, as_json: bool) -> None:
    """Convert a checkpoint or a recording; the ending of TARGET chooses the format.

    A checkpoint: .fledge, .pt, .pt.lz4 or .safetensors. All episodes of a recording: .html (a page to send to someone),
    .png, .svg, .pdf or .jpg (a picture). One episode: .acmi (Tacview), .mcap (Foxglove) or .json (all figures).
    """
    from fledge.evaluation.recordings import means_recording
    from fledge.storage import convert_checkpoint

    if means_recording(source, target):
        return convert_episodes(source, target, episode, task, as_json)
    if episode is not None or task is not None:
        raise ConfigError(f"{source} is not a recording: leave out --episode and --task.")
    sizes = convert_checkpoint(source, target)
    note = f" {sizes['note']}" if "note" in sizes else ""
    text = (
        f"{target}: {sizes['target_bytes']:,} bytes, from {sizes['source']}, which has {sizes['source_bytes']:,}.{note}"
    )
    click.echo(json.dumps(sizes, default=str) if as_json else text)


def convert_episodes(source: Path, target: Path, episode: int | None, task: str | None, as_json: bool) -> None:
    """Convert a recording, and print what was written."""
    from fledge.app.exporters import export_recording
    from fledge.core.terminal import harmless

    done = export_recording(source, target, episode, task)
    if "drawn" in done:
        written = f"{done['drawn']} of {done['episodes']} episodes"
    else:
        written = (
            f"episode {done['episode']} of {done['episodes']}: {harmless(done['outcome'])}, {done['seconds']:.1f} s"
        )
    click.echo(json.dumps(done) if as_json else f"{target}: {written}, {done['bytes']:,} bytes.")
