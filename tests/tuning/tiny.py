"""Tiny sweeps, and a program in place of the training: its result depends only on the parameters, within milliseconds."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from fledge.tasks.registry import find_task
from fledge.tuning import worker
from fledge.tuning.claims import Claims
from fledge.tuning.search import Search
from fledge.tuning.storage import open_storage
from fledge.tuning.sweep import Sweep, open_sweep
from fledge.tuning.worker import Worker

RANGES = ["ppo.lr=1e-4..1e-2", "ppo.epochs=1..6"]
SMALL = ["env.num_envs=32", "env.num_maps=2", "ppo.rollout_steps=32", "ppo.minibatch=512", "total_frames=4096"]

# Writes one line per evaluation into metrics.jsonl, then the result; `BEHAVIOUR` is a statement that runs before that.
PROGRAM = """
import json, os, sys, time
order = json.loads(sys.argv[2])
lr = next((float(word.partition("=")[2]) for word in order["overrides"] if word.startswith("ppo.lr=")), 7e-4)
value = round(1 - abs(lr - 1e-3) * 50, 6)
os.makedirs(order["folder"], exist_ok=True)
with open(order["folder"] + "/starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
with open(order["folder"] + "/metrics.jsonl", "w") as file:
    for step in range(1, 5):
        row = {"step": step, "frames": step, "seconds": 6.0 * step, "eval/success": value * step / 4}
        file.write(json.dumps(row) + "\\n")
BEHAVIOUR
found = {"value": value, "low": value, "high": value, "test": value, "minutes": 0.4, "frames": 4, "facts": order["facts"]}
with open(order["result"] + ".new", "w") as file:
    json.dump(found, file)
os.replace(order["result"] + ".new", order["result"])
"""


def use_program(patch: Any, behaviour: str = "") -> None:
    """Let workers start `PROGRAM` instead of trainings."""
    patch.setattr(worker, "PROGRAM", (sys.executable, "-S", "-c", PROGRAM.replace("BEHAVIOUR", behaviour)))


def make_sweep(folder: Path, **options: Any) -> Sweep:
    """Create or join a sweep with a fast heartbeat."""
    return open_sweep(folder, find_task("navigation"), [*RANGES, *SMALL], {"heartbeat_s": 0.1, "trials": 6, **options})


class Command:
    """One worker of a sweep, as a command would run it, with its own connection to the storage."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep, self.told = sweep, list[tuple[str, dict[str, Any]]]()
        self.storage = open_storage(sweep.storage, sweep.folder)
        self.claims = Claims(self.storage, sweep.study, sweep.heartbeat_s)
        self.search = Search(sweep, self.storage)
        self.stop = threading.Event()
        self.worker = Worker(
            sweep, self.claims, lambda job, result: self.told.append((job.key, dict(result))), self.stop
        )

    def run(self) -> None:
        self.worker.work(self.search)

    def thread(self) -> threading.Thread:
        thread = threading.Thread(target=self.run, daemon=True)
        thread.start()
        return thread


def starts(sweep: Sweep, number: int) -> int:
    """Return how often the program of a trial was started."""
    path = sweep.folder / "trials" / f"{number:04d}" / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0
