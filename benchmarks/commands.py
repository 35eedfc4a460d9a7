"""`python -m benchmarks NAME`: the command line. Each command loads the module that measures."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import click

import fledge
from fledge.cli.group import Commands, as_json, debug_option


@click.group("benchmarks", cls=Commands)
@debug_option
def main() -> None:
    """Measure Fledge beside baselines in one run, after checking that their results agree."""


def let_threads_spin() -> None:
    """Give baselines OpenMP's default wait policy, unless the user chose one; call it before torch is loaded."""
    if fledge._TAMED and "torch" not in sys.modules:
        os.environ.pop("OMP_WAIT_POLICY", None)


def measure(name: str, as_json: bool, **options: Any) -> dict[str, Any]:
    """Run a benchmark, print its figures and return them."""
    from fledge.core.terminal import doing, make_console

    let_threads_spin()
    module = importlib.import_module(f"benchmarks.{name}")
    with doing(make_console(stderr=True), f"benchmark {name}") as on_progress:
        result: dict[str, Any] = module.run(on_progress=on_progress, **options)
    if as_json:
        click.echo(json.dumps(result))
    else:
        make_console().print(*module.render(result), sep="\n")
    return result


@main.command()
@click.argument("arguments", nargs=-1, metavar="[task=NAME]")
@click.option("--num-envs", type=click.IntRange(1), help="Drones or duels in the comparison. [default: 1024; 10000]")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of the second comparison. [default: all cores]")
@click.option("--seconds", default=2.0, show_default=True, help="Time to spend on each measurement.")
@as_json
def sim(arguments: tuple[str, ...], num_envs: int | None, threads: int | None, seconds: float, as_json: bool) -> None:
    """Simulation speed of a task (navigation) beside plain NumPy and plain torch, and by number of envs.

    One thread is compared with one thread, and all with all (NumPy in shares of the envs, torch with its own threads and in
    shares), in turns, with the number of cores that each kept busy. Nothing is timed unless all give the same results.
    """
    tasks = [argument.removeprefix("task=") for argument in arguments]
    if len(tasks) > 1 or not all(tasks):
        raise click.UsageError(f"This benchmark measures one task, not {' '.join(arguments)!r}: write task=NAME.")
    measure(
        "sim", as_json, task=tasks[0] if tasks else "navigation", num_envs=num_envs, threads=threads, seconds=seconds
    )


@main.command()
@click.option("--num-envs", default=1024, show_default=True, help="Drones.")
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads. [default: all cores]")
@click.option("--seconds", default=2.0, show_default=True, help="Time to spend on each world.")
@click.option("--decimation", default=1, show_default=True, help="Physics steps per decision, and so per LiDAR scan.")
@as_json
def worlds(num_envs: int, threads: int | None, seconds: float, decimation: int, as_json: bool) -> None:
    """Simulation speed in voxel and mesh worlds beside the height map's, in turns.

    The same forest is flown as a height map, as voxels and as a mesh; nothing is timed unless beams and collisions agree.
    Generated worlds are timed beside them.
    """
    measure("worlds", as_json, num_envs=num_envs, threads=threads, seconds=seconds, decimation=decimation)


@main.command()
@click.option("--num-envs", default=1024, show_default=True, help="Drones.")
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads. [default: all cores]")
@click.option("--decisions", default=550, show_default=True, help="Decisions to time; a flight has about 480.")
@click.option("--movers", default=80, show_default=True, help="Moving obstacles.")
@as_json
def planner(num_envs: int, threads: int | None, decisions: int, movers: int, as_json: bool) -> None:
    """Time of the planner's decisions over whole crossings of the forest.

    Nothing is timed unless the plain NumPy planner chooses the same commands.
    """
    measure("planner", as_json, num_envs=num_envs, threads=threads, decisions=decisions, movers=movers)


@main.command()
@click.argument("policy", default="fledge-nav")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--flights", default=100, show_default=True, help="Flights.")
@click.option("--first", default=0, show_default=True, help="Number of the first flight, a multiple of 128: for parts.")
@click.option(
    "--preset", default="crossing", show_default=True, help="Env preset to fly in; the policy keeps its sensors."
)
@as_json
def runtime(policy: str, overrides: tuple[str, ...], flights: int, first: int, preset: str, as_json: bool) -> None:
    """Flights by fledge_runtime, from readings, beside the policy's own: commands, outcomes, time of a decision."""
    measure("runtime", as_json, policy=policy, overrides=overrides, flights=flights, first=first, preset=preset)


