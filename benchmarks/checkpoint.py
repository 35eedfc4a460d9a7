"""`python -m benchmarks checkpoint`: Fledge beside torch.save, DCP's async_save, safetensors, and LZ4 in a thread.

Every saver first has to restore a state bit for bit. Then six things are measured: the first save of a fresh process (156 MB,
see `first_save`); `perf/checkpoint_save` of a training on two ranks; how long a save blocks its caller, and how long until the
file is written (model + Adam of `size_mb`); how much slower a training loop gets that saves a few MB every iteration, and
one that saves `size_mb` every 10 s; the size of NavRL's weights; and the size of a history of 50 checkpoints, against 50
`torch.save` files.

A save blocks in two parts: the call, and the fence, which is the time that `optimizer.step()` still waits if it follows
right after the call. Fledge does nearly all of its work after the call, so only the sum of both compares with a saver that
has no fence. The savers take turns.

The loops are like PPO's: a rollout without gradients, then updates on its shuffled rows. They are timed in turns, with
saving and without, so that other load on the machine affects both, after two saves that let every saver allocate its
memory. Beside the slow-down by the clock (what a user sees, but noisy on a shared machine) is the share of the machine's
CPU time that background threads took: the least slow-down of a loop that keeps all cores busy.
"""

from __future__ import annotations

import io
import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.checkpoint_savers import SAVERS, Fledge, FledgeAlone, LZ4Thread, Saver, TorchSave, TorchSaveAlone
from benchmarks.checkpoint_tables import render
from benchmarks.first_save import measure_first_saves, measure_train
from benchmarks.machine import scratch
from fledge.core.errors import FledgeError
from fledge.core.machine import machine_info
from fledge.storage import CheckpointHistory, load_checkpoint, save_checkpoint
from fledge.storage.format.flattening import flatten

__all__ = ["render", "run"]

TURNS = 5  # per saver
BARS = {
    "first_save_ms": 40.0,
    "train_save_p99_ms": 3.0,
    "call_p99_ms": 1.0,
    "small_slowdown": 0.02,
    "large_slowdown": 0.05,
    "navrl_ratio": 0.84,
    "history_ratio": 0.35,
}


class Training:
    """An actor-critic's loop on random data: a rollout without gradients, then epochs of Adam updates."""

    def __init__(self, hidden: int, layers: int, envs: int, steps: int, updates: int, seed: int) -> None:
        torch.manual_seed(seed)
        sizes = [235, *[hidden] * layers, 9]
        parts: list[torch.nn.Module] = []
        for size, following in itertools.pairwise(sizes):
            parts += [torch.nn.Linear(size, following), torch.nn.ELU()]
        self.model = torch.nn.Sequential(*parts[:-1])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-4)
        self.obs = torch.randn(steps, envs, 235)
        self.target = torch.tanh(self.obs[..., :9] + 0.5 * self.obs[..., 9:18])
        self.updates = updates
        self.iteration()

    def iteration(self) -> None:
        with torch.no_grad():
            for obs in self.obs:
                self.model(obs)
        obs, target = self.obs.flatten(0, 1), self.target.flatten(0, 1)
        for rows in torch.randperm(len(obs)).chunk(self.updates):
            noise = 0.3 * torch.randn(len(rows), 9)
            loss = (self.model(obs[rows]) - target[rows] - noise).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def size_of(path: Path) -> int:
    """Return the bytes that a saver wrote for `path`, under any name that begins with it."""
    files = [
        file for found in path.parent.glob(path.name + "*") for file in (found, *found.glob("*")) if file.is_file()
    ]
    return sum(file.stat().st_size for file in files)


def check(saver: Saver, training: Training, folder: Path) -> None:
    """Save, continue training, load, and raise FledgeError unless every bit is as it was saved."""
    state = training.state()
    want = [leaf.source.clone() for leaf in flatten(state)[1]]
    path = folder / "check.pt"
    saver.save(state, path)
    training.iteration()
    saver.wait()
    got = {"/".join(map(str, leaf.path)): leaf.source for leaf in flatten(saver.load(path))[1]}
    names = ["/".join(map(str, leaf.path)) for leaf in flatten(state)[1]]
    same = all(torch.equal(got[name].view(-1), tensor.view(-1)) for name, tensor in zip(names, want, strict=True))
    if not same:
        raise FledgeError(f"{saver.name} does not restore the state that it saved, so nothing was timed.")


