"""The buffers that the replay bench compares: filled with the same transitions, asked for the same ones, timed in turns.

Every baseline is given what serves it best: torch as many threads as are faster for it, LZ4 both its fast and its dense
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

from benchmarks.baselines.prior_replay import PriorReplay
from benchmarks.replay_flights import Episode
from fledge.core.errors import FledgeError
from fledge.core.machine import default_threads
from fledge.replay import DictReplayBuffer

BATCH = 256
FLEDGE, IN_TORCHRL = "Fledge", "Fledge in TorchRL"
PRIOR = {"prior design, LZ4-1": 0, "prior design, LZ4-9": 9}
TENSOR, MEMMAP, LISTED = "LazyTensorStorage", "LazyMemmapStorage", "CompressedListStorage"
LIST_ROWS = 2_000  # CompressedListStorage packs row by row; more rows do not make it faster
SLOW_TURNS = 5  # of buffers that take tens of milliseconds a batch


class Contender:
    """A buffer under test: how it samples, gives transitions by number, what it weighs, how fast it was filled."""

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
        """Size and rates; batches of `BATCH` transitions."""
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
    """Episodes with next_X beside X, [T] each: what buffers that know no episodes must store."""
    return [
        {**{k: v[: len(e["reward"])] for k, v in e.items()}, **{f"next_{k}": e[k][1:] for k in obs}} for e in episodes
    ]


def ours(buffer: DictReplayBuffer, episodes: Sequence[Episode]) -> Contender:
    """Fill our buffer, after another one has compiled the kernels."""
    with DictReplayBuffer(buffer.max_size, buffer.schema.names, layout=buffer.layout) as warm:
        warm.add(episodes[0])
        warm.sample(BATCH)
    begun = time.perf_counter()
    for episode in episodes:
        buffer.add(episode)
    rate = len(buffer) / (time.perf_counter() - begun)
    size = buffer.stats()["held_bytes"] / len(buffer)
    return Contender(lambda: buffer.sample(BATCH), buffer.get, size, rate, len(buffer))


def prior(buffer: PriorReplay, episodes: Sequence[Episode]) -> Contender:
    """Fill the prior design's buffer."""
    begun = time.perf_counter()
    for episode in episodes:
        buffer.add(episode)
    total = sum(buffer.lengths)
    rate = total / (time.perf_counter() - begun)
    size = sum(buffer.key_bytes().values()) / total
    return Contender(lambda: buffer.sample(BATCH), buffer.get, size, rate, total, slow=True)


def torchrl(flat: Mapping[str, torch.Tensor], folder: str) -> dict[str, Contender]:
    """Fill TorchRL's storages, and ours behind TorchRL's buffer; nothing where TorchRL is not installed.

    Args:
        folder: Where the memory-mapped storage puts its files.
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
        found[name] = Contender(buffer.sample, get, size, rate, count, slow=name == LISTED)
    return found


def _get_rows(storage: Any, numbers: np.ndarray) -> Any:
    got = storage.get(torch.from_numpy(numbers))
    return torch.stack(got) if isinstance(got, list) else got


def _storage_bytes(storage: Any, rows: TensorDict) -> int:
    """Bytes of the data itself; of lists, without what Python adds per object."""
    if hasattr(storage, "_packed"):
        blobs = [*storage._packed.values(), *(b for part in storage._single.values() for b in part.values())]
        return sum(len(b) for b in blobs) + sum(a.nbytes for o in storage._open.values() for a in o.values())
    if isinstance(storage._storage, list):
        return sum(t.nbytes for item in storage._storage for t in item.values())
    return sum(v.nbytes for v in rows.values())


def check_agreement(
    contenders: Mapping[str, Contender], flat: Mapping[str, torch.Tensor], rng: np.random.Generator
) -> None:
    """FledgeError unless every buffer returns exactly the transitions that went in."""
    for name, contender in contenders.items():
        numbers = rng.integers(0, contender.rows, 64)
        got = contender.get(numbers)
        for key, values in flat.items():
            if not torch.equal(got[key].reshape(values[numbers].shape), values[numbers]):
                raise FledgeError(f"{name} returns other {key!r} than was stored, so there is nothing to time.")


def time_in_turns(contenders: Mapping[str, Contender], batches: int) -> None:
    """Time batches of every buffer, one after the other, five per turn: other work on the machine hits all of them."""
    before = torch.get_num_threads()
    try:
        for contender in contenders.values():
            contender.torch_threads = _faster_threads(contender)
        for turn in range(max(batches // 5, 1)):
            for contender in contenders.values():
                if contender.slow and turn >= SLOW_TURNS:
                    continue
                torch.set_num_threads(contender.torch_threads)
                for _ in range(1 if contender.slow else 5):
                    begun = time.perf_counter()
                    contender.sample()
                    contender.times.append(time.perf_counter() - begun)
    finally:
        torch.set_num_threads(before)


def _faster_threads(contender: Contender) -> int:
    """One torch thread or all of them, whichever samples faster."""
    trials = {}
    for threads in sorted({1, default_threads()}):
        torch.set_num_threads(threads)
        times = []
        for _ in range(1 if contender.slow else 4):
            begun = time.perf_counter()
            contender.sample()
            times.append(time.perf_counter() - begun)
        trials[threads] = min(times)
    return min(trials, key=lambda threads: trials[threads])
