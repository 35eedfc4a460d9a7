"""`fledge inspect`, `fledge doctor` and `fledge convert`: checkpoints and recordings as files."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fledge.cli.group import PATH, as_json, main
from fledge.core.errors import ConfigError
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


@main.command()
@click.argument("target", type=click.Path())
@click.option("--repair", is_flag=True, help="Move damaged files to aside/ in that folder, and correct `latest`.")
@as_json
def doctor(target: str, repair: bool, as_json: bool) -> None:
    """Verify every checkpoint in TARGET, a run's folder or any other: which can be resumed, are damaged, or left over.

    Reads every byte. Exits with 1 if anything is wrong. --repair deletes nothing.
    """
    from fledge.storage.doctor import examine_folder, render, repair_folder

    report = repair_folder(target) if repair else examine_folder(target)
    lines = [json.dumps(report.as_dict())] if as_json else [harmless(line) for line in render(report)]
    click.echo("\n".join(lines))
    if not report.healthy:
        raise SystemExit(1)


@main.command()
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
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
        from fledge.app.exporters import export_recording

        done = export_recording(source, target, episode, task)
        written = f"{done['drawn']}" if "drawn" in done else f"episode {done['episode']}"
        written += f" of {done['episodes']}"
        written += " episodes" if "drawn" in done else f": {harmless(done['outcome'])}, {done['seconds']:.1f} s"
        return click.echo(json.dumps(done) if as_json else f"{target}: {written}, {done['bytes']:,} bytes.")
    if episode is not None or task is not None:
        raise ConfigError(f"{source} is not a recording: leave out --episode and --task.")
    sizes = convert_checkpoint(source, target)
    text = f"{target}: {sizes['target_bytes']:,} bytes, from {sizes['source']}, which has {sizes['source_bytes']:,}."
    text += f" {sizes['note']}" if "note" in sizes else ""
    click.echo(json.dumps(sizes, default=str) if as_json else text)
