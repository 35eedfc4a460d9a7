"""The replay buffer by number of transitions: small ones, so that ten million fit into a desktop's memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.machine import release_memory, resident_bytes
from benchmarks.scale.section import Figure, Need, Section
from fledge.core.errors import FledgeError
from fledge.replay import DictReplayBuffer

KEYS = ("obs", "action", "reward", "terminated", "number", "next_obs")
LENGTH = 500  # transitions of an episode
EPISODES = 100  # different ones, added again and again under new numbers
BATCH = 256
REPLACED = 50_000  # transitions that are added to the full buffer, at most


class Pendulums:
    """Episodes of a swinging pendulum: 33 bytes a transition, of which 8 are its number."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        speed = np.cumsum(rng.normal(0.0, 0.1, (EPISODES, LENGTH + 1)), axis=1)
        angle = np.cumsum(0.05 * speed, axis=1)
        self.obs = np.stack([np.cos(angle), np.sin(angle), speed], axis=2).astype(np.float32)
        self.action = np.diff(speed, axis=1)[..., None].astype(np.float32)
        self.reward = -(angle[:, 1:] ** 2 + 0.1 * speed[:, 1:] ** 2).astype(np.float32)

    def episode(self, number: int) -> dict[str, np.ndarray]:
        """Return episode `number`: the values of one of the pendulums, and transitions with their own numbers."""
        k = number % EPISODES
        numbers = np.arange(LENGTH * number, LENGTH * (number + 1))
        ended = np.zeros(LENGTH, dtype=bool)
        return {"obs": self.obs[k], "action": self.action[k], "reward": self.reward[k], "terminated": ended,
                "number": numbers}  # fmt: skip

    def check(self, batch: dict[str, np.ndarray]) -> bool:
        """Return whether every transition of a batch is the one that its number says."""
        episode, t = np.divmod(batch["number"], LENGTH)
        k = episode % EPISODES
        wanted = {
            "obs": self.obs[k, t],
            "next_obs": self.obs[k, t + 1],
            "action": self.action[k, t],
            "reward": self.reward[k, t],
        }
        return all(np.array_equal(batch[key], values) for key, values in wanted.items())


class Replay(Section):
    name, title = "replay", "Replay buffer"
    items, per = "transitions", "transition"
    sizes = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
    quick_sizes = (1_000, 4_000)
    verified = "sampled transitions are bit for bit those that were added under their numbers, from all of the buffer"
    figures = (
        Figure("add", "add", "µs", cpu=True),
        Figure("replace", "add to a full buffer", "µs", cpu=True),
        Figure("sample", "sample", "µs", cpu=True),
        Figure("held", "memory of the buffer per transition", "bytes", "space"),
        Figure("memory", "resident memory per transition", "bytes", "space"),
    )

    def __init__(self) -> None:
        self.data = Pendulums()
        with DictReplayBuffer(4 * LENGTH, KEYS) as warm:  # loads what the first buffer of a process loads
            for number in range(8):
                warm.add(self.data.episode(number))
            warm.sample(BATCH)

    def need(self, size: int) -> Need:
        return Need(memory=0.5e9 + 60 * size)

    def measure(self, size: int, seconds: float, folder: Path) -> dict[str, float]:
        release_memory()
        before = resident_bytes()
        with DictReplayBuffer(size, KEYS) as buffer:
            count = size // LENGTH
            added = timed(lambda number: buffer.add(self.data.episode(number)), range(count))
            release_memory()
            resident = resident_bytes() - before
            self.check(buffer, size, first=0)
            batches = max(int(seconds / 0.01), 10)
            sampled = timed(lambda _: buffer.sample(BATCH), range(batches))
            more = min(count, REPLACED // LENGTH)
            replaced = timed(lambda number: buffer.add(self.data.episode(number)), range(count, count + more))
            self.check(buffer, size, first=LENGTH * more)
            held = float(buffer.stats()["held_bytes"])
        figures = {"held": held / size, "memory": resident / size}
        for key, (clock, cpu), items in (
            ("add", added, LENGTH * count),
            ("replace", replaced, LENGTH * more),
            ("sample", sampled, BATCH * batches),
        ):
            figures |= {key: 1e6 * clock / items, f"{key}_cpu": 1e6 * cpu / items}
        return figures

    def check(self, buffer: DictReplayBuffer, size: int, first: int) -> None:
        """Raise FledgeError unless samples are the transitions that were added, `first` to `first + size` all of them."""
        batch = {key: value.numpy() for key, value in buffer.sample(4 * BATCH).items()}
        last = {key: value.numpy() for key, value in buffer.get(np.array([first, first + size - 1])).items()}
        if not self.data.check(batch) or last["number"].tolist() != [first, first + size - 1] or len(buffer) != size:
            raise FledgeError(
                f"A buffer of {size:,} transitions returns others than were added. Nothing is reported of it."
            )


def timed(call: Callable[[int], object], numbers: range) -> tuple[float, float]:
    """Call with every number; return the seconds by the clock and of CPU time."""
    begun, worked = time.perf_counter(), time.process_time()
    for number in numbers:
        call(number)
    return time.perf_counter() - begun, time.process_time() - worked
