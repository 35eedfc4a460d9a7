"""Checkpoints: ours beside torch.save, DCP's async_save, safetensors and the prior design, in one run on one machine.

Every contender first has to give back, bit for bit, what it was given. Then four questions are measured:
what the caller of a save waits and how long until the file is written (model + Adam of `size_mb`); how much slower a
training loop gets that saves every iteration at a few MB, and one that saves `size_mb` every 10 s; what NavRL's weights
take; and what a history of 50 checkpoints takes, against 50 `torch.save` files.

What a caller waits has two parts: the call, and then the fence, which is what `optimizer.step()` still waits for when it
comes right after the call, as it does in a loop that computes nothing in between. Ours moves nearly all of its work behind
the call, so that only their sum compares with a way that has no fence. The ways take turns at saving.

The loops are made like PPO's: a rollout without gradients, then updates on its shuffled rows. They are timed in turns, with
saving and without, so that other work on the machine hits both, after two saves that let every way take its memory. Beside
the slow-down by the clock (what a user sees, but noisy where others work too) stands the share of the machine's CPU
time that our background threads took: what the slow-down comes to, at the least, when the loop keeps all cores busy.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.baselines.checkpoint_ways import CONTENDERS, Contender, Fledge, Prior, TorchSave, TorchSaveAlone
from benchmarks.tables import table, three_digits
from fledge.core.errors import FledgeError
from fledge.core.machine import machine_info
from fledge.storage import CheckpointHistory, load_checkpoint, save_checkpoint
from fledge.storage.format.flattening import flatten

TURNS = 5  # of each way to save
BARS = {"call_p99_ms": 1.0, "small_slowdown": 0.02, "large_slowdown": 0.05, "navrl_ratio": 0.84, "history_ratio": 0.35}


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
    """Bytes of what a contender wrote for `path`, whatever it called it."""
    files = [
        file for found in path.parent.glob(path.name + "*") for file in (found, *found.glob("*")) if file.is_file()
    ]
    return sum(file.stat().st_size for file in files)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder on a disk (the working folder's, since /tmp may be memory), gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=".fledge-bench-", dir="."))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check(contender: Contender, training: Training, folder: Path) -> None:
    """Save, train on, load, and compare every bit with what was saved; refuse to time what differs."""
    state = training.state()
    want = [leaf.source.clone() for leaf in flatten(state)[1]]
    path = folder / "check.pt"
    contender.save(state, path)
    training.iteration()
    contender.wait()
    got = {"/".join(map(str, leaf.path)): leaf.source for leaf in flatten(contender.load(path))[1]}
    names = ["/".join(map(str, leaf.path)) for leaf in flatten(state)[1]]
    same = all(torch.equal(got[name].view(-1), tensor.view(-1)) for name, tensor in zip(names, want, strict=True))
    if not same:
        raise FledgeError(f"{contender.name} does not give back what it saved, so there is nothing to time.")


def measure_waits(
    kinds: Sequence[type[Contender]], training: Training, folder: Path, seconds: float, most: int
) -> dict[str, dict[str, Any]]:
    """What callers wait, time until written, and bytes, by way: all checked first, then in turns of `seconds`."""
    ways = [kind(training.optimizer) for kind in kinds]
    timed: list[list[dict[str, float]]] = [[] for _ in ways]
    try:
        for way in ways:
            check(way, training, place_of(folder, way))
        for _ in range(TURNS):
            for way, rows in zip(ways, timed, strict=True):
                begun, first = time.perf_counter(), len(rows)
                while len(rows) == first or (len(rows) - first < most and time.perf_counter() - begun < seconds):
                    rows.append(time_save(way, training, place_of(folder, way) / "wait.pt"))
        sizes = [size_of(place_of(folder, way) / "wait.pt") for way in ways]
    finally:
        for way in ways:
            way.close()
    return {
        way.name: waits_of(rows) | {"durable": way.durable, "bytes": size, "saves": len(rows)}
        for way, rows, size in zip(ways, timed, sizes, strict=True)
    }


def place_of(folder: Path, way: Contender) -> Path:
    """A way's own folder."""
    place = folder / type(way).__name__
    place.mkdir(exist_ok=True)
    return place


def time_save(way: Contender, training: Training, path: Path) -> dict[str, float]:
    """Seconds of one save: of the call, of the fence right after it, of both, and until the file is written."""
    state = training.state()
    start, cpu = time.perf_counter(), time.thread_time()
    way.save(state, path)
    called, worked = time.perf_counter(), time.thread_time()
    way.fence()
    fenced = time.perf_counter()
    way.wait()
    written = time.perf_counter()
    training.iteration()
    return {"call": called - start, "call_cpu": worked - cpu, "fence": fenced - called, "total": fenced - start,
            "written": written - start}  # fmt: skip


def waits_of(rows: list[dict[str, float]]) -> dict[str, float]:
    """Median and 99th percentile of every part, ms."""
    found = {name: np.percentile([row[name] for row in rows], [50, 99]) * 1e3 for name in rows[0]}
    return {
        f"{name}_{p}_ms": float(value)
        for name, pair in found.items()
        for p, value in zip(("p50", "p99"), pair, strict=True)
    }


