"""One episode, checked and brought into the buffer's words.

Contract
    An episode of T transitions is a mapping with each stored key as [T, ...]. A key X whose `next_X` is asked for comes as
        [T + 1, ...]                          the final observation is the last frame
        [T, ...] and final_X [...]            ... comes apart
        [T, ...] and next_X [T, ...]          ... is the last of next_X, whose others must repeat X
    Types and shapes are those of the schema, or what it learns from the first episode. Nothing is kept of what is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError
from fledge.replay.ingest import ragged
from fledge.replay.schema import COUNT, DONE, FINAL, MASK, NEXT, Schema, Words, as_tensor

Frames = tuple[torch.Tensor, np.ndarray | None]  # [rows, ...], and of a ragged key the elements per row


def read_episode(schema: Schema, episode: Mapping[str, Any]) -> tuple[int, Words]:
    """Number of transitions, and words per internal key: T + 1 rows of observations with a next, T of the rest."""
    _check_names(schema, episode)
    values = {name: _read(schema, name, episode) for name in schema.stored}
    length = _length(schema, values, episode)
    values = {name: _complete(schema, name, frames, episode, length) for name, frames in values.items()}
    schema.learn({name: tensor for name, (tensor, _) in values.items()})
    words: Words = {}
    for name, (tensor, counts) in values.items():
        words[name] = schema.check(name, tensor, length + 1 if name in schema.observed else length)
        if counts is not None:
            words[name] = ragged.clear_beyond(words[name], counts, schema.specs[name])
            words[name + COUNT] = ragged.as_words(counts)
    for name in DONE:
        if name in words and words[name].reshape(length, -1)[:-1].any():
            raise InputError(f"{name!r} is set before the last transition: one episode per add(), or add_rollout().")
    return length, words


def episode_names(episode: Mapping[str, Any]) -> list[str]:
    """Keys of a buffer that is made for episodes like this one; a `final_X` asks for `next_X`."""
    given = [str(name) for name in episode.keys()]  # noqa: SIM118 - a TensorDict is no dict
    finals = [n.removeprefix(FINAL) for n in given if n.startswith(FINAL) and n.removeprefix(FINAL) in given]
    names = [n for n in given if n.removeprefix(FINAL) not in finals or not n.startswith(FINAL)]
    return names + [NEXT + n for n in finals if NEXT + n not in names]


def _check_names(schema: Schema, episode: Mapping[str, Any]) -> None:
    given = {str(name) for name in episode.keys()}  # noqa: SIM118 - a TensorDict is no dict
    allowed = {*schema.names, *(before + n for n in schema.observed for before in (FINAL, NEXT))}
    for name in schema.ragged:
        allowed |= {before + name + MASK for before in (("", FINAL, NEXT) if name in schema.observed else ("",))}
    if missing := [n for n in schema.stored if n not in given]:
        raise InputError(f"the episode lacks {missing}; this buffer stores {schema.stored}: add them.")
    if unknown := sorted(given - allowed):
        raise InputError(f"the episode has {unknown}, which this buffer does not store: leave them out.")


def _read(schema: Schema, name: str, episode: Mapping[str, Any], before: str = "") -> Frames:
    """Rows of a key, or of what follows it."""
    value, label = episode[before + name], before + name
    if name not in schema.ragged:
        tensor = as_tensor(value, label)
        if tensor.ndim == 0:
            raise InputError(f"{label!r} is a single number, but its first axis must be time.")
        return tensor, None
    spec, mask = schema.specs[name], episode.get(label + MASK)
    if isinstance(value, list | tuple):
        return ragged.pad(label, value, spec)
    tensor = as_tensor(value, label)
    schema.check(name, tensor)
    if mask is None:
        return tensor, np.full(len(tensor), spec.shape[0])
    return tensor, ragged.count(label, as_tensor(mask, label + MASK), tensor.shape[:1], spec)


def _final(schema: Schema, name: str, episode: Mapping[str, Any], frames: Frames) -> Frames:
    """The final observation of a key that comes apart, as one row."""
    label, value = FINAL + name, episode[FINAL + name]
    if name not in schema.ragged:
        tensor = as_tensor(value, label)
        return tensor if tensor.ndim == frames[0].ndim else tensor[None], None
    spec, mask = schema.specs[name], episode.get(label + MASK)
    if mask is None and name + MASK in episode:
        raise InputError(f"{name + MASK!r} is given, but not {label + MASK!r}: add it.")
    tensor, counts = ragged.pad(label, [value], spec)
    return tensor, counts if mask is None else ragged.count(label, as_tensor(mask, label + MASK)[None], (1,), spec)


def _last_of_next(schema: Schema, name: str, episode: Mapping[str, Any], frames: Frames) -> Frames:
    """The last row of a key's `next_X`, whose others must repeat X."""
    (tensor, counts), (next_tensor, next_counts) = frames, _read(schema, name, episode, NEXT)
    if next_tensor.shape != tensor.shape or next_tensor.dtype != tensor.dtype:
        raise InputError(
            f"{NEXT + name!r} is {tuple(next_tensor.shape)} {next_tensor.dtype}, but must be as {name!r}: "
            f"{tuple(tensor.shape)} {tensor.dtype}."
        )
    same = counts is None or next_counts is None or np.array_equal(next_counts[:-1], counts[1:])
    view = torch.uint8  # compare bits: NaN is equal to itself here
    if not same or not torch.equal(next_tensor[:-1].contiguous().view(view), tensor[1:].contiguous().view(view)):
        raise InputError(f"{NEXT + name!r} does not repeat {name!r} one frame later: store it under another name.")
    return next_tensor[-1:], None if next_counts is None else next_counts[-1:]


def _length(schema: Schema, values: Mapping[str, Frames], episode: Mapping[str, Any]) -> int:
    lengths = {n: len(values[n][0]) for n in schema.steps}
    if not lengths:
        apart = (NEXT, FINAL)
        lengths = {n: len(v) - (not any(p + n in episode for p in apart)) for n, (v, _) in values.items()}
    if len(set(lengths.values())) != 1:
        raise InputError(f"the keys of an episode have different numbers of frames: {lengths}; cut them to one length.")
    length = next(iter(lengths.values()))
    if length < 1:
        raise InputError("the episode is empty: it needs at least one transition.")
    return length


def _complete(schema: Schema, name: str, frames: Frames, episode: Mapping[str, Any], length: int) -> Frames:
    """Observations with their final one."""
    if name not in schema.observed:
        return frames
    tensor, counts = frames
    apart = [before + name for before in (FINAL, NEXT) if before + name in episode]
    if len(tensor) == length + 1:
        if apart:
            raise InputError(f"{name!r} has its final frame ({length + 1} frames) and {apart} too: leave one out.")
        return frames
    if not apart:
        raise InputError(
            f"{name!r} has {len(tensor)} frames for {length} transitions and {NEXT + name!r} is asked for: give "
            f"{length + 1} frames, {FINAL + name!r} or {NEXT + name!r}."
        )
    if len(apart) == 2:
        raise InputError(f"{name!r} comes with {apart}: leave one of them out.")
    last, last_count = (_final if apart == [FINAL + name] else _last_of_next)(schema, name, episode, frames)
    if last.shape != (1, *tensor.shape[1:]) or last.dtype != tensor.dtype:
        raise InputError(
            f"{apart[0]!r} has shape {tuple(last.shape[1:])} and type {last.dtype}, but frames of {name!r} have "
            f"{tuple(tensor.shape[1:])} and {tensor.dtype}."
        )
    both = None if counts is None or last_count is None else np.concatenate([counts, last_count])
    return torch.cat([tensor, last]), both
