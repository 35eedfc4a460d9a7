"""Buffers of the replay benchmark: filled with the same transitions, read at the same indices, timed in turns.

Every baseline gets the settings that serve it best: torch the faster number of threads, LZ4 both its fast and its dense
level, and TorchRL's compressed storage few enough rows that its O(n) length does not count.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from benchmarks.baselines.lz4_replay import LZ4Replay
from benchmarks.replay_flights import Episode
from fledge.core.errors import FledgeError
from fledge.core.machine import default_threads
from fledge.replay import DictReplayBuffer

BATCH = 256
FLEDGE, IN_TORCHRL = "Fledge", "Fledge in TorchRL"
LZ4 = {"LZ4-1 episodes": 0, "LZ4-9 episodes": 9}
TENSOR, MEMMAP, LISTED = "LazyTensorStorage", "LazyMemmapStorage", "CompressedListStorage"
LIST_ROWS = 2_000  # CompressedListStorage packs row by row; more rows do not make it faster
SLOW_TURNS = 5  # of buffers that take tens of milliseconds a batch


class Candidate:
    """A filled buffer: how it samples and returns transitions by number, its size, and the rate at which it was filled."""

    def __init__(
        self,
        sample: Callable[[], Any],
        get: Callable[[np.ndarray], Mapping[str, torch.Tensor]],
        bytes_per_frame: float,
        add_rate: float,
        rows: int,
        slow: bool = False,
    ) -> None:
        self.sample, self.get, self.rows, self.slow = sample, get, rows, slow
        self.bytes_per_frame, self.add_rate = bytes_per_frame, add_rate
        self.torch_threads = 1
        self.times: list[float] = []

    def figures(self) -> dict[str, float]:
        """Return size and rates, for batches of `BATCH` transitions."""
        rates = BATCH / np.array(self.times)
        return {
            "bytes_per_frame": self.bytes_per_frame,
            "add_rate": self.add_rate,
            "sample_rate": float(np.median(rates)),
            "p10": float(np.quantile(rates, 0.1)),
            "p90": float(np.quantile(rates, 0.9)),
            "torch_threads": self.torch_threads,
        }


def doubled(episodes: Sequence[Episode], obs: tuple[str, ...]) -> list[Episode]:
    """Return episodes with next_X beside X, [T] each, for buffers that do not know episodes."""
    return [
        {**{k: v[: len(e["reward"])] for k, v in e.items()}, **{f"next_{k}": e[k][1:] for k in obs}} for e in episodes
    ]


def ours(buffer: DictReplayBuffer, episodes: Sequence[Episode]) -> Candidate:
    """Fill Fledge's buffer, after another one has compiled the kernels."""
    with DictReplayBuffer(buffer.max_size, buffer.schema.names, layout=buffer.layout) as warm:
        warm.add(episodes[0])
        warm.sample(BATCH)
    begun = time.perf_counter()
    for episode in episodes:
        buffer.add(episode)
    rate = len(buffer) / (time.perf_counter() - begun)
    size = buffer.stats()["held_bytes"] / len(buffer)
    return Candidate(lambda: buffer.sample(BATCH), buffer.get, size, rate, len(buffer))


def lz4_episodes(buffer: LZ4Replay, episodes: Sequence[Episode]) -> Candidate:
    """Fill the buffer of LZ4 episodes."""
    begun = time.perf_counter()
    for episode in episodes:
        buffer.add(episode)
    total = sum(buffer.lengths)
    rate = total / (time.perf_counter() - begun)
    size = sum(buffer.key_bytes().values()) / total
    return Candidate(lambda: buffer.sample(BATCH), buffer.get, size, rate, total, slow=True)


def torchrl(flat: Mapping[str, torch.Tensor], folder: str) -> dict[str, Candidate]:
    """Fill TorchRL's storages, and Fledge's behind TorchRL's buffer; return nothing if TorchRL is not installed.

    Args:
        folder: Folder for the files of the memory-mapped storage.
    """
    try:
        from torchrl.data import CompressedListStorage, LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
    except ImportError:
        return {}
    from fledge.replay.torchrl_storage import CompressedStorage

    logging.getLogger("torchrl").setLevel(logging.WARNING)  # it announces every storage on stdout
    makes: dict[str, Callable[[int], Any]] = {
        TENSOR: LazyTensorStorage,
        MEMMAP: functools.partial(LazyMemmapStorage, scratch_dir=folder),
        LISTED: CompressedListStorage,
        IN_TORCHRL: CompressedStorage,
    }
    found = {}
    for name, make in makes.items():
        count = min(len(flat["reward"]), LIST_ROWS) if name == LISTED else len(flat["reward"])
        rows = TensorDict({k: v[:count] for k, v in flat.items()}, [count])
        storage = make(count)
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=BATCH)
        begun = time.perf_counter()
        for a in range(0, count, 1000):
            buffer.extend(rows[a : a + 1000])
        rate = count / (time.perf_counter() - begun)
        size, get = _storage_bytes(storage, rows) / count, functools.partial(_get_rows, storage)
        found[name] = Candidate(buffer.sample, get, size, rate, count, slow=name == LISTED)
    return found


def _get_rows(storage: Any, numbers: np.ndarray) -> Any:
    got = storage.get(torch.from_numpy(numbers))
    return torch.stack(got) if isinstance(got, list) else got


def _storage_bytes(storage: Any, rows: TensorDict) -> int:
    """Return bytes of the data itself; for lists, without Python's overhead per object."""
    if hasattr(storage, "_packed"):
        blobs = [*storage._packed.values(), *(b for part in storage._single.values() for b in part.values())]
        return sum(len(b) for b in blobs) + sum(a.nbytes for o in storage._open.values() for a in o.values())
    if isinstance(storage._storage, list):
        return sum(t.nbytes for item in storage._storage for t in item.values())
    return sum(v.nbytes for v in rows.values())


def check_parity(
    candidates: Mapping[str, Candidate], flat: Mapping[str, torch.Tensor], rng: np.random.Generator
) -> None:
    """Raise FledgeError unless every buffer returns exactly the transitions that went in."""
    for name, candidate in candidates.items():
        numbers = rng.integers(0, candidate.rows, 64)
        got = candidate.get(numbers)
        for key, values in flat.items():
            if not torch.equal(got[key].reshape(values[numbers].shape), values[numbers]):
                raise FledgeError(f"{name} returns other {key!r} than was stored, so nothing was timed.")


def time_in_turns(candidates: Mapping[str, Candidate], batches: int) -> None:
    """Time batches of every buffer in turns of five, so that other load on the machine affects all of them."""
    before = torch.get_num_threads()
    try:
        for candidate in candidates.values():
            candidate.torch_threads = _faster_threads(candidate)
        for turn in range(max(batches // 5, 1)):
            for candidate in candidates.values():
                if candidate.slow and turn >= SLOW_TURNS:
                    continue
                torch.set_num_threads(candidate.torch_threads)
                for _ in range(1 if candidate.slow else 5):
                    begun = time.perf_counter()
                    candidate.sample()
                    candidate.times.append(time.perf_counter() - begun)
    finally:
        torch.set_num_threads(before)


def _faster_threads(candidate: Candidate) -> int:
    """Return 1 or the number of cores: the number of torch threads with which it samples faster."""
    trials = {}
    for threads in sorted({1, default_threads()}):
        torch.set_num_threads(threads)
        times = []
        for _ in range(1 if candidate.slow else 4):
            begun = time.perf_counter()
            candidate.sample()
            times.append(time.perf_counter() - begun)
        trials[threads] = min(times)
    return min(trials, key=lambda threads: trials[threads])
