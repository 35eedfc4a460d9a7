"""`fledge convert`: convert a checkpoint or a recording."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fledge.cli.group import PATH, as_json, main
from fledge.core.errors import ConfigError
from fledge.core.terminal import harmless

FLIGHT_LOGS = (".ulg", ".bag", ".db3", ".mcap", ".flog")


@main.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@click.option(
    "--episode",
    type=click.IntRange(0),
    help="Episode to convert, counted from 0. [default: all; 0 for .acmi, .mcap and .json]",
)
@click.option("--task", help="Task of the recording, if it is your own code: a Python file or module:object.")
@as_json
def convert(source: Path, target: Path, episode: int | None, task: str | None, as_json: bool) -> None:
    """Convert a checkpoint or a recording; the ending of TARGET chooses the format.

    A checkpoint: .fledge, .pt, .pt.lz4 or .safetensors. All episodes of a recording: .html (a page to send to someone),
    .png, .svg, .pdf or .jpg (a picture), .webp or .gif (a moving picture of the episodes on one map). One episode: .acmi
    (Tacview), .mcap (Foxglove) or .json (all values).

    The log of a real flight to .frec (a recording) or .xyz (the hits of its LiDAR): .ulg (PX4), .bag, .db3 or .mcap (ROS,
    needs the extra `logs`), or .flog (fledge_runtime).
    """
    from fledge.evaluation.recordings import means_recording
    from fledge.storage import convert_checkpoint

    if source.suffix in FLIGHT_LOGS:
        from fledge.deployment.flight_logs import convert_flight

        facts = convert_flight(source, target)
        text = f"{target}: {facts['seconds']:.1f} s, {facts['length_m']:.1f} m, {facts['points']:,} points"
        return click.echo(json.dumps(facts) if as_json else f"{text}, {facts['bytes']:,} bytes.")
    if means_recording(source, target):
        from fledge.app.exporters import export_recording

        done = export_recording(source, target, episode, task)
        written = f"{done['drawn']}" if "drawn" in done else f"episode {done['episode']}"
        written += f" of {done['episodes']}"
        written += " episodes" if "drawn" in done else f": {harmless(done['outcome'])}, {done['seconds']:.1f} s"
        where = ", those on the most used map" if 1 < done.get("drawn", 0) < done["episodes"] else ""
        return click.echo(json.dumps(done) if as_json else f"{target}: {written}{where}, {done['bytes']:,} bytes.")
    if episode is not None or task is not None:
        raise ConfigError(f"{source} is not a recording, so --episode and --task do not apply: leave them out.")
    sizes = convert_checkpoint(source, target)
    text = f"{target}: {sizes['target_bytes']:,} bytes, from {sizes['source']}, which has {sizes['source_bytes']:,}."
    text += f" {sizes['note']}" if "note" in sizes else ""
    click.echo(json.dumps(sizes, default=str) if as_json else text)
