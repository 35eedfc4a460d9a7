"""Image replay beside a ring buffer of NumPy arrays: memory, adding and sampling, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from rich.console import RenderableType
from rich.table import Table

from benchmarks.image_episodes import CONTENTS, Content, Episode
from benchmarks.tables import shown, table
from benchmarks.turns import ratio, spread
from fledge.core.errors import FledgeError
from fledge.replay import DictReplayBuffer

BATCHES = (32, 256)
KEYS = ["image", "action", "reward", "terminated", "next_image"]
HARD_SHARE = 5  # a fifth of the transitions of images with noise
PASSES = 0.25  # of the buffer's size, added once more after it is full


class Ring:
    """Ring buffer of NumPy arrays: each image once, T + 1 rows per episode, so that the next image is in the next row."""

    def __init__(self, rows: int, episode: Episode, seed: int) -> None:
        self.arrays = {k: np.zeros((rows, *v.shape[1:]), v.dtype) for k, v in episode.items()}
        self.can_sample = np.zeros(rows, bool)
        self.place, self.rng = 0, np.random.default_rng(seed)
        self.numbers: np.ndarray | None = None

    def add(self, episode: Episode) -> None:
        """Copy an episode over the oldest rows."""
        length = len(episode["reward"])
        if self.place + length + 1 > len(self.can_sample):
            self.can_sample[self.place :] = False
            self.place = 0
        begin, end = self.place, self.place + length
        for key, values in episode.items():
            self.arrays[key][begin : begin + len(values)] = values
        self.can_sample[begin:end], self.can_sample[end], self.numbers = True, False, None
        self.place = end + 1

    def get(self, numbers: np.ndarray) -> dict[str, torch.Tensor]:
        """Return transitions by number, from the first row on."""
        if self.numbers is None:
            self.numbers = np.flatnonzero(self.can_sample)
        rows = self.numbers[numbers]
        batch = {key: torch.from_numpy(values[rows]) for key, values in self.arrays.items()}
        return {**batch, "next_image": torch.from_numpy(self.arrays["image"][rows + 1])}

    def sample(self, count: int) -> dict[str, torch.Tensor]:
        """Return a batch, uniformly with replacement."""
        if self.numbers is None:
            self.numbers = np.flatnonzero(self.can_sample)
        return self.get(self.rng.integers(0, len(self.numbers), count))


def measure_images(transitions: int, turns: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the figures of every content: JSON-able."""
    found = {}
    for name, content in CONTENTS.items():
        count = max(transitions // (HARD_SHARE if content.hard else 1), 1_000)
        say(f"{content.title}: adding {count:,} transitions")
        found[name] = measure(content, count, turns, seed)
    return found


def measure(content: Content, count: int, turns: int, seed: int) -> dict[str, Any]:
    """Fill ring and buffers with the same episodes, compare what they return, and time them in turns."""
    first = next(content.episodes(count, seed))
    ring = Ring(count + count // 100 + 1, first, seed)
    with DictReplayBuffer(count, KEYS, seed=seed) as warm:  # compiles the kernels
        warm.add(first)
        warm.sample(8)
    buffers = {
        "uniform": DictReplayBuffer(count, KEYS, seed=seed),
        "prioritised": DictReplayBuffer(count, KEYS, seed=seed, prioritized=True),
    }
    ours = buffers["uniform"]
    filling = [_added(ring, ours, buffers["prioritised"], episode) for episode in content.episodes(count, seed)]
    _check(ring, buffers, count, np.random.default_rng(seed))
    held = ours.stats()["held_bytes"]
    raw = sum(values.nbytes // len(values) * count for values in ring.arrays.values())
    result: dict[str, Any] = {
        "title": content.title,
        "transitions": count,
        "raw_bytes": raw // count,
        "bytes": held / count,
        "smaller": raw / held,
        "image_codec": ours.stats()["keys"]["image"]["codec"],
        "sampling": {str(batch): _sampled(ring, buffers, batch, turns) for batch in BATCHES},
        "filling": _rates(filling),
    }
    more = content.episodes(max(int(count * PASSES), 1), seed + 1)
    result["replacing"] = _rates([_added(ring, ours, buffers["prioritised"], episode) for episode in more])
    for buffer in buffers.values():
        buffer.close()
    return result


def _added(ring: Ring, ours: DictReplayBuffer, other: DictReplayBuffer, episode: Episode) -> tuple[int, float, float]:
    times = []
    for buffer in (ring, ours):
        begun = time.process_time()
        buffer.add(episode)
        times.append(time.process_time() - begun)
    other.add(episode)
    return len(episode["reward"]), times[0], times[1]


def _rates(added: list[tuple[int, float, float]]) -> dict[str, Any]:
    """Return transitions added per second of CPU time, and the CPU time of ours relative to the ring's."""
    counts, ring, ours = (np.array(column) for column in zip(*added, strict=True))
    total = {"ring_rate": counts.sum() / ring.sum(), "rate": counts.sum() / ours.sum()}
    quartiles = ratio(ours.tolist(), ring.tolist())
    return {**total, "total_ratio": ours.sum() / ring.sum(), **{k: quartiles[k] for k in ("median", "low", "high")}}


def _check(ring: Ring, buffers: dict[str, DictReplayBuffer], count: int, rng: np.random.Generator) -> None:
    """Raise FledgeError unless all return the same transitions."""
    numbers = np.concatenate([[0, count - 1], rng.integers(0, count, 500)])
    expected = ring.get(numbers)
    for name, buffer in buffers.items():
        got = buffer.get(numbers)
        for key, values in expected.items():
            if not torch.equal(got[key], values):
                raise FledgeError(f"The {name} buffer returns other {key!r} than the ring, so nothing was timed.")


def _sampled(ring: Ring, buffers: dict[str, DictReplayBuffer], batch: int, turns: int) -> dict[str, Any]:
    """Time batches of all buffers in turns; return ms per batch, and the times relative to the ring's."""
    times: dict[str, list[float]] = {"ring": [], **{name: [] for name in buffers}}
    cpu: dict[str, list[float]] = {name: [] for name in times}
    for turn in range(turns + 2):
        for name, buffer in {"ring": ring, **buffers}.items():
            begun, used = time.perf_counter(), time.process_time()
            for _ in range(3):
                buffer.sample(batch)  # type: ignore[attr-defined]
            if turn >= 2:  # after warming up
                times[name].append((time.perf_counter() - begun) / 3e-3)
                cpu[name].append((time.process_time() - used) / 3e-3)
    figures: dict[str, Any] = {"ms": {name: spread(values)["median"] for name, values in times.items()}}
    for name in buffers:
        ratios = {"wall": ratio(times[name], times["ring"]), "cpu": ratio(cpu[name], cpu["ring"])}
        figures[name] = {kind: {k: v for k, v in found.items() if k != "turns"} for kind, found in ratios.items()}
    return figures


def render_images(found: Mapping[str, Any]) -> list[RenderableType]:
    """Return three tables, each relative to the ring: time, CPU time, and size and adding."""
    tables: list[Table] = []
    for name, what in (("wall", "time"), ("cpu", "CPU time")):
        view = table(
            f"Images, sampling: {what} relative to a NumPy ring buffer", "images", "batch", "uniform", "by priority"
        )
        for row in found.values():
            for batch, times in row["sampling"].items():
                view.add_row(row["title"], batch, *(shown(times[kind][name]) for kind in ("uniform", "prioritised")))
        tables.append(view)
    sizes = table(
        "Images, memory; adding: CPU time / ring's", "images", "raw", "bytes", "smaller", "filling", "replacing"
    )
    for row in found.values():
        figures = f"{row['raw_bytes']:,}", f"{row['bytes']:,.0f}", f"{row['smaller']:.1f}x"
        sizes.add_row(row["title"], *figures, *(f"{row[way]['total_ratio']:.2f}" for way in ("filling", "replacing")))
    return [*tables, sizes]
