"""Checkpoints by size of the state: parameters and Adam's moments, saved in the background and loaded again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.scale.section import Figure, Need, Section
from fledge.core.errors import FledgeError
from fledge.storage import AsyncCheckpointSaver, load_checkpoint

BYTES = 12  # of a parameter and its two moments
LARGEST = 2**22  # elements of a tensor
MB = 1_000_000


class Checkpoints(Section):
    name, title = "checkpoints", "Checkpoints"
    items, per = "MB of state", "MB"
    sizes, quick_sizes = (1, 4, 16, 64, 256, 1024, 4096), (1, 4)
    verified = "the loaded state equals the saved one bit for bit"
    figures = (
        Figure("call", "the call", "ms", cpu=True),
        Figure("fence", "until the optimiser may step", "ms"),
        Figure("durable", "until durable", "ms", cpu=True),
        Figure("resume", "load", "ms", cpu=True),
        Figure("disk", "file on disk per byte of state", "bytes", "space"),
    )

    def need(self, size: int) -> Need:
        return Need(memory=0.3e9 + 2.5 * size * MB, disk=2.2 * size * MB)  # state, staged copy, then loaded state

    def measure(self, size: int, seconds: float, folder: Path) -> dict[str, float]:
        optimizer = make_optimizer(size * MB // BYTES)
        path = folder / "state.fledge"
        saver = AsyncCheckpointSaver(handle_signals=False)
        saver.attach(optimizer)
        saves: list[dict[str, float]] = []
        try:
            saver.save_async(state_of(optimizer), path)  # allocates the saver's memory
            saver.drain()
            begun = time.perf_counter()
            while not saves or (time.perf_counter() - begun < seconds and len(saves) < 20):
                saves.append(time_save(saver, optimizer, path))
        finally:
            saver.shutdown()
        written = path.stat().st_size
        del saver
        begun, worked = time.perf_counter(), time.process_time()
        loaded = load_checkpoint(path)
        resume = {"resume": time.perf_counter() - begun, "resume_cpu": time.process_time() - worked}
        path.unlink()
        if not same(loaded, state_of(optimizer)):
            raise FledgeError(f"A checkpoint of {size:,} MB differs from the saved state. Nothing is reported of it.")
        middle = {key: sorted(save[key] for save in saves)[len(saves) // 2] for key in saves[0]}
        costs = {key: 1e3 * value / size for key, value in (middle | resume).items()}
        return {**costs, "disk": written / (size * MB)}


def make_optimizer(count: int) -> torch.optim.Adam:
    """Return Adam after one step on `count` random parameters."""
    generator = torch.Generator().manual_seed(0)
    shapes = [min(LARGEST, count - first) for first in range(0, count, LARGEST)]
    parameters = [torch.nn.Parameter(torch.randn(length, generator=generator)) for length in shapes]
    optimizer = torch.optim.Adam(parameters, foreach=False)
    for parameter in parameters:
        parameter.grad = torch.randn(len(parameter), generator=generator)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def state_of(optimizer: torch.optim.Adam) -> dict[str, Any]:
    parameters = optimizer.param_groups[0]["params"]
    return {"model": {str(k): parameter.detach() for k, parameter in enumerate(parameters)},
            "optimizer": optimizer.state_dict()}  # fmt: skip


def time_save(saver: AsyncCheckpointSaver, optimizer: torch.optim.Adam, path: Path) -> dict[str, float]:
    """Save once; return the seconds of the call, until the optimiser may step, and until the file is durable."""
    state = state_of(optimizer)
    begun, worked = time.perf_counter(), time.process_time()
    own = time.thread_time()
    saver.save_async(state, path)
    called, own = time.perf_counter(), time.thread_time() - own
    saver.fence()
    fenced = time.perf_counter()
    saver.drain()
    ended = time.perf_counter()
    return {"call": called - begun, "call_cpu": own, "fence": fenced - begun, "durable": ended - begun,
            "durable_cpu": time.process_time() - worked}  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal in structure and in every bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
