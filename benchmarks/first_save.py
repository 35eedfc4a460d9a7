"""The first save of a plain training loop, in fresh processes; and `perf/checkpoint_save` of `fledge train` on two ranks.

The loop is the one that users type: make the saver, build a model and Adam, save at i = 0, right after the first step, and
then every few iterations. Nothing is attached. The first save of a process is its slowest, because the memory for the copy
has never been used; so every turn is a process of its own. The savers take turns.

These processes, which print JSON, are `python -m benchmarks.first_save loop KIND WIDTH FOLDER` and `train FOLDER SETTING...`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SAVERS = ("FledgeAlone", "TorchSave", "DcpAsync")
TURNS = 6
EVERY, SAVES = 5, 3  # iterations between saves, and saves per process
SMALL = ["ppo.rollout_steps=8", "ppo.epochs=1", "save_interval=20", "eval_interval=0", "ranks=2", "threads=1", "seed=1"]


def measure_first_saves(folder: Path, size_mb: int = 156, turns: int = TURNS) -> dict[str, dict[str, Any]]:
    """Return the waits for the first and for later saves by saver, and the ratio to Fledge's first wait, turn by turn."""
    from benchmarks.turns import ratio, spread

    width = max(int((size_mb * 1e6 / 12 / 4) ** 0.5), 16)
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in SAVERS}
    for turn in range(turns):
        for kind in SAVERS:
            place = folder / f"{kind}{turn}"
            place.mkdir()
            found[kind].append(_run("loop", kind, str(width), str(place)))
    ours = [row["waits_ms"][0] for row in found["FledgeAlone"]]
    return {
        rows[0]["name"]: {
            "first_ms": spread([row["waits_ms"][0] for row in rows]),
            "first_cpu_ms": spread([row["cpu_ms"][0] for row in rows]),
            "later_ms": spread([wait for row in rows for wait in row["waits_ms"][1:]]),
            "ratio": ratio([row["waits_ms"][0] for row in rows], ours),
            "mb": rows[0]["mb"],
        }
        for rows in found.values()
    }


def measure_train(folder: Path, iterations: int = 800) -> dict[str, Any]:
    """Return the percentiles of `perf/checkpoint_save` in `fledge train navigation --preset fast` on two ranks."""
    return _run("train", str(folder), f"total_frames={iterations * 1024 * 8}", *SMALL)


def _run(*arguments: str) -> dict[str, Any]:
    from fledge.core.errors import FledgeError

    command = [sys.executable, "-m", "benchmarks.first_save", *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        raise FledgeError(f"{' '.join(command[1:])} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def loop(kind: str, width: int, folder: Path) -> dict[str, Any]:
    """Train and save as a user types it; return the waits, after checking that the first file has the state of the call."""
    import torch

    from benchmarks import checkpoint_savers
    from fledge.core.errors import FledgeError
    from fledge.storage.format.flattening import flatten

    saver = getattr(checkpoint_savers, kind)(None)  # before the model, as in the examples
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
    optimizer = torch.optim.Adam(model.parameters())
    waits, cpu, want, nbytes = [], [], {}, 0
    for i in range(EVERY * (SAVES - 1) + 1):
        loss = model(torch.ones(8, width)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % EVERY == 0:
            begun, worked = time.perf_counter(), time.thread_time()
            state = {"model_state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": i}
            saver.save(state, folder / f"checkpoint_{i}.pt")
            waits.append(1e3 * (time.perf_counter() - begun))
            cpu.append(1e3 * (time.thread_time() - worked))
            if i == 0:
                want = {name_of(leaf): leaf.source.clone() for leaf in flatten(state)[1]}
                nbytes = sum(tensor.nbytes for tensor in want.values())
            saver.wait()
    got = {name_of(leaf): leaf.source for leaf in flatten(saver.load(folder / "checkpoint_0.pt"))[1]}
    saver.close()
    if got.keys() != want.keys() or not all(torch.equal(got[name], tensor) for name, tensor in want.items()):
        raise FledgeError(f"{saver.name} does not restore the state that it saved.")
    return {"name": saver.name, "waits_ms": waits, "cpu_ms": cpu, "mb": nbytes / 1e6}


def name_of(leaf: Any) -> str:
    """Return a leaf's path as text: DCP returns the keys of dicts as strings."""
    return "/".join(map(str, leaf.path))


def train(folder: str, settings: list[str]) -> dict[str, Any]:
    """Run `fledge train`; return how long its saves held it up, by the clock and in CPU time of the training thread, ms."""
    from fledge.cli import main
    from fledge.monitor import PerformanceMonitor
    from fledge.training import loop as training

    cpu: list[float] = []
    monitors: list[PerformanceMonitor] = []

    class Monitor(PerformanceMonitor):
        def __init__(self) -> None:
            super().__init__()
            monitors.append(self)

        @contextlib.contextmanager
        def timer(self, name: str) -> Iterator[None]:
            with super().timer(name):
                worked = time.thread_time()
                yield
                if name == "checkpoint_save":
                    cpu.append(1e3 * (time.thread_time() - worked))

    training.PerformanceMonitor = Monitor  # type: ignore[assignment, misc]
    arguments = ["train", "navigation", "--preset", "fast", "--folder", folder, *settings]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            main(arguments)
    except SystemExit as end:
        if end.code:
            raise
    clock = monitors[0].get_stats()["checkpoint_save"]
    p50, p99 = np.percentile(cpu, [50, 99])
    return {
        **{f"{name}_ms": 1e3 * clock[name] for name in ("p50", "p99", "max")},
        "cpu_p50_ms": float(p50),
        "cpu_p99_ms": float(p99),
        "saves": clock["count"],
    }


if __name__ == "__main__":
    _, part, *rest = sys.argv
    print(json.dumps(loop(rest[0], int(rest[1]), Path(rest[2])) if part == "loop" else train(rest[0], rest[1:])))
