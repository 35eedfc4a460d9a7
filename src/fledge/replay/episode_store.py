"""EpisodeStore: compressed episodes in memory, with their index and priorities, and the episodes still open.

Contract
    Episodes enter and leave whole. All stores, the index (`PrefixSum`) and the priorities hold the same episodes at any
    time. Stores are chosen by size on the first episode, and a second and last time after `MEASURE_FRAMES` transitions,
    because the first episode may not be typical.
"""

from __future__ import annotations

import numpy as np

from fledge.core.errors import InputError
from fledge.replay.index.prefix_sum import PrefixSum
from fledge.replay.index.priorities import Priorities
from fledge.replay.ingest.open_episodes import OpenEpisodes
from fledge.replay.schema import Schema, Words
from fledge.replay.stores.base import Store
from fledge.replay.stores.plan import Layout, plan_stores
from fledge.replay.workers import Workers

MEASURE_FRAMES = 512
MEASURE_EPISODES = 8


class EpisodeStore:
    """Episodes of a replay buffer; the oldest leave when `max_size` transitions are reached."""

    def __init__(
        self,
        max_size: int,
        schema: Schema,
        layout: Layout,
        img_compressed: bool,
        cache_bytes: int,
        segment_frames: int | None,
        priorities: Priorities | None,
        workers: Workers,
    ) -> None:
        self.max_size, self.schema, self.layout = max_size, schema, layout
        self.img_compressed, self.cache_bytes, self.segment_frames = img_compressed, cache_bytes, segment_frames
        self.priorities, self.workers = priorities, workers
        self.index = PrefixSum(max_size)
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
            raise InputError(f"The rollout has {num_envs} envs, but the one before had {before}: call flush() first.")
        return self.open

    def _insert(self, length: int, words: Words) -> None:
        """Add an episode. Steps that can fail come first; the caller delays Ctrl-C."""
        if length > self.max_size:
            raise InputError(
                f"An episode of {length} transitions does not fit max_size={self.max_size}: split it or raise max_size."
            )
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
        """Choose the stores on a sample of all episodes so far, and move the episodes to them."""
        some = np.unique(np.linspace(0, self.num_episodes - 1, MEASURE_EPISODES).astype(int)).tolist()
        sample = [self._words_of(episode) for episode in some]
        stores = self._plan({key: np.concatenate([words[key] for words in sample]) for key in sample[0]})
        for episode in range(self.num_episodes):
            words = self._words_of(episode)
            for store in stores:
                store.append(store.encode(words))
        self.stores, self.measured = stores, True

    def _words_of(self, episode: int) -> Words:
        length, with_final = int(self.index.values[episode]), self.schema.with_final()
        rows = np.arange(length + self.schema.extra)
        words: Words = {}
        for store in self.stores:
            pick = store.take(np.full(len(rows), episode), rows, self.workers)
            for key in store.keys:
                words[key] = pick(key, slice(0, length + (key in with_final)))
        return words