@main.command()
@click.option("--policy", default="fledge-nav", show_default=True, help="Policy that reads a plan.")
@click.option("--flights", default=1000, show_default=True, help="Flights.")
@click.option("--numpy-flights", default=8, show_default=True, help="Flights that the planner in NumPy also plans.")
@click.option("--seed", default=11, show_default=True, help="Seed of the flights.")
@click.option(
    "--preset", default="crossing", show_default=True, help="Env preset to fly in; the policy keeps its sensors."
)
@as_json
def robot_planner(policy: str, flights: int, numpy_flights: int, seed: int, preset: str, as_json: bool) -> None:
    """Planner of fledge_runtime beside the simulator's: plans, commands, outcomes of flights, time of a decision."""
    options = {"policy": policy, "flights": flights, "numpy_flights": numpy_flights, "seed": seed, "preset": preset}
    measure("robot_planner", as_json, **options)


@main.command()
@click.option("--turns", default=5, show_default=True, help="Turns per design.")
@click.option("--iterations", default=2, show_default=True, help="Iterations counted in a turn, after one that is not.")
@click.option("--num-envs", default=1024, show_default=True, help="Drones.")
@as_json
def train(turns: int, iterations: int, num_envs: int, as_json: bool) -> None:
    """Training speed beside TorchRL's collector and NavRL's Conv2d PPO; and of the fast preset.

    The designs take turns, on the same env, network and hyper-parameters. The baseline runs with torch on one thread and on
    all; both are shown, and the faster one counts. Nothing is timed unless both designs compute the same. Needs the extra
    torchrl.
    """
    measure("train", as_json, turns=turns, iterations=iterations, num_envs=num_envs)


@main.command()
@click.option("--size-mb", default=200, show_default=True, help="Size of the training state.")
@click.option("--navrl-checkpoint", type=click.Path(), help="NavRL's released .pt file, to measure its ratio.")
@click.option("--quick", is_flag=True, help="Smaller and fewer measurements.")
@as_json
def checkpoint(size_mb: int, navrl_checkpoint: str | None, quick: bool, as_json: bool) -> None:
    """Checkpoints beside torch.save, torch.distributed.checkpoint, safetensors and LZ4 in a thread.

    The first save of a process is measured in fresh processes, with nothing attached; then checkpoints of a training run on
    two ranks; then savers that have saved before.

    A save blocks its caller during the call, and then the fence: the time that the next optimizer.step() waits, measured
    right after the call, where it is longest. Both are shown, and their sum. Fledge's saves are durable, so torch.save with
    fsync is the fair baseline; torch.save without is shown too. Nothing is timed unless every saver restores every bit.
    """
    measure("checkpoint", as_json, size_mb=size_mb, navrl_checkpoint=navrl_checkpoint, quick=quick)


@main.command()
@click.option(
    "--policy",
    default="fledge-reflex",
    show_default=True,
    help="Policy that flies: as for `fledge eval`, or NavRL's .pt.",
)
@click.option("--quick", is_flag=True, help="Smaller and fewer measurements.")
@click.option("--only-images", is_flag=True, help="Measure images only; nothing flies.")
@as_json
def replay(policy: str, quick: bool, only_images: bool, as_json: bool) -> None:
    """Replay of real flights and grid maps beside TorchRL's storages and LZ4 episodes: bytes and rates.

    Before that, made-up images (an arcade game, a noisy camera, noisy depth) beside a ring buffer of NumPy arrays, which
    takes 3 GB of memory.
    """
    measure("replay", as_json, policy=policy, quick=quick, only_images=only_images)


@main.command()
@click.option("--turns", default=5, show_default=True, help="Turns per variant.")
@click.option("--num-envs", default=1024, show_default=True, help="Envs of the training.")
@click.option("--task", default="navigation", show_default=True, help="Task to train.")
@as_json
def watch(turns: int, num_envs: int, task: str, as_json: bool) -> None:
    """The cost of watching a training run in the browser, and of recording frames for it."""
    measure("watch", as_json, turns=turns, num_envs=num_envs, task=task)


@main.command()
@click.option("--seconds", default=5.0, show_default=True, help="Time over which to count a page's frames.")
@click.option(
    "--minutes", default=0.0, help="Time over which to measure memory while watching a training run live. [default: 0]"
)
@click.option("--every", default=30.0, show_default=True, help="Seconds between measurements of memory.")
@as_json
def page(seconds: float, minutes: float, every: float, as_json: bool) -> None:
    """Frame rates of the browser app's pages, and memory of server and page, in a headless Chromium."""
    measure("page", as_json, seconds=seconds, minutes=minutes, every=every)


@main.command()
@click.option("--rounds", default=5, show_default=True, help="Timed iterations per collector.")
@click.option("--num-envs", default=1024, show_default=True, help="Drones.")
@as_json
def collect(rounds: int, num_envs: int, as_json: bool) -> None:
    """PPO with the synchronous, pipelined, half-and-half and compressed collectors: speed of each."""
    measure("collect", as_json, rounds=rounds, num_envs=num_envs)


