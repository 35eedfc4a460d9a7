"""A replay buffer of LZ4-compressed episodes, as NavRL's add-on has it.

Every key of an episode (next observations included) is one LZ4 frame. A batch makes a new thread pool, and each sample
decodes its whole episode, key by key, to read one frame of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import lz4.frame
import numpy as np
import torch


class LZ4Replay:
    """Episodes in a list, compressed with LZ4.

    Args:
        threads: Number of threads in the pool that each batch makes.
        seed: Random seed of the samples.
        level: LZ4 compression level, 0 to 12.
    """

    def __init__(self, threads: int, seed: int = 0, level: int = 0) -> None:
        self.threads, self.level, self.rng = threads, level, np.random.default_rng(seed)
        self.episodes: list[dict[str, bytes]] = []
        self.lengths: list[int] = []
        self.specs: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}

    def add(self, episode: Mapping[str, np.ndarray]) -> None:
        """Store one episode, [T, ...] per key."""
        self.specs = {k: (v.dtype, v.shape[1:]) for k, v in episode.items()}
        arrays = {k: np.ascontiguousarray(v).data for k, v in episode.items()}
        self.episodes.append({k: lz4.frame.compress(v, compression_level=self.level) for k, v in arrays.items()})
        self.lengths.append(len(next(iter(episode.values()))))

    def key_bytes(self) -> dict[str, int]:
        """Return the compressed size per key."""
        return {k: sum(len(episode[k]) for episode in self.episodes) for k in self.specs}

    def sample(self, batch_size: int) -> dict[str, torch.Tensor]:
        """Return transitions drawn uniformly."""
        return self.get(self.rng.integers(0, sum(self.lengths), batch_size))

    def get(self, numbers: np.ndarray) -> dict[str, torch.Tensor]:
        """Return transitions by number."""
        edges = np.cumsum(self.lengths)
        found = np.searchsorted(edges, numbers, side="right")
        places = numbers - (edges - np.array(self.lengths))[found]
        with ThreadPoolExecutor(self.threads) as pool:
            rows = list(pool.map(self._read, found.tolist(), places.tolist()))
        return {k: torch.from_numpy(np.stack([row[k] for row in rows])) for k in self.specs}

    def _read(self, episode: int, place: int) -> dict[str, np.ndarray]:
        row = {}
        for key, (dtype, shape) in self.specs.items():
            data = lz4.frame.decompress(self.episodes[episode][key])
            row[key] = np.frombuffer(data, dtype).reshape(self.lengths[episode], *shape)[place].copy()
        return row