def measure_slowdown(
    kind: type[Contender], training: Training, folder: Path, turns: int, length: float, every: float
) -> dict[str, Any]:
    """Slow-down of a loop by saving (each iteration, or every `every` seconds), from turns of `length` s on and off."""
    contender = kind(training.optimizer)
    paces: dict[bool, list[float]] = {False: [], True: []}
    saves, saving_s = 0, 0.0
    try:
        for warm in range(2):
            contender.save(training.state(), folder / f"{warm}.pt")
            training.iteration()
            contender.wait()
        before = contender.cpu_s()
        for turn in range(2 * turns):
            saving = turn % 4 in (1, 2)  # off, on, on, off: a steady drift cancels
            count, last, begun = 0, -every, time.perf_counter()
            while time.perf_counter() - begun < length:
                if saving and time.perf_counter() - begun - last >= every:
                    contender.save(training.state(), folder / f"{saves % 4}.pt")
                    last, saves = time.perf_counter() - begun, saves + 1
                training.iteration()
                count += 1
            contender.wait()  # what is still being written counts for the turn that caused it
            paces[saving].append((time.perf_counter() - begun) / count)
            saving_s += saving * (time.perf_counter() - begun)
        ratios = [on / off - 1 for on, off in zip(paces[True], paces[False], strict=True)]
        result = {
            "slowdown": float(np.median(ratios)),
            "slowdown_quartiles": np.quantile(ratios, [0.25, 0.75]).tolist(),
            "iteration_s": float(np.median(paces[False])),
            "saves": saves,
        }
        cpu = contender.cpu_s() - before
        if cpu:
            result |= {"cpu_ms_per_save": 1e3 * cpu / saves, "cpu_share": cpu / saving_s / (os.cpu_count() or 1)}
    finally:
        contender.close()
    return result


def measure_navrl(path: Path | None, training: Training, folder: Path) -> dict[str, Any]:
    """What NavRL's released weights take, or those of a network trained here, against the file as released."""
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
    """What a history takes on the disk, against as many torch.save files of the same states."""
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
            raise FledgeError("The history's newest checkpoint is not what was saved, so its size means nothing.")
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
    """Return waits, times, bytes, slow-downs and ratios of every contender, and whether the bars are met.

    Args:
        size_mb: Size of the large training state (model + Adam), MB.
        seed: Of networks and data.
        navrl_checkpoint: NavRL's released weights; without them a network trained here is measured instead.
        quick: A few seconds on small sizes: a check that it runs, not a measurement.
        on_progress: Told what is being measured.
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
        say("waits: every way is checked, then they take turns")
        result["waits"] = measure_waits(CONTENDERS, large, folder, seconds / TURNS, most)
        for kind in (Fledge,) if quick else (Fledge, TorchSave, TorchSaveAlone, Prior):
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


def render(result: dict[str, Any]) -> list[Any]:
    """The figures as tables."""
    waits = table(
        f"Saving {result['state_mb']['large']:.0f} MB (model + Adam), ms: median/99th percentile",
        "way", "call", "fence", "both", "written", "MB",
    )  # fmt: skip
    for name, row in result["waits"].items():
        parts = [f"{three_digits(row[f'{part}_p50_ms'])}/{three_digits(row[f'{part}_p99_ms'])}"
                 for part in ("call", "fence", "total")]  # fmt: skip
        written = f"{row['written_p50_ms']:.0f}"
        waits.add_row(name, *parts, written, f"{row['bytes'] / 1e6:.0f}")
    loops = table(
        "Slow-down of a training loop by saving (quartiles)",
        "way", "by the clock", "CPU", "loop, s", "saves",
    )  # fmt: skip
    labels = {"small_loop": f"{result['state_mb']['small']:.1f} MB every iteration",
              "large_loop": f"{result['state_mb']['large']:.0f} MB every 10 s"}  # fmt: skip
    for loop, label in labels.items():
        loops.add_row(f"{label}:")
        for name, row in result[loop].items():
            low, high = row["slowdown_quartiles"]
            share = f"{row['cpu_share']:.1%}" if "cpu_share" in row else "-"
            clock = f"{row['slowdown']:+.1%} ({low:+.1%}, {high:+.1%})"
            loops.add_row(f"  {name}", clock, share, f"{row['iteration_s']:.3f}", str(row["saves"]))
    bars = table(
        "Bars" + (" (quick: not a measurement)" if result["quick"] else ""), "what", "measured", "at most", "met"
    )
    for name, row in result["bars"].items():
        bars.add_row(name, f"{row['measured']:.3f}", f"{row['bar']:.2f}", "yes" if row["met"] else "no")
    navrl, history = result["navrl"], result["history"]
    lines = [
        f"{navrl['source']}: {navrl['bytes']:,} of {navrl['original_bytes']:,} bytes, ratio {navrl['ratio']:.3f} "
        f"({navrl['ratio_to_tensors']:.3f} of the bare tensors), lossless: {'yes' if navrl['lossless'] else 'NO'}",
        f"history of {history['checkpoints']}: "
        + ", ".join(f"{name} {history[name]['ratio']:.3f}" for name in ("default", "delta", "bfloat16"))
        + " of as many torch.save files",
    ]
    counts = sorted(row["saves"] for row in result["waits"].values())
    meaning = (
        "call: until save returns. fence: what optimizer.step() then waits, when it follows at once; with computing in "
        "between it is less. written: median until the file is on the disk; of ways called not durable and the prior "
        f"design, until the system has it. {counts[0]} to {counts[-1]} saves each, in turns."
    )
    return [waits, meaning, loops, bars, *lines]