def measure_waits(
    kinds: Sequence[type[Saver]], training: Training, folder: Path, seconds: float, most: int
) -> dict[str, dict[str, Any]]:
    """Return blocking times, time until written, and bytes by saver; check all first, then time in turns of `seconds`."""
    savers = [kind(training.optimizer) for kind in kinds]
    timed: list[list[dict[str, float]]] = [[] for _ in savers]
    try:
        for saver in savers:
            check(saver, training, place_of(folder, saver))
        for _ in range(TURNS):
            for saver, rows in zip(savers, timed, strict=True):
                begun, first = time.perf_counter(), len(rows)
                while len(rows) == first or (len(rows) - first < most and time.perf_counter() - begun < seconds):
                    rows.append(time_save(saver, training, place_of(folder, saver) / "wait.pt"))
        sizes = [size_of(place_of(folder, saver) / "wait.pt") for saver in savers]
    finally:
        for saver in savers:
            saver.close()
    return {
        saver.name: waits_of(rows) | {"durable": saver.durable, "bytes": size, "saves": len(rows)}
        for saver, rows, size in zip(savers, timed, sizes, strict=True)
    }


def place_of(folder: Path, saver: Saver) -> Path:
    """Return the folder of one saver."""
    place = folder / type(saver).__name__
    place.mkdir(exist_ok=True)
    return place


def time_save(saver: Saver, training: Training, path: Path) -> dict[str, float]:
    """Return the seconds of one save: the call, the fence right after it, both, and until the file is written."""
    state = training.state()
    start, cpu = time.perf_counter(), time.thread_time()
    saver.save(state, path)
    called, worked = time.perf_counter(), time.thread_time()
    saver.fence()
    fenced = time.perf_counter()
    saver.wait()
    written = time.perf_counter()
    training.iteration()
    return {"call": called - start, "call_cpu": worked - cpu, "fence": fenced - called, "total": fenced - start,
            "written": written - start}  # fmt: skip


