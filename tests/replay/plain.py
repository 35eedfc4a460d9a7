"""A replay buffer that is a plain list of episodes: what the compressed one must agree with. And episodes to fill both."""

from __future__ import annotations

import numpy as np
import torch

from fledge.replay import DictReplayBuffer

OBS = ("lidar", "state", "grid")
STEP = ("action", "reward", "terminated", "truncated", "id")
KEYS = [*OBS, *STEP, *(f"next_{name}" for name in OBS)]


def make_episode(seed: int, length: int, end: str = "terminated") -> dict[str, torch.Tensor]:
    """An episode whose every frame names itself: id = 1000 * seed + t, and lidar cells hold it too."""
    rng = np.random.default_rng(seed)
    lidar = np.where(rng.random((length + 1, 6)) < 0.7, 0.0, rng.normal(size=(length + 1, 6))).astype(np.float32)
    lidar[:, 0] = 1000 * seed + np.arange(length + 1)
    state = np.cumsum(rng.normal(size=(length + 1, 3)) * 0.01, 0).astype(np.float32)
    grid = np.repeat(rng.integers(0, 2, (1, 8, 8), dtype=np.uint8), length + 1, 0)
    grid[:, 0, 0] = np.arange(length + 1) % 256
    flags = {name: torch.zeros(length, dtype=torch.bool) for name in ("terminated", "truncated")}
    if end in flags:
        flags[end][-1] = True
    return {
        "lidar": torch.from_numpy(lidar),
        "state": torch.from_numpy(state),
        "grid": torch.from_numpy(grid),
        "action": torch.from_numpy(rng.integers(0, 5, length)),
        "reward": torch.from_numpy(rng.normal(size=length).astype(np.float32)),
        "id": torch.arange(length) + 1000 * seed,
        **flags,
    }


class PlainBuffer:
    """Episodes in a list; the oldest leave when there is no room."""

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self.episodes: list[dict[str, torch.Tensor]] = []

    def add(self, episode: dict[str, torch.Tensor]) -> None:
        self.episodes.append(episode)
        while len(self) > self.max_size:
            self.episodes.pop(0)

    def __len__(self) -> int:
        return sum(len(e["id"]) for e in self.episodes)

    def find(self, identity: int) -> tuple[dict[str, torch.Tensor], int]:
        """The episode and place of the transition with this id."""
        for episode in self.episodes:
            places = (episode["id"] == identity).nonzero()
            if len(places):
                return episode, int(places[0])
        raise AssertionError(f"transition {identity} was sampled, but is not in the buffer")


def assert_bits_equal(one: torch.Tensor, other: torch.Tensor) -> None:
    """Equal in type, shape and every bit."""
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()


def check_batch(batch: dict[str, torch.Tensor], plain: PlainBuffer, n_step: int = 1, gamma: float = 0.99) -> None:
    """Every transition of a batch is exactly what the plain list says."""
    for b in range(len(batch["index"])):
        episode, t = plain.find(int(batch["id"][b]))
        length = len(episode["id"])
        k = min(n_step, length - t)
        for name in OBS:
            assert_bits_equal(batch[name][b], episode[name][t])
            assert_bits_equal(batch[f"next_{name}"][b], episode[name][t + k])
        assert int(batch["action"][b]) == int(episode["action"][t])
        reward = sum(gamma**i * float(episode["reward"][t + i]) for i in range(k))
        assert np.float32(reward) == batch["reward"][b].item()
        for name in ("terminated", "truncated"):
            assert bool(batch[name][b]) == bool(episode[name][t + k - 1])
        if n_step > 1:
            assert batch["discount"][b].item() == np.float32(gamma**k)


def check_index(buffer: DictReplayBuffer, plain: PlainBuffer) -> None:
    """Index, stores and the plain list agree on every episode."""
    lengths = [len(e["id"]) for e in plain.episodes]
    assert len(buffer) == len(plain)
    assert buffer.index.values.tolist() == lengths
    for store in buffer.stores:
        with_final = any(key in buffer.schema.with_final() for key in store.keys)
        assert store.length.view().tolist() == [n + with_final for n in lengths]
        chunks = [-(-n // (store.rows or n)) for n in store.length.view().tolist()]
        assert len(store.blobs) == sum(chunks)


def everything(buffer: DictReplayBuffer) -> dict[str, torch.Tensor]:
    """Every transition in the buffer, in order."""
    begin = buffer.index.evicted_total
    return buffer.get(np.arange(begin, begin + len(buffer)))
