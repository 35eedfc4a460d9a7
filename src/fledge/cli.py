"""The command line: each command parses, calls one function, and prints. Exit 2 on misuse, 1 on failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from fledge.core.errors import ConfigError, FledgeError

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


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="fledge")
def main(debug: bool) -> None:
    """Fledge teaches policies to fly."""


def show_config_help(context: click.Context, option: click.Parameter, value: bool) -> None:
    """Print every setting of the command's config and stop."""
    if not value:
        return
    from fledge.core.overrides import field_help
    from fledge.train.config import TrainConfig

    for key, field in field_help(TrainConfig).items():
        click.echo(f"{key}={field.default}\n    {field.help} ({field.type_name})")
    context.exit()


help_config = click.option(
    "--help-config",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_config_help,
    help="List every setting with its default and meaning.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print figures as one JSON object.")


@main.command(epilog=OVERRIDES)
@click.argument("words", nargs=-1, metavar="[POLICY]... [KEY=VALUE]...")
@click.option("--navrl-checkpoint", type=click.Path(), help="NavRL's released .pt file, flown in the navrl preset.")
@click.option("--episodes", default=1024, show_default=True, help="Episodes to fly, per policy.")
@click.option("--seed", default=1, show_default=True, help="Decides maps, starts and goals; same for every policy.")
@click.option("--env", "env_preset", help="Task preset: default, navrl, static or empty. [default: by policy]")
@click.option("--movers", help="Numbers of moving obstacles to try one after the other, for example 0,40,80.")
@click.option("--sampled", is_flag=True, help="Sample actions instead of taking the mean.")
@click.option("--checkpoints", is_flag=True, help="Fly every kept checkpoint of one run: success against time.")
@click.option(
    "--picture", type=click.Path(path_type=Path), help="Write a picture of the flights, or of the curve (PNG)."
)
@click.option("--threads", type=int, help="CPU threads. [default: all cores]")
@help_config
@as_json
def eval(
    words: tuple[str, ...],
    navrl_checkpoint: str | None,
    episodes: int,
    seed: int,
    env_preset: str | None,
    movers: str | None,
    sampled: bool,
    checkpoints: bool,
    picture: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Fly policies on maps they have never seen, and count how it ends.

    POLICY is a run's folder, a policy file, a shipped policy's name, or a pilot: straight, gap. Several are flown on
    the same episodes and compared.
    """
    from fledge.evaluate.command import EvalRequest, run_evaluations
    from fledge.evaluate.curve import run_curve

    names = [w for w in words if "=" not in w]
    counts = None
    if movers:
        if not all(part.strip().isdigit() for part in movers.split(",")):
            raise click.BadParameter(
                "give whole numbers separated by commas, for example 0,40,80.", param_hint="--movers"
            )
        counts = [int(part) for part in movers.split(",")]
    request = EvalRequest(
        policies=names,
        overrides=[w for w in words if "=" in w],
        episodes=episodes,
        seed=seed,
        env_preset=env_preset,
        movers=counts,
        deterministic=not sampled,
        picture=picture,
        threads=threads,
        quiet=as_json,
        navrl_checkpoint=navrl_checkpoint,
    )
    rows = run_curve(request) if checkpoints else run_evaluations(request)
    if as_json:
        click.echo(json.dumps(rows[0] if len(rows) == 1 else rows))


@main.command(epilog=OVERRIDES)
@click.argument("words", nargs=-1, metavar="[navigation] [KEY=VALUE]...")
@click.option(
    "--preset", help="Training preset: fast, navrl, sac, td3, dqn, or a YAML file. [default: fast, or algo's]"
)
@click.option("--folder", type=click.Path(path_type=Path), help="Folder of the run. [default: runs/<time>]")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run exactly where it stopped.")
@help_config
@as_json
def train(words: tuple[str, ...], preset: str | None, folder: Path | None, resume: Path | None, as_json: bool) -> None:
    """Train a policy: watch it learn, stop and resume at will.

    `fledge train navigation` trains the fast preset. Ctrl-C saves and stops; `--resume RUN` goes on.
    """
    from fledge.train.command import run_training

    overrides = [w for w in words if "=" in w]
    tasks = [w for w in words if "=" not in w]
    result = run_training(tasks, preset, overrides, folder, resume)
    if as_json and result is not None:
        click.echo(json.dumps(result))


@main.command(epilog=OVERRIDES)
@click.argument("words", nargs=-1, metavar="[navigation] [KEY=VALUE]...")
@click.option("--preset", default="fast", show_default=True, help="The training to advise on (PPO).")
@click.option("--budget", default=0.02, show_default=True, help="Share of training time that saving may cost.")
@click.option("--seconds", default=60.0, show_default=True, help="Time to spend on comparing the ways to collect.")
@click.option("--picture", type=click.Path(path_type=Path), help="Write the figures as a picture (PNG).")
@help_config
@as_json
def advise(
    words: tuple[str, ...], preset: str, budget: float, seconds: float, picture: Path | None, as_json: bool
) -> None:
    """Should I compress, archive, pipeline, and how often save? Measured here, with this config.

    Prints the decision tree with the measured numbers, and the settings to use. Takes a few minutes.
    """
    from rich.console import Console

    from fledge.advise import advise as measure_and_decide
    from fledge.advise import render
    from fledge.core.overrides import build_config
    from fledge.train.advise import save_plot
    from fledge.train.config import TrainConfig

    cfg = build_config(TrainConfig, [("train", preset)], [word for word in words if word != "navigation"])
    if picture and (picture.suffix != ".png" or not picture.parent.is_dir()):
        raise ConfigError(f"{picture} cannot be written: give a .png in a folder that exists.")
    with Console(stderr=True).status("advise") as status:
        result = measure_and_decide(cfg, budget, seconds, status.update)
    if picture:
        save_plot(result, picture)
    if as_json:
        click.echo(json.dumps(result))
    else:
        Console().print(*render(result), sep="\n")


@main.command()
@click.argument("policy")
@click.argument("file", type=click.Path(path_type=Path))
@as_json
def export(policy: str, file: Path, as_json: bool) -> None:
    """Write POLICY to FILE, and check that it flies the same: .onnx or .ts for other programs, .fledge for weights alone.

    Inputs: state [B,8], lidar [B,1,H,V], dynamic_obstacle [B,1,5,10]; output: action [B,3], as in the navigation env.
    """
    from fledge.agents.export import export_policy

    result = export_policy(policy, file)
    text = (
        f"{result['file']}: {result['bytes'] / 1e6:.2f} MB, differs from the policy by {result['max_difference']:.1e}"
    )
    click.echo(json.dumps(result) if as_json else text)


@main.command()
@click.argument("file", type=click.Path())
@as_json
def inspect(file: str, as_json: bool) -> None:
    """List what is inside a checkpoint: .fledge, .pt, .pt.lz4 or .safetensors."""
    from rich.console import Console
    from rich.table import Table

    from fledge.storage import inspect_checkpoint

    found = inspect_checkpoint(file)
    if as_json:
        click.echo(json.dumps(found, default=str))
        return
    table = Table(title=f"{file}: {found['format']}, {found['file_bytes']:,} bytes")
    for heading in ("tensor", "type", "shape", "bytes", "stored", "codec"):
        table.add_column(heading, justify="right" if heading in ("bytes", "stored") else "left")
    for row in found["tensors"]:
        shape = "x".join(str(n) for n in row["shape"]) or "scalar"
        table.add_row(row["name"], row["dtype"], shape, f"{row['bytes']:,}", f"{row['stored']:,}", row["codec"])
    Console().print(table)


@main.command()
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@as_json
def convert(source: str, target: str, as_json: bool) -> None:
    """Convert a checkpoint; the format follows the ending of TARGET: .fledge, .pt, .pt.lz4 or .safetensors."""
    from fledge.storage import convert_checkpoint

    sizes = convert_checkpoint(source, target)
    click.echo(json.dumps(sizes, default=str) if as_json else f"{target}: {sizes}")


@main.group()
def bench() -> None:
    """Measure Fledge against its baselines, in one run, after checking that the results agree."""


def _bench(name: str, as_json: bool, **options: Any) -> None:
    import importlib

    from rich.console import Console

    module = importlib.import_module(f"fledge.bench.{name}")
    console = Console(stderr=True)
    with console.status(f"bench {name}") as status:
        result = module.run(on_progress=status.update, **options)
    if as_json:
        click.echo(json.dumps(result))
    else:
        Console().print(*module.render(result), sep="\n")


@bench.command("sim")
@click.option("--num-envs", default=1024, show_default=True, help="Drones in the comparison.")
@click.option("--threads", type=int, help="CPU threads. [default: all cores]")
@click.option("--seconds", default=2.0, show_default=True, help="Time to spend on each measurement.")
@as_json
def bench_sim(num_envs: int, threads: int | None, seconds: float, as_json: bool) -> None:
    """Simulation speed beside plain NumPy and plain torch, and a table from 64 to 16,384 drones."""
    _bench("sim", as_json, num_envs=num_envs, threads=threads, seconds=seconds)


@bench.command("train")
@click.option("--iterations", default=5, show_default=True, help="Iterations to time, after two to warm up.")
@click.option("--num-envs", default=1024, show_default=True, help="Drones.")
@as_json
def bench_train(iterations: int, num_envs: int, as_json: bool) -> None:
    """Training speed beside TorchRL's collector and NavRL's Conv2d PPO; and of the fast preset."""
    _bench("train", as_json, iterations=iterations, num_envs=num_envs)


@bench.command("checkpoint")
@click.option("--size-mb", default=200, show_default=True, help="Size of the training state.")
@click.option("--navrl-checkpoint", type=click.Path(), help="NavRL's released .pt file, to measure its ratio.")
@click.option("--quick", is_flag=True, help="Smaller and fewer measurements.")
@as_json
def bench_checkpoint(size_mb: int, navrl_checkpoint: str | None, quick: bool, as_json: bool) -> None:
    """Checkpoints beside torch.save, torch.distributed.checkpoint, safetensors and LZ4 in a thread."""
    _bench("checkpoint", as_json, size_mb=size_mb, navrl_checkpoint=navrl_checkpoint, quick=quick)


@bench.command("replay")
@click.option(
    "--policy", default="fledge-nav", show_default=True, help="Who flies the experience: a policy or NavRL .pt."
)
@click.option("--quick", is_flag=True, help="Smaller and fewer measurements.")
@as_json
def bench_replay(policy: str, quick: bool, as_json: bool) -> None:
    """Replay of real flights and grid maps beside TorchRL's storages and the prior design: bytes and rates."""
    _bench("replay", as_json, policy=policy, quick=quick)


@bench.command("collect")
@click.option("--rounds", default=5, show_default=True, help="Timed iterations of each collector.")
@click.option("--num-envs", default=1024, show_default=True, help="Drones.")
@as_json
def bench_collect(rounds: int, num_envs: int, as_json: bool) -> None:
    """PPO with the synchronous, pipelined, half-and-half and compressed collectors: gain or loss."""
    _bench("collect", as_json, rounds=rounds, num_envs=num_envs)


if __name__ == "__main__":
    main()
