"""EpisodeStore: compressed episodes in memory, with their index and priorities, and the episodes still open.

Contract
    Episodes enter and leave whole. All stores, the index (`PrefixSum`) and the priorities hold the same episodes at any
    time. The store of each key (how it is compressed) is chosen by sizes measured on the first episode, and once more
    after `MEASURE_FRAMES` transitions, because the first episode may not be typical.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError
from fledge.replay.index.prefix_sum import PrefixSum
from fledge.replay.index.priorities import Priorities
from fledge.replay.ingest.open_episodes import OpenEpisodes
from fledge.replay.schema import Schema, Words, from_words
from fledge.replay.stores.base import Store
from fledge.replay.stores.plan import Layout, plan_stores
from fledge.replay.workers import Workers

MEASURE_FRAMES = 512
MEASURE_EPISODES = 8


@dataclass(eq=False, repr=False)
class EpisodeStore:
    """Episodes of a replay buffer; the oldest are removed when there are more than `max_size` transitions."""

    max_size: int
    schema: Schema
    layout: Layout
    img_compressed: bool
    cache_bytes: int
    segment_frames: int | None
    priorities: Priorities | None
    workers: Workers

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.index = PrefixSum(self.max_size)
        self.stores: list[Store] = []
        self.measured = False
        self.open: OpenEpisodes | None = None

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return self.index.total

    @property
    def num_episodes(self) -> int:
        return len(self.index)

    def _open_for(self, num_envs: int) -> OpenEpisodes:
        if self.open is None:
            specs = self.schema.internal()
            self.open = OpenEpisodes(num_envs, specs, self.schema.with_final(), self.segment_frames, self.max_size)
        if self.open.num_envs != num_envs:
            before = self.open.num_envs
            raise InputError(f"The rollout has {num_envs} envs, but the previous one had {before}: call flush() first.")
        return self.open

    def _insert(self, length: int, words: Words) -> None:
        """Add an episode; all steps that can fail come before any change. The caller must delay Ctrl-C (`uninterrupted`)."""
        if length > self.max_size:
            size = f"max_size={self.max_size}"
            raise InputError(f"An episode of {length} transitions is longer than {size}: split it or raise max_size.")
        if not self.stores:
            self.stores = self._plan(words)
        elif not self.measured and self.index.evicted_total + self.index.total >= MEASURE_FRAMES:
            self._measure_again()
        encoded = [store.encode(words) for store in self.stores]
        while self.index.total + length > self.max_size:
            self._evict()
        for store, data in zip(self.stores, encoded, strict=True):
            store.append(data)
        begin = self.index.evicted_total + self.index.total
        self.index.add(length)
        if self.priorities is not None:
            self.priorities.append(np.arange(begin, begin + length))

    def _evict(self) -> None:
        begin = self.index.evicted_total
        length = self.index.evict()
        for store in self.stores:
            store.evict()
        if self.priorities is not None:
            self.priorities.remove(np.arange(begin, begin + length))

    def _plan(self, words: Words) -> list[Store]:
        return plan_stores(self.schema.internal(), words, self.layout, self.img_compressed, self.cache_bytes)

    def _measure_again(self) -> None:
        """Choose the stores again, by measuring a sample of all episodes so far, and move the episodes to them."""
        some = np.unique(np.linspace(0, self.num_episodes - 1, MEASURE_EPISODES).astype(int)).tolist()
        sample = [self.words_of(episode) for episode in some]
        stores = self._plan({key: np.concatenate([words[key] for words in sample]) for key in sample[0]})
        for episode in range(self.num_episodes):
            words = self.words_of(episode)
            for store in stores:
                store.append(store.encode(words))
        self.stores, self.measured = stores, True

    def words_of(self, episode: int, only: str | None = None) -> Words:
        """Return an episode, decoded to words (see `schema`), for all internal keys or only for the key `only`."""
        length, with_final = int(self.index.values[episode]), self.schema.with_final()
        rows = np.arange(length + bool(self.schema.nexts))
        words: Words = {}
        for store in self.stores:
            if keys := [key for key in store.keys if only in (None, key)]:
                pick = store.take(np.full(len(rows), episode), rows, self.workers)
                words |= {key: pick(key, slice(0, length + (key in with_final))) for key in keys}
        return words

    def stats(self) -> dict[str, Any]:
        """Return bytes used, and codec, bytes per frame and compression ratio of each key."""
        with self.lock:
            rows, specs = {}, self.schema.internal() if self.stores else {}
            for store in self.stores:
                for key in store.keys:
                    raw, per_frame = specs[key].frame_bytes, store.bytes_per_frame(key)
                    ratio = raw / max(per_frame, 1e-9)
                    rows[key] = {"codec": store.codec, "bytes_per_frame": per_frame, "raw": raw, "ratio": ratio}
            kept, held = (sum(getattr(s.blobs, name) for s in self.stores) for name in ("nbytes", "held_bytes"))
            counts = {"transitions": len(self), "episodes": self.num_episodes}
            return {**counts, "bytes": kept, "held_bytes": held, "keys": rows}


class Episodes(Sequence[torch.Tensor]):
    """Episodes of one key X, oldest first, decoded on access: each [T, ...], or [T + 1, ...] if `next_X` is a key too."""

    def __init__(self, data: EpisodeStore, key: str) -> None:
        self._data, self._key = data, key

    def __len__(self) -> int:
        return self._data.num_episodes

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[k] for k in range(*number.indices(len(self)))]
        with self._data.lock:
            words = self._data.words_of(range(len(self))[number], self._key)
            return from_words(words[self._key].copy(), self._data.schema.internal()[self._key])


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a SIGINT (Ctrl-C) that arrives during the block until its end. (Only the main thread receives signals.)"""
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)
