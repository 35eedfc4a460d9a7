"""`fledge bench ...` on the command line. Light to load: what measures is loaded by the command that runs it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

import fledge
from fledge.cli.group import as_json


@click.group()
def bench() -> None:
    """Measure Fledge against its baselines, in one run, after checking that the results agree."""


def let_threads_spin() -> None:
    """Give baselines the OpenMP that their users have, unless the user chose: before torch is loaded."""
    if fledge._TAMED and "torch" not in sys.modules:
        os.environ.pop("OMP_WAIT_POLICY", None)


def _bench(name: str, as_json: bool, **options: Any) -> None:
    import importlib

    from fledge.core.terminal import doing, make_console

    let_threads_spin()
    module = importlib.import_module(f"benchmarks.{name}")
    with doing(make_console(stderr=True), f"bench {name}") as on_progress:
        result = module.run(on_progress=on_progress, **options)
    if as_json:
        click.echo(json.dumps(result))
    else:
        make_console().print(*module.render(result), sep="\n")


@bench.command("sim")
@click.argument("words", nargs=-1, metavar="[task=NAME]")
@click.option("--num-envs", type=click.IntRange(1), help="Drones or duels in the comparison. [default: 1024; 10000]")
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="CPU threads of the comparison with all. [default: all cores]"
)
@click.option("--seconds", default=2.0, show_default=True, help="Time to spend on each measurement.")
@as_json
def bench_sim(words: tuple[str, ...], num_envs: int | None, threads: int | None, seconds: float, as_json: bool) -> None:
    """Simulation speed of a task (navigation) beside plain NumPy and plain torch, and a table from few to many envs.

    One thread is compared with one thread, and all with all (NumPy in shares of the envs, torch with its own threads and in
    shares), in turns; the cores that each kept busy stand beside it. Nothing is timed unless all fly the same.
    """
    tasks = [word.removeprefix("task=") for word in words]
    if len(tasks) > 1 or not all(tasks):
        raise click.UsageError(f"{' '.join(words)} came, but one task is measured: task=NAME.")
    _bench(
        "sim", as_json, task=tasks[0] if tasks else "navigation", num_envs=num_envs, threads=threads, seconds=seconds
    )


@bench.command("train")
@click.option("--turns", default=5, show_default=True, help="Turns of each design.")
@click.option("--iterations", default=2, show_default=True, help="Iterations counted in a turn, after one that is not.")
@click.option("--num-envs", default=1024, show_default=True, help="Drones.")
@as_json
def bench_train(turns: int, iterations: int, num_envs: int, as_json: bool) -> None:
    """Training speed beside TorchRL's collector and NavRL's Conv2d PPO; and of the fast preset.

    The designs take turns, on the same env, network and hyper-parameters. The baseline has torch on one thread and on all of
    them; both are shown, and the better one counts. Ratios are of turns side by side. Nothing is timed unless both designs
    compute the same. Needs the extra torchrl.
    """
    _bench("train", as_json, turns=turns, iterations=iterations, num_envs=num_envs)


@bench.command("checkpoint")
@click.option("--size-mb", default=200, show_default=True, help="Size of the training state.")
@click.option("--navrl-checkpoint", type=click.Path(), help="NavRL's released .pt file, to measure its ratio.")
@click.option("--quick", is_flag=True, help="Smaller and fewer measurements.")
@as_json
def bench_checkpoint(size_mb: int, navrl_checkpoint: str | None, quick: bool, as_json: bool) -> None:
    """Checkpoints beside torch.save, torch.distributed.checkpoint, safetensors and LZ4 in a thread.

    A save costs its caller the call, and then the fence: what the next optimizer.step() waits, measured right after the call,
    where it is longest. Both are shown, and their sum. Ours is durable, so torch.save with fsync is the fair baseline; the one
    without is shown too. Nothing is timed unless every way gives back, bit for bit, what it was given.
    """
    _bench("checkpoint", as_json, size_mb=size_mb, navrl_checkpoint=navrl_checkpoint, quick=quick)


@bench.command("replay")
@click.option(
    "--policy", default="fledge-reflex", show_default=True, help="Who flies the experience: a policy or NavRL .pt."
)
@click.option("--quick", is_flag=True, help="Smaller and fewer measurements.")
@as_json
def bench_replay(policy: str, quick: bool, as_json: bool) -> None:
    """Replay of real flights and grid maps beside TorchRL's storages and the prior design: bytes and rates."""
    _bench("replay", as_json, policy=policy, quick=quick)


@bench.command("watch")
@click.option("--turns", default=5, show_default=True, help="How often each way has its turn.")
@click.option("--num-envs", default=1024, show_default=True, help="Envs of the training.")
@click.option("--task", default="navigation", show_default=True, help="What is trained.")
@as_json
def bench_watch(turns: int, num_envs: int, task: str, as_json: bool) -> None:
    """What it costs a training to be watched in the browser, or only to be able to be."""
    _bench("watch", as_json, turns=turns, num_envs=num_envs, task=task)


@bench.command("page")
@click.option("--seconds", default=5.0, show_default=True, help="For which a page's frames are counted.")
@click.option("--minutes", default=0.0, help="Watch a training live for so long, and follow the memory. [default: not]")
@click.option("--every", default=30.0, show_default=True, help="Seconds from one look at the memory to the next.")
@as_json
def bench_page(seconds: float, minutes: float, every: float, as_json: bool) -> None:
    """Frame rates of the browser app's pages, and the memory of server and page: in a headless Chromium."""
    _bench("page", as_json, seconds=seconds, minutes=minutes, every=every)


@bench.command("collect")
@click.option("--rounds", default=5, show_default=True, help="Timed iterations of each collector.")
@click.option("--num-envs", default=1024, show_default=True, help="Drones.")
@as_json
def bench_collect(rounds: int, num_envs: int, as_json: bool) -> None:
    """PPO with the synchronous, pipelined, half-and-half and compressed collectors: gain or loss."""
    _bench("collect", as_json, rounds=rounds, num_envs=num_envs)