@main.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--task", default="navigation", show_default=True, help="Task to train.")
@click.option("--envs", default="64,256,1024,4096", show_default=True, help="Numbers of envs in the grid.")
@click.option("--minibatches", default="1024,4096,16384", show_default=True, help="Minibatches in the grid.")
@click.option("--turns", default=5, show_default=True, help="Iterations that are timed for each size.")
@click.option("--choices", default=3, show_default=True, help="Number of times that auto chooses.")
@as_json
def batching(
    overrides: tuple[str, ...], task: str, envs: str, minibatches: str, turns: int, choices: int, as_json: bool
) -> None:
    """Does env.num_envs=auto find the fastest size? Its choices beside a grid of sizes, in turns.

    Sizes whose rollout is smaller than their minibatch are left out. Nothing is timed unless trials leave the run unchanged.
    """
    try:
        grid = {
            name: [int(item) for item in text.split(",")]
            for name, text in (("envs", envs), ("minibatches", minibatches))
        }
    except ValueError:
        raise click.UsageError(
            f"--envs {envs} and --minibatches {minibatches} must be lists such as 256,1024."
        ) from None
    measure("batching", as_json, task=task, overrides=overrides, turns=turns, choices=choices, **grid)


@main.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--task", default="navigation", show_default=True, help="Task to train.")
@click.option("--seeds", default=3, show_default=True, help="Trainings of each variant.")
@click.option("--picture", type=click.Path(), help="Draw the learning curves to this file (.png).")
@as_json
def noise_scale(overrides: tuple[str, ...], task: str, seeds: int, picture: str | None, as_json: bool) -> None:
    """Learning curves of ppo.minibatch=auto beside fixed minibatches of 256, 1,024 and 4,096 samples.

    Nothing is trained unless measuring the noise scale leaves the weights unchanged; its cost is measured in turns.
    """
    measure("noise_scale", as_json, task=task, overrides=overrides, seeds=seeds, picture=picture)


@main.command()
@click.option("--only", multiple=True, metavar="NAME", help="Section to measure; may be repeated. [default: all]")
@click.option("--quick", is_flag=True, help="Small sizes, for a moment each: a check that it runs.")
@click.option(
    "--page", type=click.Path(exists=True, dir_okay=False), help="Markdown page whose tables and pictures to replace."
)
@as_json
def scale(only: tuple[str, ...], quick: bool, page: str | None, as_json: bool) -> None:
    """Time and memory as the work grows: 65,536 drones, 100,000 duels, 10 million transitions, 4 GB, 1,000 runs.

    Sections: drones, duels, replay, checkpoints, browser. Each size is verified before it is timed, and skipped if it does
    not fit into the free memory or disk. The bend of a cost is the largest size at which it is within 1.25 times of the best.
    The exit code is 1 if a size fails.
    """
    if not measure("scale", as_json, only=only, quick=quick, page=page)["passed"]:
        raise SystemExit(1)


@main.command()
@click.option("--minutes", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Length of the test.")
@click.option("--folder", default="soak", show_default=True, help="Folder for soak.json, soak.png and logs.")
@click.option("--seed", default=0, show_default=True, help="Seed of the moments at which trainings are killed.")
@as_json
def soak(minutes: float, folder: str, seed: int, as_json: bool) -> None:
    """Run everything at once for some minutes: does memory, the number of handles or threads, or disk use grow?

    Trainings are watched in the browser, evaluated, saved about every second, killed and resumed, and starved of disk
    space; episodes are streamed, matches are played, replay buffers are filled, saved and loaded. The exit code is 1 if a
    figure grows or anything fails.
    """
    if not measure("soak", as_json, minutes=minutes, folder=folder, seed=seed)["passed"]:
        raise SystemExit(1)


@main.command()
@click.option("--task", default="navigation", show_default=True, help="Task to learn.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Trainings of each kind.")
@click.option("--frames", type=click.IntRange(1), default=1_000_000, show_default=True, help="Decisions of a training.")
@click.option("--num-envs", type=click.IntRange(2), default=256, show_default=True, help="Envs.")
@click.option(
    "--turns", type=click.IntRange(0), default=3, show_default=True, help="Turns of the measurement of speed."
)
@click.option("--speed-frames", type=click.IntRange(1), default=250_000, show_default=True, help="Decisions of a turn.")
@click.option(
    "--folder", default="actors", show_default=True, help="New folder for runs, logs, actors.json, actors.png."
)
@as_json
def actors(as_json: bool, **options: Any) -> None:
    """Learn from two actors, one of which is killed, beside collecting locally: curves, bytes, lag, speed."""
    measure("actors", as_json, **options)
