"""The browser's list of runs by their number: copies of one small run, each with a seed of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale.section import Figure, Need, Section
from benchmarks.served import Served
from fledge.core.errors import FledgeError

TRAINING = ("navigation", "env.num_envs=8", "env.num_maps=1", "env.static_obstacles=20", "env.moving_obstacles=0",
            "ppo.rollout_steps=8", "total_frames=2560", "eval_interval=0", "tensorboard=false", "ranks=1",
            "threads=1")  # fmt: skip
OWN = ("config.yaml", "metrics.jsonl")  # files that a copy has for itself; the others are links to one file
REQUESTS = 20  # at most


class Browser(Section):
    name, title = "browser", "Runs in the browser"
    items, per = "runs", "run"
    sizes, quick_sizes = (1, 3, 10, 30, 100, 300, 1000), (1, 3)
    verified = "the list has every run, with its task, its state and its last figures"
    figures = (
        Figure("first", "first list", "ms", cpu=True),
        Figure("list", "list again", "ms", cpu=True),
        Figure("answer", "size of the answer per run", "bytes", "space"),
        Figure("server_mb", "memory of the server, MB", "", None),
    )

    def __init__(self) -> None:
        self.one: Path | None = None

    def need(self, size: int) -> Need:
        return Need(memory=2e9, disk=50e6 + 0.2e6 * size)

    def measure(self, size: int, seconds: float, folder: Path) -> dict[str, float]:
        self.one = self.one or train_small(folder / "one")
        place = folder / f"runs-{size}"
        for number in range(size):
            copy_run(self.one, place / f"run-{number:04d}", number)
        server = Served("watch", str(place))
        try:
            urllib.request.urlopen(f"{server.base}/favicon.ico").read()  # the server has started
            first, first_cpu, answer = ask(server)
            self.check(json.loads(answer), size)
            times: list[tuple[float, float]] = []
            begun = time.perf_counter()
            while not times or (len(times) < REQUESTS and time.perf_counter() - begun < seconds):
                clock, cpu, answer = ask(server)
                times.append((clock, cpu))
            memory = server.memory_mb()
        finally:
            server.close()
        shutil.rmtree(place)
        return {
            "first": 1e3 * first / size,
            "first_cpu": 1e3 * first_cpu / size,
            "list": 1e3 * float(np.median([clock for clock, _ in times])) / size,
            "list_cpu": 1e3 * float(np.mean([cpu for _, cpu in times])) / size,
            "answer": len(answer) / size,
            "server_mb": memory,
        }

    def check(self, answer: dict[str, Any], size: int) -> None:
        """Raise FledgeError unless the list has all runs with what they are."""
        assert self.one is not None
        frames = json.loads((self.one / "metrics.jsonl").read_text().splitlines()[-1])["frames"]
        found = {row["name"]: (row["task"], row["state"], row["frames"]) for row in answer["runs"]}
        if found != {f"run-{number:04d}": ("navigation", "finished", frames) for number in range(size)}:
            raise FledgeError(f"The list of {size:,} runs is wrong: it has {len(found):,} runs. Nothing was timed.")


def train_small(folder: Path) -> Path:
    """Train for 40 iterations of 64 decisions, and return the run's folder."""
    command = [sys.executable, "-m", "fledge.cli", "train", *TRAINING, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise FledgeError(f"The small training failed: {done.stderr.strip()[-500:]}")
    return folder


def copy_run(source: Path, target: Path, seed: int) -> None:
    """Copy a run with another seed, so that no two settings files are equal; large files become hard links."""

    def copy(a: str, b: str) -> None:
        (shutil.copy2 if Path(a).name in OWN else os.link)(a, b)

    shutil.copytree(source, target, copy_function=copy)
    config = target / "config.yaml"
    config.write_text(re.sub(r"^seed: \d+$", f"seed: {seed}", config.read_text(), flags=re.MULTILINE))


def ask(server: Served) -> tuple[float, float, bytes]:
    """Request the list of runs; return seconds by the clock, CPU seconds of the server, and the answer."""
    worked, begun = cpu_seconds(server.process.pid), time.perf_counter()
    with urllib.request.urlopen(f"{server.base}/api/runs", timeout=600) as stream:
        answer: bytes = stream.read()
    return time.perf_counter() - begun, cpu_seconds(server.process.pid) - worked, answer


def cpu_seconds(process: int) -> float:
    """Return the CPU time of the threads of a process so far; 0 if the system does not report it."""
    total = 0
    for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError):
            total += int(thread.read_text().split()[0])
    return total / 1e9
