"""The command line: each command parses, calls one function, and prints. Exit 2 on misuse, 1 on failure."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fledge.bench.commands import as_json, bench
from fledge.core.errors import ConfigError, FledgeError, InterruptedRunError
from fledge.ui.command import COMMANDS, watching

UNSAVED = "Stopped before anything was saved."
OVERRIDES = "Settings are changed by key=value words, for example env.num_envs=512; --help-config lists them all."


class Commands(click.Group):
    """Turns our errors into one sentence and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        debug = "--debug" in sys.argv
        try:
            return super().main(*args, **kwargs)
        except FledgeError as error:
            if debug:
                raise
            click.echo(f"fledge: {error}", err=True)
            sys.exit(error.exit_code)
        except BrokenPipeError:
            raise  # click ends quietly
        except OSError as error:
            if debug:
                raise
            click.echo(f"fledge: {sentence_of(error)}", err=True)
            sys.exit(1)


def sentence_of(error: OSError) -> str:
    """What the system refused, and what to do."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename} cannot be made: there is a file where a folder is needed. Choose another place."
    return f"{error.filename or 'The output'} cannot be used ({error.strerror or error}): choose another place."


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="fledge")
def main(debug: bool) -> None:
    """Fledge teaches policies to fly."""


for command in COMMANDS:
    main.add_command(command)


def show_training(tasks: Sequence[str], preset: str | None, words: Sequence[str], resume: Path | None = None) -> None:
    """Print every setting of a training as it would run, and where its value comes from."""
    from fledge.train.explain import explain_training

    click.echo("\n".join(explain_training(tasks, preset, words, resume)))


help_config = click.option(
    "--help-config", is_flag=True, help="List every setting as it would be used here, with its meaning and limits."
)


task_option = click.option(
    "--task", help="The policy's task, where it is code: a Python file or module:object. [default: what the file says]"
)


@main.command(epilog=OVERRIDES)
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


@main.command(epilog=OVERRIDES)
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


@main.command(epilog=OVERRIDES)
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


@main.command(
    epilog=f"{OVERRIDES} As options too: --seed 3, --num-envs 512.", context_settings={"ignore_unknown_options": True}
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TASK] [KEY=VALUE]...")
@click.option(
    "--preset",
    help="Training preset: for navigation fast, navrl, sac, td3, dqn; for aircombat fast, league, exploiter, dqn; or a YAML "
    "file of what differs from one, which its "
    "`base: NAME` names. [default, of both: algo's]",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Folder of the run. [default: runs/<time>]")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run exactly where it stopped.")
@click.option("--task", "task_word", help="The same as TASK, in front of or behind other words.")
@click.option("--live", is_flag=True, help="Show it in the browser meanwhile, as `fledge watch RUN` does.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Of --live.")
@help_config
@as_json
def train(
    words: tuple[str, ...],
    preset: str | None,
    folder: Path | None,
    resume: Path | None,
    task_word: str | None,
    live: bool,
    port: int,
    help_config: bool,
    as_json: bool,
) -> None:
    """Train a policy: watch it learn, stop and resume at will.

    TASK is navigation (the default), aircombat, gym:ID for any Gymnasium env, a Python file such as examples/hover.py, or
    module:object. Ctrl-C saves and stops; `--resume RUN` goes on.
    """
    given = read_flags(words)
    overrides = [w for w in given if "=" in w]
    tasks = [w for w in given if "=" not in w] + ([task_word] if task_word else [])
    if help_config:
        return show_training(tasks, preset, overrides, resume)
    try:
        with stopping_at_once():
            from fledge.train.command import run_training

        with watching(port) as watch:
            result = run_training(tasks, preset, overrides, folder, resume, watch if live else None)
    except KeyboardInterrupt:
        raise InterruptedRunError(UNSAVED) from None
    if as_json and result is not None:
        click.echo(json.dumps(result))


@contextlib.contextmanager
def stopping_at_once() -> Iterator[None]:
    """Ctrl-C ends the process while big packages load, some of which would swallow a KeyboardInterrupt."""

    def stop(number: int, frame: Any) -> None:
        click.echo(f"fledge: {UNSAVED}", err=True)
        os._exit(InterruptedRunError.exit_code)

    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def read_flags(words: Sequence[str]) -> list[str]:
    """Words with `--name value` as `name=value`, unless what stands there was meant to be one of the command's options."""
    if not any(word.startswith("-") for word in words):
        return list(words)
    import difflib

    own = [name for option in click.get_current_context().command.params for name in option.opts]
    for word in words:
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, own, n=1, cutoff=0.85) if name.startswith("--") else []
        if near:
            raise click.NoSuchOption(name, possibilities=near)
    from fledge.core.overrides import flags_as_words
    from fledge.tasks.registry import task_names

    return flags_as_words(words, task_names())


