"""`python -m benchmarks actors`: learn from actors beside collecting locally, with the same settings and seeds.

For each seed, one training collects itself, and one gets everything from two actors, the first of which is killed at half of
the decisions. Then decisions/s are measured of a learner alone, with one actor and with two, in turns. All processes share
this machine's cores: the figures show the costs of the exchange, not the gain from other machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import machine_line, table
from benchmarks.turns import spread
from fledge.core.errors import FledgeError
from fledge.core.machine import machine_info
from fledge.tasks.registry import find_task

PORT = "127.0.0.1:0"
STEPS = 32
WAIT_S = 900.0
Rows = list[dict[str, float]]


def run(
    task: str = "navigation",
    seeds: int = 3,
    frames: int = 1_000_000,
    num_envs: int = 256,
    turns: int = 3,
    speed_frames: int = 250_000,
    folder: str = "actors",
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return curves and final metrics by seed, bytes, lag and speeds, JSON-able; write actors.png to `folder`."""
    say = on_progress or (lambda text: None)
    metric = f"{find_task(task).primary_metric}_recent"
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[Rows]] = {"local": [], "actors": []}
    for seed in range(seeds):
        for name, actors in (("local", 0), ("actors", 2)):
            say(f"learning curve: seed {seed}, {name}")
            curves[name].append(learn(task, place / f"{name}{seed}", num_envs, frames, seed, actors, kill_at=0.5))
    speeds: dict[str, list[float]] = {str(count): [] for count in (0, 1, 2)}
    for turn in range(turns):
        for count in (0, 1, 2):
            say(f"speed: turn {turn + 1} of {turns}, {count} actors")
            rows = learn(task, place / f"speed{turn}_{count}", num_envs, speed_frames, 0, count)
            speeds[str(count)].append(rate(rows))
    settings = {
        "task": task,
        "seeds": seeds,
        "frames": frames,
        "num_envs": num_envs,
        "rollout_steps": STEPS,
        "turns": turns,
    }
    result = {"machine": machine_info(), "settings": settings, "curves": curves, "picture": str(place / "actors.png")}
    result |= {"speeds": {count: spread(rates) for count, rates in speeds.items() if rates}, **summary(curves, metric)}
    draw(curves, metric, place / "actors.png")
    (place / "actors.json").write_text(json.dumps(result))
    return result


def summary(curves: dict[str, list[Rows]], metric: str) -> dict[str, Any]:
    """Return the final metric of each seed, and bytes, lag and discarded decisions of the trainings with actors."""
    last = {name: [rows[-1][metric] for rows in found] for name, found in curves.items()}
    rows = [row for found in curves["actors"] for row in found]
    steps = sum(found[-1]["frames"] for found in curves["actors"])
    return {
        "final": last,
        "lag": float(np.mean([row["actors/lag"] for row in rows])),
        "discarded_share": sum(row["actors/discarded"] for row in rows) / steps,
        "bytes_per_second": float(np.median([row["actors/bytes_per_second"] for row in rows])),
    }


def learn(task: str, folder: Path, num_envs: int, frames: int, seed: int, actors: int, kill_at: float = 2.0) -> Rows:
    """Train with some actors (0: collect locally) and return the rows of metrics; kill the first actor at a share of it."""
    words = [task, f"env.num_envs={num_envs}", f"total_frames={frames}", f"seed={seed}", "ranks=1", "threads=1"]
    words += [f"ppo.rollout_steps={STEPS}", "tensorboard=false", "save_interval=1000", "--folder", str(folder)]
    words += [f"actors.listen={PORT}"] if actors else []
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(process("train", *words, log=folder.with_suffix(".log")))
        flying = []
        if actors:
            address = listening(folder.with_suffix(".log"))
            fly = [task, "--learner", address, "--token-file", str(folder / "actors.token"), "--threads", "1"]
            fly += ["--envs", str(num_envs // actors)]
            for number in range(actors):
                log = folder.with_name(f"{folder.name}_actor{number}.log")
                flying.append(stack.enter_context(process("actor", *fly, log=log)))
        while learner.poll() is None:
            rows = read(folder)
            if flying and rows and rows[-1]["frames"] >= kill_at * frames:
                flying.pop(0).kill()
                kill_at = 2.0
            time.sleep(0.2)
    if learner.returncode:
        raise FledgeError(f"The training failed: read {folder.with_suffix('.log')}.")
    return read(folder)


@contextlib.contextmanager
def process(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `fledge WORDS` in the background with its output in a file; kill it at the end of the block if it still runs."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        command = [sys.executable, "-m", "fledge.cli", *words]
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env)
    try:
        yield running
        if running.returncode is None:
            running.wait(30)
    finally:
        running.kill()
        running.wait()


def listening(log: Path) -> str:
    """Wait until a learner listens, and return its address."""
    limit = time.monotonic() + WAIT_S
    while "--learner" not in (text := log.read_text()):
        if time.monotonic() > limit:
            raise FledgeError(f"The learner did not start: read {log}.")
        time.sleep(0.2)
    return text.split("--learner ")[1].split()[0]


def read(folder: Path) -> Rows:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def rate(rows: Rows) -> float:
    """Return decisions per second, without the first fifth of the rows."""
    first, last = rows[len(rows) // 5], rows[-1]
    return (last["frames"] - first["frames"]) / (last["seconds"] - first["seconds"])


def draw(curves: dict[str, list[Rows]], metric: str, path: Path) -> None:
    """Draw the primary metric over decisions: a thin line for each seed, the mean of each way thick."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, color, label in (
        ("local", "#666666", "collected locally"),
        ("actors", "#1f77b4", "two actors, one killed at half"),
    ):
        lines: Any = [[(row["frames"] / 1e6, row[metric]) for row in rows if metric in row] for rows in curves[name]]
        for line in lines:
            axis.plot(*zip(*line, strict=True), color=color, lw=0.7, alpha=0.5)
        grid = np.linspace(max(line[0][0] for line in lines), min(line[-1][0] for line in lines), 60)
        mean = np.mean([np.interp(grid, [x for x, _ in line], [y for _, y in line]) for line in lines], axis=0)
        axis.plot(grid, mean, color=color, lw=2.2, label=f"{label} (mean of {len(lines)} seeds)")
    axis.axvline(curves["actors"][0][-1]["frames"] / 2e6, color="#cc4444", lw=1, ls="--")
    axis.set(xlabel="decisions, millions", ylabel=f"{metric.removesuffix('_recent')} in training", ylim=(0, None))
    axis.legend(loc="upper left", frameon=False)
    axis.grid(alpha=0.25)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def render(result: dict[str, Any]) -> list[Any]:
    """Return the tables to print."""
    ends = table("primary metric in training at the end", "collected", "mean", "each seed")
    for name, values in result["final"].items():
        ends.add_row(name, f"{np.mean(values):.3f}", ", ".join(f"{value:.3f}" for value in values))
    speeds = table("decisions/s, all processes on the same cores", "actors", "median", "quartiles")
    for count, found in result["speeds"].items():
        speeds.add_row(
            count if count != "0" else "collected locally",
            f"{found['median']:,.0f}",
            f"{found['low']:,.0f} to {found['high']:,.0f}",
        )
    size = f"lag {result['lag']:.2f} updates, {result['discarded_share']:.1%} discarded, "
    size += f"{result['bytes_per_second'] / 1e6:.2f} MB/s"
    return [
        ends,
        *([speeds] if result["speeds"] else []),
        size,
        f"picture: {result['picture']}",
        machine_line(result["machine"], "end"),
    ]
