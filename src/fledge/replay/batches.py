"""Assemble batches from stored rows: transitions with next observation and n-step return, and windows of frames.

n-step, for a transition t of an episode of T, with k = min(n_step, T - t) steps:

    reward       r[t] + gamma r[t+1] + ... + gamma^(k-1) r[t+k-1]
    next_X       X[t+k]                                     the final observation if the episode ends at t+k
    terminated, truncated, done     of step t+k-1           bootstrap unless terminated
    discount     gamma^k                                    factor of the value of next_X (only if n_step > 1)

Windows are [B, length, ...], with "mask" false (and zeros) outside of the episode. `ends` selects the windows of an episode
of T transitions:

    "inside"    the T - length + 1 windows inside it (one, padded at its end, if it is shorter).
    "pad"       the T + length - 1 windows that touch it, padded at both ends: every transition is in `length` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from fledge.core.errors import ConfigError
from fledge.replay.episode_store import EpisodeStore
from fledge.replay.schema import COUNT, DONE, MASK, NEXT, KeySpec, Schema, from_words
from fledge.replay.stores.base import Pick
from fledge.replay.stores.packed import PackedStore

Batch = dict[str, torch.Tensor]
Ends = Literal["inside", "pad"]
REWARD = "reward"


def check_n_step(schema: Schema, n_step: int, gamma: float) -> None:
    """Raise ConfigError unless gamma is in [0, 1] and, if n_step > 1, the keys include "reward" and a `next_X`."""
    if not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"gamma is {gamma}, but must lie between 0 and 1.")
    if n_step > 1 and (REWARD not in schema.stored or not schema.nexts):
        raise ConfigError(f"n_step={n_step} needs 'reward' and a next_X key: add them to keys={schema.names}.")


def transitions(data: EpisodeStore, number: np.ndarray, n_step: int, gamma: float) -> Batch:
    """Return the batch of transitions with these numbers, shape [B]; 0 is the oldest transition in the buffer."""
    episode, offset = data.index.get_range_relative_idx(number)
    count = len(number)
    taken = np.minimum(n_step, data.index.values[episode] - offset)  # k
    found: dict[str, torch.Tensor] = {}
    specs, with_final = data.schema.internal(), data.schema.with_final()
    for store in data.stores:
        window = n_step > 1 and any(key in (REWARD, *DONE) for key in store.keys)
        if window:
            rows = offset[:, None] + np.minimum(np.arange(n_step + 1), taken[:, None])
        elif not with_final.isdisjoint(store.keys):
            rows = np.stack([offset, offset + taken], 1)
        else:
            rows = offset[:, None]
        width = rows.shape[1]
        begin = np.arange(count) * width
        now: Any = slice(0, None, width)
        later: Any = begin + taken if window else slice(width - 1, None, width)
        if window or isinstance(store, PackedStore):  # neighbours in time decode together
            pick = store.take(np.repeat(episode, width), rows.reshape(-1), data.workers)
        else:  # all first frames, then all later ones, so that large frames are picked without a copy
            pick = store.take(np.tile(episode, width), rows.T.reshape(-1), data.workers)
            now, later = slice(0, count), slice(count * (width - 1), None)
        for key in store.keys:
            if window and key == REWARD:
                found[key] = _n_step_reward(pick, specs[key], rows.shape, taken, gamma)
            elif window and key in DONE:
                found[key] = from_words(pick(key, begin + taken - 1), specs[key])
            else:
                found[key] = from_words(pick(key, now), specs[key])
            if key in with_final:
                found[NEXT + key] = from_words(pick(key, later), specs[key])
    batch = _named(found, data.schema)
    if n_step > 1:
        batch["discount"] = torch.from_numpy(np.power(gamma, taken.astype(np.float64)).astype(np.float32))
    batch["index"] = torch.from_numpy(number + data.index.evicted_total)
    return batch


def _n_step_reward(pick: Pick, spec: KeySpec, shape: tuple[int, ...], taken: np.ndarray, gamma: float) -> torch.Tensor:
    """Return n-step rewards; summed in NumPy on the calling thread, because torch's threads hang in a forked child."""
    count, width = shape
    tensor = from_words(pick(REWARD, slice(None)), spec)
    if spec.dtype.is_floating_point and spec.dtype not in (torch.float64, torch.float32, torch.float16):
        tensor = tensor.double()  # NumPy lacks bfloat16 and the like
    rewards = tensor.numpy().astype(np.float64).reshape(count, width, -1)
    total = np.zeros((count, rewards.shape[-1]))
    for step in range(width - 1 if gamma > 0 else 1):
        total += np.where((taken > step)[:, None], gamma**step * rewards[:, step], 0.0)
    dtype = spec.dtype if spec.dtype.is_floating_point else torch.float32
    found = torch.from_numpy(total.astype(np.float32 if dtype is torch.float32 else np.float64))
    return found.to(dtype).reshape(count, *spec.shape)


def windows(data: EpisodeStore, episode: np.ndarray, start: np.ndarray, length: int) -> Batch:
    """Return windows of `length` transitions: window i begins at transition start[i] of episode[i].

    A negative start lies before the episode.
    """
    schema, lengths = data.schema, data.index.values[episode]
    count, width = len(episode), length + bool(schema.nexts)
    rows = np.clip(start[:, None] + np.arange(width), 0, lengths[:, None])
    place = start[:, None] + np.arange(length)
    mask = (place >= 0) & (place < lengths[:, None])
    found: dict[str, torch.Tensor] = {}
    specs, with_final = schema.internal(), schema.with_final()
    for store in data.stores:
        pick = store.take(np.repeat(episode, width), rows.reshape(-1), data.workers)
        for key in store.keys:
            frames = pick(key, slice(None)).reshape(count, width, *specs[key].shape)
            found[key] = from_words(_masked(frames[:, :length], mask), specs[key])
            if key in with_final:
                found[NEXT + key] = from_words(_masked(frames[:, 1:], mask), specs[key])
    batch = _named(found, schema)
    batch["mask"] = torch.from_numpy(mask)
    first = data.index.evicted_total + data.index.prefix_sum[episode]
    batch["index"] = torch.from_numpy(first + np.maximum(start, 0))
    return batch


def _masked(words: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return a copy of `words` with zeros where the mask is false."""
    words = words.copy()
    words[~mask] = 0
    return words


def _named(found: dict[str, torch.Tensor], schema: Schema) -> Batch:
    """Return `found` in the order of the schema's keys; ragged keys (of varying length) get masks instead of counts."""
    batch: Batch = {}
    for name in schema.names:
        batch[name] = found[name]
        spec = schema.specs[name.removeprefix(NEXT) if name in schema.nexts else name]
        if spec.ragged:
            counts = found[name + COUNT]
            batch[name + MASK] = torch.from_numpy(np.arange(spec.shape[0]) < counts.numpy()[..., None])
    return batch


def sequence_starts(
    lengths: np.ndarray, length: int, count: int, rng: np.random.Generator, ends: Ends = "inside"
) -> Sequence[np.ndarray]:
    """Sample `count` windows uniformly; return each one's episode and first transition (negative: before the episode)."""
    before = length - 1 if ends == "pad" else 0
    each = np.cumsum(lengths + before if ends == "pad" else np.maximum(lengths - length + 1, 1))
    drawn = rng.integers(0, each[-1], count)
    episode = np.searchsorted(each, drawn, side="right")
    return episode, drawn - np.where(episode > 0, each[np.maximum(episode - 1, 0)], 0) - before
