"""Commands about files: export, inspect, doctor, convert."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fledge.cli.group import as_json, task_option
from fledge.core.errors import ConfigError


@click.command()
@click.argument("policy")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@task_option
@click.option(
    "--golden",
    type=click.Path(path_type=Path),
    help="Also write observations of a flight and the actions on them (.npz).",
)
@as_json
def export(
    policy: str, file: Path, words: tuple[str, ...], task: str | None, golden: Path | None, as_json: bool
) -> None:
    """Write POLICY to FILE, and check that it acts the same: .onnx or .ts for other programs, .fledge for weights alone.

    Inputs are the observations that the policy reads, output its action without exploration (of DQN, the value of every
    action). The file carries a contract: what its inputs and outputs mean, in which units and frames, how many times a
    second; --json shows it. KEY=VALUE words change the world that the file says it is flown in, and a .fledge file's
    switches (policy.KEY=true).
    """
    from fledge.evaluate.policies import export_policy
    from fledge.tasks.registry import find_task

    result = export_policy(policy, file, find_task(task) if task else None, words, golden)
    if as_json:
        click.echo(json.dumps(result))
        return
    size, worst = result["bytes"] / 1e6, result["max_difference"]
    click.echo(f"{result['file']}: {size:.2f} MB, differs from the policy by {worst:.1e}")
    if golden is not None:
        click.echo(f"{golden}: {result['golden_cases']} cases to test it with")


@click.command()
@click.argument("target", type=click.Path())
@as_json
def inspect(target: str, as_json: bool) -> None:
    """Show what is inside TARGET: a run's folder, a shipped policy's name, or a .fledge, .pt, .pt.lz4, .safetensors or .frec.

    Of a run, the newest checkpoint and all that were kept; step, headline figure, and the settings that are not the
    defaults; then metadata, plain values and every tensor. Of a recording, its episodes and how they ended.
    """
    from fledge.core.terminal import harmless, strict_json
    from fledge.train.inspection import inspect_target, render

    found = inspect_target(target)
    lines = [strict_json(found)] if as_json else [harmless(line) for line in render(found)]
    click.echo("\n".join(lines))


@click.command()
@click.argument("target", type=click.Path())
@click.option("--repair", "mend", is_flag=True, help="Move what is no good into aside/ there, and mend `latest`.")
@as_json
def doctor(target: str, mend: bool, as_json: bool) -> None:
    """Verify every checkpoint in TARGET, a run's folder or any other: what can be resumed, what is damaged or left over.

    Reads every byte. Exits with 1 if something is amiss. --repair deletes nothing.
    """
    from fledge.core.terminal import harmless
    from fledge.storage.doctor import examine_folder, render, repair_folder

    report = repair_folder(target) if mend else examine_folder(target)
    lines = [json.dumps(report.as_dict())] if as_json else [harmless(line) for line in render(report)]
    click.echo("\n".join(lines))
    if not report.healthy:
        raise SystemExit(1)


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--episode", type=click.IntRange(0), help="Of a recording, which one, counted from 0. [default: 0; all]")
@click.option("--task", help="Of a recording, its task, where that is code: a Python file or module:object.")
@as_json
def convert(source: Path, target: Path, episode: int | None, task: str | None, as_json: bool) -> None:
    """Convert a checkpoint or a recording; the format follows the ending of TARGET.

    Of a checkpoint .fledge, .pt, .pt.lz4 or .safetensors. Of a recording .html (a page to be sent to someone), .png, .svg,
    .pdf or .jpg (a picture of all episodes); and of one episode .acmi (Tacview), .mcap (Foxglove) or .json (all figures).
    """
    from fledge.app.exporters import export_recording
    from fledge.core.terminal import harmless
    from fledge.evaluate.recordings import means_recording
    from fledge.storage import convert_checkpoint

    if means_recording(source, target):
        done = export_recording(source, target, episode, task)
        shown = (
            f"{done['drawn']} of {done['episodes']} episodes"
            if "drawn" in done
            else f"episode {done['episode']} of {done['episodes']}: {harmless(done['outcome'])}, {done['seconds']:.1f} s"
        )
        click.echo(json.dumps(done) if as_json else f"{target}: {shown}, {done['bytes']:,} bytes.")
        return
    if episode is not None or task is not None:
        raise ConfigError(f"{source} is no recording, so --episode and --task say nothing about it: leave them out.")
    sizes = convert_checkpoint(source, target)
    lost = f" {sizes['note']}" if "note" in sizes else ""
    text = (
        f"{target}: {sizes['target_bytes']:,} bytes, from {sizes['source']}, which has {sizes['source_bytes']:,}.{lost}"
    )
    click.echo(json.dumps(sizes, default=str) if as_json else text)


COMMANDS = (export, inspect, doctor, convert)
