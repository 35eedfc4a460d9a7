"""DictReplayBuffer: transitions under any keys, compressed in memory, sampled bit for bit as they were added.

    buffer = DictReplayBuffer(1_000_000, ["lidar", "state", "action", "reward", "terminated", "next_lidar", "next_state"])
    buffer.add({"lidar": ..., "state": ..., "action": ..., "reward": ..., "terminated": ...})   # one whole episode
    buffer.add_rollout(rollout)                                                                 # or [T, N] of many envs
    batch = buffer.sample(256)                                                                  # dict of tensors [256, ...]

Contract
    `max_size` counts transitions. Episodes enter and leave whole. `next_X` is derived from X (see `schema`). Added data is
    copied; a batch is new memory that belongs to the caller.
    Every batch also has "index" [B] int64, which identifies a transition permanently (`update_priorities` takes it), and,
    in a prioritised buffer, "weight" [B] float32. Samples depend on the seed and the calls only, not on threads or time.
    Calls from several threads wait for each other. A forked child and a copy (`copy`, `pickle`, spawned processes) are
    independent buffers, which sample differently in another process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch

from fledge.core.errors import ConfigError, InputError, StorageError
from fledge.core.transfer import Fetch, to_device, to_host
from fledge.replay import forks, snapshot
from fledge.replay.batches import Batch, Ends, check_n_step, sequence_starts, transitions, windows
from fledge.replay.checks import Indices, check_rows, device_of, floats, in_memory, integers, named_values, whole
from fledge.replay.episode_store import Episodes, EpisodeStore, uninterrupted
from fledge.replay.index.prefix_sum import PrefixSum
from fledge.replay.index.priorities import Priorities
from fledge.replay.ingest.episodes import episode_names, read_episode
from fledge.replay.ingest.forms import plain_values
from fledge.replay.ingest.rollouts import read_observations, read_rollout, rollout_names
from fledge.replay.schema import KeySpec, Schema
from fledge.replay.stores.plan import Layout, choose_layout
from fledge.replay.workers import Workers


class DictReplayBuffer(EpisodeStore):
    """Replay buffer of dictionaries, compressed.

    Args:
        max_size: Largest number of transitions; the oldest episodes are removed to make room.
        keys: Keys of a batch, optionally with a `KeySpec` each; None takes them from the data added first. `next_X` takes no
            memory if X is a key.
        device: Device of the batches.
        pin_memory: Allowed on a CUDA device only, where batches always go through pinned memory, asynchronously.
        img_compressed: Compress keys with two or more axes (images, grid maps, LiDAR); False stores them raw.
        layout: Unit of compression: each "frame", a "chunk" of time (the default), or a whole "episode".
        compress_epi: True selects layout "episode", False "frame".
        n_step: Number of steps that a sampled transition spans (n-step return).
        gamma: Discount of n-step returns.
        prioritized: Sample in proportion to priority^alpha instead of uniformly.
        alpha: Exponent of priorities.
        beta: Exponent of the importance weights.
        seed: Seed of the samples; None takes a random one.
        decode_threads: Threads that decode, including the caller's; None derives it from the cores.
        cache_bytes: Bytes of decoded chunks to cache for each key that LZ4, Zstd or pcodec compresses. Helps if the
            same frames are sampled repeatedly.
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
            raise ConfigError(f"pin_memory=True needs a CUDA device, but device is {device}.")
        max_size = whole("max_size", max_size, 1, ConfigError)
        layout = choose_layout(layout, compress_epi)
        whole("cache_bytes", cache_bytes, 0, ConfigError)
        whole("n_step", n_step, 1, ConfigError)
        if segment_frames is not None and whole("segment_frames", segment_frames, 1, ConfigError) > max_size:
            raise ConfigError(f"segment_frames is {segment_frames}, but must lie between 1 and max_size ({max_size}).")
        own = {"index", *(["weight"] if prioritized else []), *(["discount"] if n_step > 1 else [])}
        schema = Schema(keys, own)
        if not schema.open:
            check_n_step(schema, n_step, gamma)
        priorities = Priorities(max_size, alpha, beta) if prioritized else None
        workers = Workers(decode_threads)
        super().__init__(max_size, schema, layout, img_compressed, cache_bytes, segment_frames, priorities, workers)
        self.device, self.pin_memory, self.n_step, self.gamma = device, pin_memory, n_step, gamma
        self.rng = np.random.default_rng(None if seed is None else whole("seed", seed, 0, ConfigError))
        self._closed = False
        forks.watch(self)

    @property
    def episode_lens_prefix_sum(self) -> PrefixSum:
        """Index of the episodes: the length and start of each."""
        return self.index

    @property
    def buffer(self) -> dict[str, Episodes]:
        """View of the episodes: `buffer["lidar"][i]` decodes the frames of episode i."""
        return {key: Episodes(self, key) for key in self.schema.stored}

    # ---- adding ------------------------------------------------------------------------------------------------

    def add(self, episode: Mapping[str, Any]) -> None:
        """Add one episode: arrays or tensors [T, ...] per key, or compressed frames or text (see `ingest.forms`)."""
        with self.lock, self._restore_schema_on_error():
            entries = named_values("episode", episode)
            self._settle(episode_names(entries))
            length, words = read_episode(self.schema, plain_values(self.schema, entries))
            with uninterrupted():
                self._insert(length, words)

    def add_rollout(self, rollout: Mapping[str, Any]) -> int:
        """Add [T, N] steps of parallel envs (see `ingest.rollouts`); return the number of episodes completed."""
        with self.lock, self._restore_schema_on_error():
            entries = to_host(named_values("rollout", rollout))
            self._settle(rollout_names(entries))
            steps = list(read_rollout(self.schema, entries))
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
        """Store the episodes that have not ended yet, and return how many were stored.

        Args:
            obs: Next observations [N, ...], if known. Without them, a buffer with `next_X` keys drops the last transition of
                each episode.
        """
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

    def _settle(self, names: list[str]) -> None:
        """Use `names`, the keys of the added data, as the buffer's keys if the constructor got none."""
        if self.schema.open:
            self.schema.settle(names)
            check_n_step(self.schema, self.n_step, self.gamma)

    @contextlib.contextmanager
    def _restore_schema_on_error(self) -> Iterator[None]:
        """If the block raises an error, forget the keys and specs that it took from the added data."""
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

    # ---- sampling ----------------------------------------------------------------------------------------------

    def sample(self, batch_size: int) -> Batch:
        """Sample transitions with replacement: tensors [batch_size, ...] by key."""
        with self.lock, in_memory(f"batch_size={batch_size!r}"):
            self._check_sampling(batch_size)
            if self.priorities is None:
                return self._transitions(self.rng.integers(0, self.index.total, batch_size))
            number, weight = self.priorities.draw(batch_size, self.index.evicted_total, self.rng)
            return self._transitions(number, weight=torch.from_numpy(weight))

    def sample_batch(self, batch_size: int) -> Batch:
        """Same as `sample`."""
        return self.sample(batch_size)

    def sample_sequences(self, batch_size: int, length: int, ends: Ends = "inside") -> Batch:
        """Sample windows, each of `length` consecutive transitions of one episode: tensors [batch_size, length, ...] by key.

        With `ends` "inside", transitions near the ends of an episode are sampled less often; "pad" adds windows that reach
        over the ends, so that all are sampled equally often. "mask" is false outside of the episode. "index" identifies the
        first transition of a window that lies in the episode.
        """
        with self.lock, in_memory(f"batch_size={batch_size!r} and length={length!r}"):
            self._check_sampling(batch_size, length)
            if "mask" in self.schema.names:
                raise InputError("A key is called 'mask', which windows use for padding: rename it.")
            if ends not in get_args(Ends):
                raise InputError(f"ends is {ends!r}, but must be one of {', '.join(get_args(Ends))}.")
            episode, start = sequence_starts(self.index.values, length, batch_size, self.rng, ends)
            return to_device(windows(self, episode, start, length), self.device)

    def get(self, index: Indices) -> Batch:
        """Return the transitions with these "index" values, which must still be in the buffer."""
        with self.lock:
            self._check_sampling(1)
            numbers, begin = integers(index), self.index.evicted_total
            if not len(numbers) or numbers.min() < begin or numbers.max() >= begin + self.index.total:
                given = f"has values from {numbers.min()} to {numbers.max()}" if len(numbers) else "is empty"
                last = begin + self.index.total - 1
                raise InputError(f"index {given}, but the buffer now holds only {begin} to {last}: pass some of these.")
            return self._transitions(numbers - begin)

    def update_priorities(self, index: Indices, priority: np.ndarray | torch.Tensor | Sequence[float]) -> None:
        """Set priorities (0 or more) of transitions by their "index"; indices of transitions that were removed are ignored."""
        with self.lock:
            self._check_alive()
            if self.priorities is None:
                raise InputError("This buffer samples uniformly: make it with prioritized=True to set priorities.")
            if isinstance(index, torch.Tensor) and isinstance(priority, torch.Tensor):
                index, priority = Fetch([index, priority]).get()  # waits once, as the next samples depend on them
            numbers = integers(index)
            values = floats("priority", priority)
            if len(numbers) != len(values):
                raise InputError(f"There are {len(numbers)} indices but {len(values)} priorities: pass one per index.")
            begin = self.index.evicted_total
            kept = (numbers >= begin) & (numbers < begin + self.index.total)
            self.priorities.update(numbers[kept], values[kept])

    def _transitions(self, number: np.ndarray, **more: torch.Tensor) -> Batch:
        return to_device(transitions(self, number, self.n_step, self.gamma) | more, self.device)

    def _check_sampling(self, batch_size: int, length: int = 1) -> None:
        self._check_alive()
        check_rows(whole("batch_size", batch_size, 1) * whole("length", length, 1))
        if not self.index.total:
            raise InputError("The buffer is empty: add an episode before sampling.")

    # ---- state, end --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state for `save_checkpoint`; compressed chunks are shared, not copied."""
        with self.lock:
            self._check_alive()
            return snapshot.save(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from a `state_dict` of a buffer with the same keys. An error leaves the buffer unchanged."""
        with self.lock:
            self._check_alive()
            snapshot.load(self, state)

    def forked(self, number: int) -> None:
        """Seed the sampling of a forked child from the state of `rng` and the child's `number`."""
        self.rng = np.random.default_rng([number, *self.rng.integers(0, 2**32, 4)])

    def __reduce__(self) -> tuple[Any, ...]:
        """Support `copy`, `pickle` and spawned processes: the copy has threads and a lock of its own."""
        with self.lock:
            self._check_alive()
            own = vars(DictReplayBuffer(1))
            extra = {name: value for name, value in vars(self).items() if name not in own}  # of a subclass
            return snapshot.rebuild, (type(self), snapshot.settings(self), snapshot.save(self), os.getpid()), extra

    def close(self) -> None:
        """Stop the decoding threads and free the data."""
        with self.lock:
            self.workers.close()
            self.stores, self.open, self.index = [], None, PrefixSum(self.max_size)
            self._closed = True

    def _check_alive(self) -> None:
        if self._closed:
            raise StorageError("The replay buffer is closed: make a new one.")

    def __enter__(self) -> DictReplayBuffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
