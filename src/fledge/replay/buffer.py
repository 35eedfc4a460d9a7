"""DictReplayBuffer: transitions under any keys, compressed in memory, sampled exactly as they were added.

    buffer = DictReplayBuffer(1_000_000, ["lidar", "state", "action", "reward", "terminated", "next_lidar", "next_state"])
    buffer.add({"lidar": ..., "state": ..., "action": ..., "reward": ..., "terminated": ...})   # one whole episode
    buffer.add_rollout(rollout)                                                                 # or [T, N] of many envs
    batch = buffer.sample(256)                                                                  # dict of tensors [256, ...]

Contract
    `max_size` counts transitions. Episodes enter and leave whole, so the index (`PrefixSum`) and the data always agree.
    `next_X` is derived from X (see `schema`). What is added is copied; a batch is fresh memory of the caller's.
    Every batch also has "index" [B] int64, which names a transition for ever (`update_priorities` takes it) and, if the
    buffer is prioritised, "weight" [B] float32. Draws depend on the seed and the calls only, not on threads or time.
    One call at a time works on the buffer; calls from several threads wait for each other. A forked child, and a copy
    (`copy`, `pickle`, processes that are spawned), is a buffer of its own, and in another process with draws of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, get_args

import numpy as np
import torch

from fledge.core.errors import ConfigError, InputError, StorageError
from fledge.replay import forks, snapshot
from fledge.replay.arguments import choose_layout, device_of, integers, named_values, whole
from fledge.replay.batches import Batch, Ends, check_n_step, sequence_starts, transitions, windows
from fledge.replay.index.prefix_sum import PrefixSum
from fledge.replay.index.priorities import Priorities
from fledge.replay.ingest.episodes import episode_names, read_episode
from fledge.replay.ingest.forms import plain_values
from fledge.replay.ingest.open_episodes import OpenEpisodes
from fledge.replay.ingest.rollouts import read_observations, read_rollout, rollout_names
from fledge.replay.interrupts import uninterrupted
from fledge.replay.schema import KeySpec, Schema, Words
from fledge.replay.stores.base import Store
from fledge.replay.stores.plan import Layout, plan_stores
from fledge.replay.view import EpisodesByKey, figures
from fledge.replay.workers import Workers

MEASURE_FRAMES = 512  # after this many, stores are chosen a second and last time: the first episode may be untypical
MEASURE_EPISODES = 8  # ... on this many episodes


class DictReplayBuffer:
    """Compressed replay of dictionaries.

    Args:
        max_size: The most transitions kept; the oldest episodes leave for new ones.
        keys: Names of what a batch holds, or names with a `KeySpec` each; None takes those of what is added first. `next_X`
            beside X is not stored.
        device: Where batches go.
        pin_memory: Copy them there through pinned memory, without waiting; for a CUDA device.
        img_compressed: Compress keys with two axes or more (images, grid maps, LiDAR); False stores them raw.
        layout: What is compressed together: each "frame", a "chunk" of time (the default), or a whole "episode".
        compress_epi: True is another name of layout "episode", False of "frame".
        n_step: Transitions span this many steps.
        gamma: Discount of n-step returns.
        prioritized: Draw in proportion to priority^alpha instead of uniformly.
        alpha: Exponent of priorities.
        beta: Exponent of the importance weights.
        seed: Decides the draws; None takes another one each time.
        decode_threads: Threads that decode, the caller's included; None goes by the cores.
        cache_bytes: Decoded chunks kept per key that is not packed; pays if the same frames are drawn again soon.
        segment_frames: `add_rollout` cuts open episodes after this many transitions; None waits for their end.
    """

    def __init__(
        self,
        max_size: int,
        keys: Sequence[str] | Mapping[str, KeySpec | None] | None = None,
        device: str | torch.device = "cpu",
        img_compressed: bool = True,
        *,
        layout: Layout | None = None,
        compress_epi: bool | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        prioritized: bool = False,
        alpha: float = 0.6,
        beta: float = 0.4,
        seed: int | None = 0,
        decode_threads: int | None = None,
        cache_bytes: int = 0,
        segment_frames: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        device = device_of(device)
        if pin_memory and device.type != "cuda":
            raise ConfigError(f"pin_memory=True is for a CUDA device, but batches go to {device}: leave it out.")
        max_size = whole("max_size", max_size, 1, ConfigError)
        layout = choose_layout(layout, compress_epi)
        whole("cache_bytes", cache_bytes, 0, ConfigError)
        whole("n_step", n_step, 1, ConfigError)
        if segment_frames is not None and whole("segment_frames", segment_frames, 1, ConfigError) > max_size:
            raise ConfigError(f"segment_frames is {segment_frames}, but must lie between 1 and max_size ({max_size}).")
        own = {"index", *(["weight"] if prioritized else []), *(["discount"] if n_step > 1 else [])}
        self.schema = Schema(keys, own)
        if not self.schema.open:
            check_n_step(self.schema, n_step, gamma)
        self.max_size, self.device, self.layout = max_size, device, layout
        self.img_compressed, self.cache_bytes, self.segment_frames = img_compressed, cache_bytes, segment_frames
        self.n_step, self.gamma, self.pin_memory = n_step, gamma, pin_memory
        self.index = PrefixSum(max_size)
        self.stores: list[Store] = []
        self.measured = False
        self.open: OpenEpisodes | None = None
        self.priorities = Priorities(max_size, alpha, beta) if prioritized else None
        self.rng = np.random.default_rng(None if seed is None else whole("seed", seed, 0, ConfigError))
        self.workers = Workers(decode_threads)
        self.lock = threading.RLock()
        self._closed = False
        forks.watch(self)

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self.index.total

    @property
    def num_episodes(self) -> int:
        return len(self.index)

    @property
    def episode_lens_prefix_sum(self) -> PrefixSum:
        """The index: lengths of the episodes kept, and where each begins."""
        return self.index

    @property
    def buffer(self) -> EpisodesByKey:
        """The episodes kept, to look at: `buffer["lidar"][i]` are the frames of episode i, decoded."""
        return EpisodesByKey(self)

    # ---- adding ------------------------------------------------------------------------------------------------

    def add(self, episode: Mapping[str, Any]) -> None:
        """Store one episode: arrays or tensors [T, ...] per key (see `intake.episodes` for final observations).

        Frames that are compressed already and text are taken too: see `intake.forms`.
        """
        with self.lock, self._learning():
            named_values("episode", episode)
            self._settle(episode_names, episode)
            length, words = read_episode(self.schema, plain_values(self.schema, episode))
            with uninterrupted():
                self._insert(length, words)

    def add_rollout(self, rollout: Mapping[str, Any]) -> int:
        """Take [T, N] steps of parallel envs (see `intake.rollouts`); returns the episodes completed and stored."""
        with self.lock, self._learning():
            named_values("rollout", rollout)
            self._settle(rollout_names, rollout)
            steps = list(read_rollout(self.schema, rollout))
            opened = self._open_for(len(steps[0][1]))
            opened.check_room([done for _, done, _ in steps])
            stored = 0
            with uninterrupted():
                for rows, done, final in steps:
                    for length, words in opened.push(rows, done, final):
                        self._insert(length, words)
                        stored += 1
            return stored

    def flush(self, obs: Mapping[str, Any] | None = None) -> int:
        """Store open episodes as they are; `obs` are the observations [N, ...] that follow, if at hand."""
        with self.lock:
            self._check_alive()
            if self.open is None:
                return 0
            final = read_observations(self.schema, obs) if obs is not None and self.schema.observed else None
            with uninterrupted():
                closed = list(self.open.flush(final))
                for length, words in closed:
                    self._insert(length, words)
            return len(closed)

    def _settle(self, names: Callable[[Mapping[str, Any]], list[str]], data: Mapping[str, Any]) -> None:
        """Take the keys from what is added, if nobody has named them."""
        if self.schema.open:
            self.schema.settle(names(data))
            check_n_step(self.schema, self.n_step, self.gamma)

    @contextlib.contextmanager
    def _learning(self) -> Iterator[None]:
        """What the schema learns from data that is then refused is forgotten."""
        self._check_alive()
        known, nameless = dict(self.schema.specs), self.schema.open
        try:
            yield
        except BaseException:
            if self.open is not None and not self.open.count.any():
                self.open = None
            if not self.stores and self.open is None:
                self.schema.specs = known
                self.schema = Schema(None, self.schema.reserved) if nameless else self.schema
            raise

    def _open_for(self, num_envs: int) -> OpenEpisodes:
        if self.open is None:
            specs = self.schema.internal()
            self.open = OpenEpisodes(num_envs, specs, self.schema.with_final(), self.segment_frames, self.max_size)
        if self.open.num_envs != num_envs:
            raise InputError(
                f"the rollout has {num_envs} envs, but must have the {self.open.num_envs} of those before: flush() first."
            )
        return self.open

    def _insert(self, length: int, words: Words) -> None:
        """What can fail comes first; then the oldest leave, and data and index grow together. Callers keep Ctrl-C off."""
        if length > self.max_size:
            raise InputError(
                f"an episode of {length} transitions does not fit a buffer of {self.max_size}: split it, or raise max_size."
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
        """Choose the stores on some episodes out of all so far, and move all over."""
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
        words: Words = {}
        for store in self.stores:
            rows = np.arange(length + self.schema.extra)
            got = store.take(np.full(len(rows), episode), rows, self.workers)
            for key in store.keys:
                words[key] = got.pick(key, slice(0, length + (key in with_final)))
        return words

    # ---- sampling ----------------------------------------------------------------------------------------------

    def sample(self, batch_size: int) -> Batch:
        """A batch of transitions, drawn with replacement: tensors [batch_size, ...] by key."""
        with self.lock:
            self._check_sampling(batch_size)
            if self.priorities is None:
                number = self.rng.integers(0, self.index.total, batch_size)
                return self._transitions(number)
            number, weight = self.priorities.draw(batch_size, self.index.evicted_total, self.index.total, self.rng)
            batch = self._transitions(number)
            batch["weight"] = torch.from_numpy(weight).to(self.device)
            return batch

    def sample_batch(self, batch_size: int) -> Batch:
        """Another name of `sample`."""
        return self.sample(batch_size)

    def sample_sequences(self, batch_size: int, length: int, ends: Ends = "inside") -> Batch:
        """Windows of consecutive transitions of one episode each, [batch_size, length, ...], with "mask".

        Args:
            ends: "inside" draws windows that lie inside an episode, whose ends are then in fewer of them; "pad" also those
                that reach over its ends, with "mask" false there, so that every transition is drawn equally often.

        "index" [batch_size] names the first transition of each window that is in the episode.
        """
        with self.lock:
            self._check_sampling(batch_size)
            length = whole("length", length, 1)
            if "mask" in self.schema.names:
                raise InputError("A stored key is called mask, which windows use for something else: rename it.")
            if ends not in get_args(Ends):
                raise InputError(f"ends is {ends!r}, but must be one of {', '.join(get_args(Ends))}.")
            values = self.index.values
            episode, start = sequence_starts(values, length, batch_size, self.rng, ends)
            batch = windows(self.stores, self.schema, episode, start, values[episode], length, self.workers)
            first = self.index.evicted_total + self.index.starts()[episode] + np.maximum(start, 0)
            batch["index"] = torch.from_numpy(first)
            return self._on_device(batch)

    def get(self, index: np.ndarray | torch.Tensor | Sequence[int]) -> Batch:
        """The transitions with these "index" values, which must still be kept."""
        with self.lock:
            self._check_sampling(1)
            numbers, begin = integers(index), self.index.evicted_total
            if not len(numbers) or numbers.min() < begin or numbers.max() >= begin + self.index.total:
                asked = f"{numbers.min()} to {numbers.max()} were" if len(numbers) else "none was"
                raise InputError(
                    f"of the indices, {asked} asked for; {begin} to {begin + self.index.total - 1} are kept."
                )
            return self._transitions(numbers - begin)

    def update_priorities(
        self, index: np.ndarray | torch.Tensor | Sequence[int], priority: np.ndarray | torch.Tensor | Sequence[float]
    ) -> None:
        """Set priorities (0 or more) of transitions by their "index"; those evicted meanwhile are passed over."""
        with self.lock:
            self._check_alive()
            if self.priorities is None:
                raise InputError("this buffer draws uniformly: make it with prioritized=True to set priorities.")
            numbers = integers(index)
            values = torch.as_tensor(priority).detach().to("cpu", torch.float64).reshape(-1).numpy()
            if len(numbers) != len(values):
                raise InputError(f"{len(numbers)} indices came with {len(values)} priorities: give one for each.")
            begin = self.index.evicted_total
            kept = (numbers >= begin) & (numbers < begin + self.index.total)
            self.priorities.update(numbers[kept], values[kept])

    def _transitions(self, number: np.ndarray) -> Batch:
        episode, offset = self.index.get_range_relative_idx(number)
        lengths = self.index.values[episode]
        args = (episode, offset, lengths, self.n_step, self.gamma, self.workers)
        batch = transitions(self.stores, self.schema, *args)
        batch["index"] = torch.from_numpy(number + self.index.evicted_total)
        return self._on_device(batch)

    def _on_device(self, batch: Batch) -> Batch:
        if self.device.type == "cpu":
            return batch
        if self.pin_memory:
            return {k: v.pin_memory().to(self.device, non_blocking=True) for k, v in batch.items()}
        return {k: v.to(self.device) for k, v in batch.items()}

    def _check_sampling(self, batch_size: int) -> None:
        self._check_alive()
        whole("batch_size", batch_size, 1)
        if not self.index.total:
            raise InputError("the buffer is empty: add an episode before sampling.")

    # ---- figures, state, end -----------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Bytes kept, and per key its codec, bytes per frame, and ratio to raw."""
        with self.lock:
            return figures(self)

    def state_dict(self) -> dict[str, Any]:
        """Everything, for `save_checkpoint`: compressed chunks as they are (shared, not copied), index, draws."""
        with self.lock:
            self._check_alive()
            return snapshot.save(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from a `state_dict` of a buffer with the same keys. On an error nothing has changed."""
        with self.lock:
            self._check_alive()
            snapshot.load(self, state)

    def forked(self, number: int) -> None:
        """In a forked child: the draws are its own (see `forks`)."""
        self.rng = forks.other_draws(self.rng, number)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy by `copy`, `pickle` or a spawned process: whole, with threads and a lock of its own."""
        with self.lock:
            self._check_alive()
            own = vars(DictReplayBuffer(1))
            extra = {name: value for name, value in vars(self).items() if name not in own}  # of a subclass
            return rebuild, (type(self), snapshot.settings(self), snapshot.save(self), os.getpid()), extra

    def close(self) -> None:
        """End the decoding threads and let go of the data."""
        with self.lock:
            self.workers.close()
            self.stores, self.open, self.index = [], None, PrefixSum(self.max_size)
            self._closed = True

    def _check_alive(self) -> None:
        if self._closed:
            raise StorageError("the replay buffer is closed: make a new one.")

    def __enter__(self) -> DictReplayBuffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rebuild(
    kind: type[DictReplayBuffer], settings: dict[str, Any], state: dict[str, Any], process: int
) -> DictReplayBuffer:
    """A buffer from what `__reduce__` took apart; in a worker process it draws otherwise than its siblings."""
    buffer = kind.__new__(kind)
    DictReplayBuffer.__init__(buffer, **settings)
    snapshot.load(buffer, state)
    name = multiprocessing.current_process().name
    if process != os.getpid() and name != "MainProcess":
        buffer.forked(zlib.crc32(name.encode()))
    return buffer
