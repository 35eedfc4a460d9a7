"""Batches from rows: transitions with their next observation and n-step return, and windows of consecutive frames.

n-step, for a transition t of an episode of T, with k = min(n_step, T - t) steps really taken:

    reward       r[t] + gamma r[t+1] + ... + gamma^(k-1) r[t+k-1]
    next_X       X[t+k]                              the final observation, if the episode ended on the way
    terminated   terminated[t+k-1], and truncated, done    of the last step taken: bootstrap unless terminated
    discount     gamma^k                             what the value of next_X is multiplied with

With n_step = 1 these are the transition itself, and discount is gamma.

Contract
    `transitions` and `windows` return fresh tensors on the CPU. Windows are [B, length, ...], with "mask" false (and
    zeros) outside of the episode. Which windows there are of an episode of T transitions is `ends`:

        "inside"    the T - length + 1 that lie inside it (of a shorter episode one, padded at its end). Transition t is in
                    min(t + 1, T - t, length, T - length + 1) of them, so the first and last are drawn up to `length`
                    times less often than those in the middle.
        "pad"       the T + length - 1 that touch it, padded at both ends: every transition is in exactly `length` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from fledge.core.errors import ConfigError
from fledge.replay.arguments import whole
from fledge.replay.schema import COUNT, DONE, MASK, NEXT, KeySpec, Schema, from_words
from fledge.replay.stores.base import Rows, Store
from fledge.replay.stores.packed import PackedStore
from fledge.replay.workers import Workers

Batch = dict[str, torch.Tensor]
Ends = Literal["inside", "pad"]
REWARD = "reward"


def check_n_step(schema: Schema, n_step: int, gamma: float) -> None:
    """ConfigError unless n-step returns can be formed from the keys."""
    whole("n_step", n_step, 1, ConfigError)
    if not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"gamma is {gamma}, but must lie between 0 and 1.")
    if n_step > 1 and (REWARD not in schema.stored or not schema.nexts):
        raise ConfigError(f"n_step is {n_step}, which needs 'reward' and a next_ key among the keys: {schema.names}.")


def transitions(
    stores: Iterable[Store],
    schema: Schema,
    episode: np.ndarray,
    offset: np.ndarray,
    lengths: np.ndarray,
    n_step: int,
    gamma: float,
    workers: Workers,
) -> Batch:
    """Transitions at `offset` of each `episode` [B], whose episodes have `lengths` [B] transitions."""
    count = len(episode)
    taken = np.minimum(n_step, lengths - offset)  # k
    found: dict[str, torch.Tensor] = {}
    specs, with_final = schema.internal(), schema.with_final()
    for store in stores:
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
            got: Rows = store.take(np.repeat(episode, width), rows.reshape(-1), workers)
        else:  # all first frames, then all later ones: large frames are then picked without a copy
            got = store.take(np.tile(episode, width), rows.T.reshape(-1), workers)
            now, later = slice(0, count), slice(count * (width - 1), None)
        for key in store.keys:
            if window and key == REWARD:
                found[key] = _n_step_reward(got, specs[key], rows.shape, taken, gamma)
            elif window and key in DONE:
                found[key] = from_words(got.pick(key, begin + taken - 1), specs[key])
            else:
                found[key] = from_words(got.pick(key, now), specs[key])
            if key in with_final:
                found[NEXT + key] = from_words(got.pick(key, later), specs[key])
    batch = _named(found, schema)
    if n_step > 1:
        batch["discount"] = torch.from_numpy(np.power(gamma, taken.astype(np.float64)).astype(np.float32))
    return batch


def _n_step_reward(got: Rows, spec: KeySpec, shape: tuple[int, ...], taken: np.ndarray, gamma: float) -> torch.Tensor:
    """Sums in NumPy, on the calling thread: torch's own threads hang in a forked child."""
    count, width = shape
    rewards = _doubles(got.pick(REWARD, slice(None)), spec).reshape(count, width, -1)
    total = np.zeros((count, rewards.shape[-1]))
    for step in range(width - 1 if gamma > 0 else 1):
        total += np.where((taken > step)[:, None], gamma**step * rewards[:, step], 0.0)
    dtype = spec.dtype if spec.dtype.is_floating_point else torch.float32
    found = torch.from_numpy(total.astype(np.float32 if dtype is torch.float32 else np.float64))
    return found.to(dtype).reshape(count, *spec.shape)


def _doubles(words: np.ndarray, spec: KeySpec) -> np.ndarray:
    """Words of any real dtype as float64."""
    tensor = from_words(words, spec)
    known = not spec.dtype.is_floating_point or spec.dtype in (torch.float64, torch.float32, torch.float16)
    return tensor.numpy().astype(np.float64) if known else tensor.double().numpy()


def windows(
    stores: Iterable[Store],
    schema: Schema,
    episode: np.ndarray,
    start: np.ndarray,
    lengths: np.ndarray,
    length: int,
    workers: Workers,
) -> Batch:
    """Windows of `length` transitions from `start` of each `episode` [B]."""
    count, width = len(episode), length + schema.extra
    rows = np.clip(start[:, None] + np.arange(width), 0, lengths[:, None])
    place = start[:, None] + np.arange(length)
    mask = (place >= 0) & (place < lengths[:, None])
    found: dict[str, torch.Tensor] = {}
    specs, with_final = schema.internal(), schema.with_final()
    for store in stores:
        got = store.take(np.repeat(episode, width), rows.reshape(-1), workers)
        for key in store.keys:
            frames = got.pick(key, slice(None)).reshape(count, width, *specs[key].shape)
            found[key] = from_words(_masked(frames[:, :length], mask), specs[key])
            if key in with_final:
                found[NEXT + key] = from_words(_masked(frames[:, 1:], mask), specs[key])
    batch = _named(found, schema)
    batch["mask"] = torch.from_numpy(mask)
    return batch


def _masked(words: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """A copy, with zeros where the mask is false."""
    words = words.copy()
    words[~mask] = 0
    return words


def _named(found: dict[str, torch.Tensor], schema: Schema) -> Batch:
    """What was asked for, in that order, with masks of ragged keys instead of counts."""
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
    """Episodes and first frames (below 0 before the episode) of `count` windows, each that there is equally likely."""
    before = length - 1 if ends == "pad" else 0
    each = np.cumsum(lengths + before if ends == "pad" else np.maximum(lengths - length + 1, 1))
    drawn = rng.integers(0, each[-1], count)
    episode = np.searchsorted(each, drawn, side="right")
    return episode, drawn - np.where(episode > 0, each[np.maximum(episode - 1, 0)], 0) - before
