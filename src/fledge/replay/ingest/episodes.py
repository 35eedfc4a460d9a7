"""Validate one episode and convert it to words (unsigned integers, see `schema`).

An episode of T transitions is a mapping with each stored key as [T, ...]. A key X with a `next_X` comes in one of these forms:

    [T + 1, ...]                          the last frame is the final observation
    [T, ...] and final_X [...]            final_X is the final observation
    [T, ...] and next_X [T, ...]          next_X must repeat X one frame later; its last frame is the final observation

Types and shapes are those of the schema, or are learned from the first episode. The passed data is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError
from fledge.replay.schema import (
    DONE,
    FINAL,
    MASK,
    NEXT,
    Schema,
    Words,
    as_tensor,
    pad_ragged,
    ragged_counts,
    set_ragged_counts,
)

Frames = tuple[torch.Tensor, np.ndarray | None]  # [rows, ...], and of a ragged key the elements per row


def read_episode(schema: Schema, episode: Mapping[str, Any]) -> tuple[int, Words]:
    """Return the number T of transitions, and the words of each internal key: T rows, or T + 1 if it has a `next_X`."""
    _check_names(schema, episode)
    values = {name: _read(schema, name, episode) for name in schema.stored}
    length = _length(schema, values, episode)
    values = {name: _complete(schema, name, frames, episode, length) for name, frames in values.items()}
    schema.learn({name: tensor for name, (tensor, _) in values.items()})
    words: Words = {}
    for name, (tensor, counts) in values.items():
        words[name] = schema.check(name, tensor, length + 1 if name in schema.observed else length)
        if counts is not None:
            set_ragged_counts(words, name, counts, schema.specs[name])
    for name in DONE:
        if name in words and words[name].reshape(length, -1)[:-1].any():
            raise InputError(
                f"{name!r} is true before the last transition: pass one episode at a time, or use add_rollout()."
            )
    return length, words


def episode_names(episode: Mapping[str, Any]) -> list[str]:
    """Return the keys of a buffer that can store this episode; an entry `final_X` adds the key `next_X`."""
    finals = [n for n in episode if FINAL + n in episode]
    names = [n for n in episode if n not in {FINAL + final for final in finals}]
    return names + [NEXT + n for n in finals if NEXT + n not in names]


def _check_names(schema: Schema, episode: Mapping[str, Any]) -> None:
    allowed = {*schema.names, *(before + n for n in schema.observed for before in (FINAL, NEXT))}
    for name in schema.ragged:
        allowed |= {before + name + MASK for before in (("", FINAL, NEXT) if name in schema.observed else ("",))}
    if missing := [n for n in schema.stored if n not in episode]:
        raise InputError(f"The episode lacks {missing}: add them, this buffer stores {schema.stored}.")
    if unknown := sorted(set(episode) - allowed):
        raise InputError(f"The episode has {unknown}, which this buffer does not store: leave them out.")


def _read(schema: Schema, name: str, episode: Mapping[str, Any], prefix: str = "") -> Frames:
    """Return the rows of the entry `name`, or of its `next_X` if `prefix` is "next_"."""
    value, label = episode[prefix + name], prefix + name
    if name not in schema.ragged:
        tensor = as_tensor(value, label)
        if tensor.ndim == 0:
            raise InputError(f"{label!r} is a single number, but its first axis must be time.")
        return tensor, None
    spec, mask = schema.specs[name], episode.get(label + MASK)
    if isinstance(value, list | tuple):
        return pad_ragged(label, value, spec)
    tensor = as_tensor(value, label)
    schema.check(name, tensor)
    if mask is None:
        return tensor, np.full(len(tensor), spec.shape[0])
    return tensor, ragged_counts(label, as_tensor(mask, label + MASK), tensor.shape[:1], spec)


def _final(schema: Schema, name: str, episode: Mapping[str, Any], frames: Frames) -> Frames:
    """Return the entry `final_X` of a key as one row, [1, ...]."""
    label, value = FINAL + name, episode[FINAL + name]
    if name not in schema.ragged:
        tensor = as_tensor(value, label)
        return tensor if tensor.ndim == frames[0].ndim else tensor[None], None
    spec, mask = schema.specs[name], episode.get(label + MASK)
    if mask is None and name + MASK in episode:
        raise InputError(f"The episode has {name + MASK!r}, but lacks {label + MASK!r}: add it.")
    tensor, counts = pad_ragged(label, [value], spec)
    return tensor, counts if mask is None else ragged_counts(label, as_tensor(mask, label + MASK)[None], (1,), spec)


def _last_of_next(schema: Schema, name: str, episode: Mapping[str, Any], frames: Frames) -> Frames:
    """Return the last row of a key's `next_X`; raise InputError unless its other rows repeat X one frame later."""
    (tensor, counts), (next_tensor, next_counts) = frames, _read(schema, name, episode, NEXT)
    if next_tensor.shape != tensor.shape or next_tensor.dtype != tensor.dtype:
        got, expected = (f"{tuple(x.shape)} {x.dtype}" for x in (next_tensor, tensor))
        raise InputError(f"{NEXT + name!r} is {got}, but must be {expected}, like {name!r}.")
    same = counts is None or next_counts is None or np.array_equal(next_counts[:-1], counts[1:])
    view = torch.uint8  # compare bits, because NaN != NaN
    if not same or not torch.equal(next_tensor[:-1].contiguous().view(view), tensor[1:].contiguous().view(view)):
        raise InputError(
            f"{NEXT + name!r} must hold {name!r} of the next frame, but differs: correct it, or rename {NEXT + name!r}."
        )
    return next_tensor[-1:], None if next_counts is None else next_counts[-1:]


def _length(schema: Schema, values: Mapping[str, Frames], episode: Mapping[str, Any]) -> int:
    lengths = {n: len(values[n][0]) for n in schema.steps}
    if not lengths:
        apart = (NEXT, FINAL)
        lengths = {n: len(v) - (not any(p + n in episode for p in apart)) for n, (v, _) in values.items()}
    if len(set(lengths.values())) != 1:
        raise InputError(
            f"The keys of an episode have different numbers of frames: {lengths}. Pass one frame per transition."
        )
    length = next(iter(lengths.values()))
    if length < 1:
        raise InputError("The episode is empty, but must have at least one transition.")
    return length


def _complete(schema: Schema, name: str, frames: Frames, episode: Mapping[str, Any], length: int) -> Frames:
    """Return the rows of a key, with its final observation if it has a `next_X`."""
    if name not in schema.observed:
        return frames
    tensor, counts = frames
    apart = [before + name for before in (FINAL, NEXT) if before + name in episode]
    if len(tensor) == length + 1:
        if apart:
            raise InputError(f"{name!r} already has the final frame ({length + 1} frames): leave {apart} out.")
        return frames
    if not apart:
        needed = f"{length + 1} frames, {FINAL + name!r} or {NEXT + name!r}"
        raise InputError(f"{name!r} has {len(tensor)} frames for {length} transitions: pass {needed}.")
    if len(apart) == 2:
        raise InputError(f"The episode has both of {apart}: leave one out.")
    last, last_count = (_final if apart == [FINAL + name] else _last_of_next)(schema, name, episode, frames)
    if last.shape != (1, *tensor.shape[1:]) or last.dtype != tensor.dtype:
        got, expected = (f"{tuple(x.shape[1:])} {x.dtype}" for x in (last, tensor))
        raise InputError(f"{apart[0]!r} is {got}, but must be {expected}, like the frames of {name!r}.")
    both = None if counts is None or last_count is None else np.concatenate([counts, last_count])
    return torch.cat([tensor, last]), both
