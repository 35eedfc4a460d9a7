"""Checkpoints: ours beside torch.save, DCP's async_save, safetensors and the prior design, in one run on one machine.

Every contender first has to give back, bit for bit, what it was given. Then four questions are measured:
what the caller of a save waits and how long until the file is durable (model + Adam of `size_mb`); how much slower a
training loop gets that saves every iteration at a few MB, and one that saves `size_mb` every 10 s; what NavRL's weights
take; and what a history of 50 checkpoints takes, against 50 `torch.save` files.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from fledge.bench.baselines.checkpoint_ways import CONTENDERS, Contender, Fledge, Prior, TorchSave
from fledge.core.errors import FledgeError
from fledge.core.machine import machine_info
from fledge.storage import CheckpointHistory, load_checkpoint, save_checkpoint
from fledge.storage.format.tree import flatten

BARS = {"wait_p99_ms": 1.0, "small_slowdown": 0.02, "large_slowdown": 0.05, "navrl_ratio": 0.84, "history_ratio": 0.35}


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


def measure_waits(kind: type[Contender], training: Training, folder: Path, seconds: float, most: int) -> dict[str, Any]:
    """What callers wait, time to durable, and bytes, over saves between which the training goes on."""
    contender = kind(training.optimizer)
    waits: list[float] = []
    work: list[float] = []
    durable: list[float] = []
    fences: list[float] = []
    try:
        check(contender, training, folder)
        path, begun = folder / "wait.pt", time.perf_counter()
        while len(waits) < most and (len(waits) < 3 or time.perf_counter() - begun < seconds):
            state = training.state()
            start, cpu = time.perf_counter(), time.thread_time()
            contender.save(state, path)
            waits.append(time.perf_counter() - start)
            work.append(time.thread_time() - cpu)
            contender.wait()
            durable.append(time.perf_counter() - start)
            training.iteration()
        size = size_of(path)
        if isinstance(contender, Fledge):  # the worst case of a step right after the save
            for _ in range(3):
                contender.save(training.state(), path)
                start = time.perf_counter()
                contender.saver.fence()
                fences.append(time.perf_counter() - start)
                contender.wait()
    finally:
        contender.close()
    p50, p99 = (np.percentile(waits, [50, 99]) * 1e3).tolist()
    result = {"wait_p50_ms": p50, "wait_p99_ms": p99, "wait_cpu_p99_ms": float(np.percentile(work, 99)) * 1e3}
    result |= {"durable_s": float(np.median(durable)), "bytes": size, "saves": len(waits)}
    return result | ({"fence_ms": float(np.median(fences)) * 1e3} if fences else {})


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
    for name, options in {"default": {}, "delta": {"delta": "thin"}, "bfloat16": {"thin_dtype": "bfloat16"}}.items():
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
    seconds, most = (0.1, 3) if quick else (20.0, 60)
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
        for kind in CONTENDERS:
            say(f"waits: {kind.name}")
            place = folder / kind.__name__
            place.mkdir()
            scale = 5 if kind is Fledge else 1  # a 99th percentile takes many
            result["waits"][kind.name] = measure_waits(kind, large, place, scale * seconds, scale * most)
            shutil.rmtree(place)
        for kind in (Fledge,) if quick else (Fledge, TorchSave, Prior):
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
        "wait_p99_ms": result["waits"][Fledge.name]["wait_p99_ms"],
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
    waits = Table(title=f"Saving {result['state_mb']['large']:.0f} MB (model + Adam)")
    for heading in ("way", "wait p50, ms", "wait p99, ms", "its CPU p99, ms", "durable, s", "MB", "saves"):
        waits.add_column(heading, justify="left" if heading == "way" else "right")
    for name, row in result["waits"].items():
        times = [f"{row[key]:.2f}" for key in ("wait_p50_ms", "wait_p99_ms", "wait_cpu_p99_ms", "durable_s")]
        waits.add_row(name, *times, f"{row['bytes'] / 1e6:.1f}", str(row["saves"]))
    loops = Table(title="Slow-down of a training loop by saving")
    for heading in ("way", "loop", "by the clock (quartiles)", "share of CPU time", "iteration, s", "saves"):
        loops.add_column(heading, justify="left" if heading in ("way", "loop") else "right")
    labels = {"small_loop": f"{result['state_mb']['small']:.1f} MB every iteration",
              "large_loop": f"{result['state_mb']['large']:.0f} MB every 10 s"}  # fmt: skip
    for loop, label in labels.items():
        for name, row in result[loop].items():
            low, high = row["slowdown_quartiles"]
            share = f"{row['cpu_share']:.1%}" if "cpu_share" in row else "-"
            clock = f"{row['slowdown']:+.1%} ({low:+.1%} to {high:+.1%})"
            loops.add_row(name, label, clock, share, f"{row['iteration_s']:.3f}", str(row["saves"]))
    bars = Table(title="Bars" + (" (quick: not a measurement)" if result["quick"] else ""))
    for heading in ("what", "measured", "at most", "met"):
        bars.add_column(heading, justify="left" if heading == "what" else "right")
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
    return [waits, loops, bars, *lines]