def waits_of(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return median and 99th percentile of every part, ms."""
    found = {name: np.percentile([row[name] for row in rows], [50, 99]) * 1e3 for name in rows[0]}
    return {
        f"{name}_{p}_ms": float(value)
        for name, pair in found.items()
        for p, value in zip(("p50", "p99"), pair, strict=True)
    }


def measure_slowdown(
    kind: type[Saver], training: Training, folder: Path, turns: int, length: float, every: float
) -> dict[str, Any]:
    """Return the slow-down of a loop by saving every `every` seconds (0: each iteration), in turns of `length` s."""
    saver = kind(training.optimizer)
    paces: dict[bool, list[float]] = {False: [], True: []}
    saves, saving_s = 0, 0.0
    try:
        for warm in range(2):
            saver.save(training.state(), folder / f"{warm}.pt")
            training.iteration()
            saver.wait()
        before = saver.cpu_s()
        for turn in range(2 * turns):
            saving = turn % 4 in (1, 2)  # off, on, on, off: a steady drift cancels
            count, last, begun = 0, -every, time.perf_counter()
            while time.perf_counter() - begun < length:
                if saving and time.perf_counter() - begun - last >= every:
                    saver.save(training.state(), folder / f"{saves % 4}.pt")
                    last, saves = time.perf_counter() - begun, saves + 1
                training.iteration()
                count += 1
            saver.wait()  # what is still being written counts for the turn that caused it
            paces[saving].append((time.perf_counter() - begun) / count)
            saving_s += saving * (time.perf_counter() - begun)
        ratios = [on / off - 1 for on, off in zip(paces[True], paces[False], strict=True)]
        result = {
            "slowdown": float(np.median(ratios)),
            "slowdown_quartiles": np.quantile(ratios, [0.25, 0.75]).tolist(),
            "iteration_s": float(np.median(paces[False])),
            "saves": saves,
        }
        cpu = saver.cpu_s() - before
        if cpu:
            result |= {"cpu_ms_per_save": 1e3 * cpu / saves, "cpu_share": cpu / saving_s / (os.cpu_count() or 1)}
    finally:
        saver.close()
    return result


def measure_navrl(path: Path | None, training: Training, folder: Path) -> dict[str, Any]:
    """Return the size of NavRL's released weights, or of a network trained here, against the original file."""
    if path is not None:
        source, weights = "NavRL's released checkpoint", load_checkpoint(path)
        original = path.stat().st_size
    else:
        source, weights = "a network trained here (NavRL's weights were not given)", dict(training.model.state_dict())
        torch.save(weights, folder / "weights.pt")
        original = (folder / "weights.pt").stat().st_size
    ours = save_checkpoint(weights, folder / "weights")
    same = all(torch.equal(weights[name], tensor) for name, tensor in load_checkpoint(ours).items())
    tensors = sum(tensor.nbytes for tensor in weights.values())
    size = ours.stat().st_size
    return {"source": source, "bytes": size, "original_bytes": original, "ratio": size / original,
            "ratio_to_tensors": size / tensors, "lossless": same}  # fmt: skip


def measure_history(folder: Path, checkpoints: int, updates: int, hidden: int, seed: int) -> dict[str, Any]:
    """Return the size of a history on disk, against as many torch.save files of the same states."""
    results: dict[str, Any] = {"checkpoints": checkpoints, "updates_between": updates}
    kinds = {"default": {}, "delta": {"delta": "weights_only"}, "bfloat16": {"weights_only_dtype": "bfloat16"}}
    for name, options in kinds.items():
        training = Training(hidden, 3, hidden, 8, updates, seed)
        history = CheckpointHistory(folder / name, keep_whole=3, keep_best=3, **options)  # type: ignore[arg-type]
        plain = 0
        for step in range(checkpoints):
            training.iteration()
            buffer = io.BytesIO()
            torch.save(training.state(), buffer)
            plain += buffer.tell()
            history.save(training.state(), step, metric=float(np.sin(step)))
        state, info = history.load_latest()
        if info.step != checkpoints - 1 or not torch.equal(
            state["model"]["0.weight"], training.model.state_dict()["0.weight"]
        ):
            raise FledgeError("The history's newest checkpoint differs from the saved state.")
        taken = sum(file.stat().st_size for file in (folder / name).iterdir())
        results[name] = {"bytes": taken, "torch_save_bytes": plain, "ratio": taken / plain}
    return results


def run(
    size_mb: int = 200,
    seed: int = 0,
    navrl_checkpoint: str | None = None,
    quick: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return waits, times, bytes, slow-downs and ratios of every saver, and whether the targets are met.

    Args:
        size_mb: Size of the large training state (model + Adam), MB.
        seed: Random seed of networks and data.
        navrl_checkpoint: NavRL's released weights; without them a network trained here is measured instead.
        quick: Run for a few seconds on small sizes: a check that it runs, not a measurement.
        on_progress: Called with a line before each part.
    """
    say = on_progress or (lambda text: None)
    hidden = max(int((size_mb * 1e6 / 12 / 4) ** 0.5), 64)  # 12 bytes a parameter; four square layers carry nearly all
    large = Training(hidden, 5, 64, *((2, 1) if quick else (16, 2)), seed)
    small = Training(64, 2, 8, 2, 2, seed) if quick else Training(320, 3, 1024, 32, 16, seed)
    seconds, most = (0.1, 1) if quick else (40.0, 20)
    result: dict[str, Any] = {
        "machine": machine_info(),
        "quick": quick,
        "waits": {},
        "small_loop": {},
        "large_loop": {},
    }
    result["state_mb"] = {name: sum(leaf.nbytes for leaf in flatten(loop.state())[1]) / 1e6
                          for name, loop in (("large", large), ("small", small))}  # fmt: skip
    with scratch() as folder:
        say("the first save of fresh processes, in turns")
        result["first_save"] = measure_first_saves(folder, *((1, 1) if quick else ()))
        if not quick:
            say("checkpoints of fledge train on two ranks")
            result["train"] = measure_train(folder / "train")
        say("waits: every saver is checked, then they take turns")
        result["waits"] = measure_waits(SAVERS, large, folder, seconds / TURNS, most)
        for kind in (Fledge,) if quick else (Fledge, TorchSave, TorchSaveAlone, LZ4Thread):
            turns, length = (1, 0.1) if quick else ((20, 6.0) if kind is Fledge else (4, 6.0))
            say(f"saving every iteration at {result['state_mb']['small']:.1f} MB: {kind.name}")
            result["small_loop"][kind.name] = measure_slowdown(kind, small, folder, turns, length, 0.0)
            turns, length = (1, 0.1) if quick else ((6, 30.0) if kind is Fledge else (1, 30.0))
            say(f"saving every 10 s at {result['state_mb']['large']:.0f} MB: {kind.name}")
            result["large_loop"][kind.name] = measure_slowdown(kind, large, folder, turns, length, 10.0)
        say("NavRL's weights")
        result["navrl"] = measure_navrl(Path(navrl_checkpoint) if navrl_checkpoint else None, small, folder)
        say("a history")
        result["history"] = measure_history(folder / "history", *((5, 2, 64) if quick else (50, 40, 256)), seed)
    measured = {
        "first_save_ms": result["first_save"][FledgeAlone.name]["first_ms"]["median"],
        **({"train_save_p99_ms": result["train"]["p99_ms"]} if "train" in result else {}),
        "call_p99_ms": result["waits"][Fledge.name]["call_p99_ms"],
        "small_slowdown": result["small_loop"][Fledge.name]["slowdown"],
        "large_slowdown": result["large_loop"][Fledge.name]["slowdown"],
        "navrl_ratio": result["navrl"]["ratio"],
        "history_ratio": result["history"]["default"]["ratio"],
    }
    result["bars"] = {
        name: {"bar": BARS[name], "measured": got, "met": bool(got <= BARS[name])} for name, got in measured.items()
    }
    return result