@main.command(epilog=OVERRIDES)
@click.argument("words", nargs=-1, metavar="[TASK] [KEY=VALUE]...")
@click.option("--preset", help="The training to advise on (PPO). [default: the task's]")
@click.option("--budget", default=0.02, show_default=True, help="Share of training time that saving may cost.")
@click.option("--seconds", default=60.0, show_default=True, help="Time to spend on comparing the ways to collect.")
@click.option("--picture", type=click.Path(path_type=Path), help="Write the figures as a picture (PNG).")
@help_config
@as_json
def advise(
    words: tuple[str, ...],
    preset: str | None,
    budget: float,
    seconds: float,
    picture: Path | None,
    help_config: bool,
    as_json: bool,
) -> None:
    """Should I compress, archive, pipeline, and how often save? Measured here, with this config.

    Prints the decision tree with the measured numbers, and the settings to use. Takes a few minutes.
    """
    tasks, overrides = [w for w in words if "=" not in w], [w for w in words if "=" in w]
    if help_config:
        return show_training(tasks, preset, overrides)
    from fledge.advise import advise as measure_and_decide
    from fledge.advise import render, save_plot, settings_line
    from fledge.core.terminal import doing, make_console
    from fledge.train.config import make_config

    if len(tasks) > 1:
        raise ConfigError(f"{' and '.join(tasks)} came, but the advice is about one task.")
    cfg = make_config(tasks[0] if tasks else "navigation", preset, overrides)
    if picture and (picture.suffix != ".png" or not picture.parent.is_dir()):
        raise ConfigError(f"{picture} cannot be written: give a .png in a folder that exists.")
    with doing(make_console(stderr=True), "advise") as on_progress:
        result = measure_and_decide(cfg, budget, seconds, on_progress)
    if picture:
        save_plot(result, picture)
        click.echo(f"picture: {picture}", err=True)
    if as_json:
        click.echo(json.dumps(result))
    else:
        make_console().print(*render(result), sep="\n")
        make_console().print(settings_line(result), soft_wrap=True)


@main.command()
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


@main.command()
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


@main.command()
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


@main.command()
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
    from fledge.core.terminal import harmless
    from fledge.evaluate.recordings import convert_recording, means_recording
    from fledge.storage import convert_checkpoint

    if means_recording(source, target):
        if target.suffix in (".html", ".mcap", ".json"):
            from fledge.ui.convert import convert_for_viewers as convert_recording
        done = convert_recording(source, target, episode, task)
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


@main.command()
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--picture", type=click.Path(path_type=Path), help="Draw the ranges around the target, and time over ground."
)
@click.option("--check", type=click.IntRange(1, 10_000_000), metavar="N", help="The table's errors over N geometries.")
@as_json
def envelope(words: tuple[str, ...], picture: Path | None, check: int | None, as_json: bool) -> None:
    """How far a missile reaches in air combat: R_max, R_tr (turn and run), R_ne (no escape), and the time to decide.

    Words are own_speed, target_speed, aspect_deg (0: nose-on), off_boresight_deg, range_m, load_limits, and any of the
    duel's settings, for example: own_speed=300 target_speed=250 aspect_deg=30 env.missile.burn_s=8. Without --check,
    everything is flown out, and no table is needed.
    """
    check_picture(picture)
    from fledge.tasks.registry import find_tool

    find_tool("envelope")(words, picture, check, as_json)


main.add_command(bench)


if __name__ == "__main__":
    main()
