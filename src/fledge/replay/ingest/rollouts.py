"""Rollouts of parallel envs, [T, N] time-major, read step by step into the buffer's words.

Contract
    A rollout is a mapping (TensorDict, dict) with each stored key as [T, N, ...], on top or under "obs"; flags
    "terminated" and "truncated" (or "done") [T, N]; and, where an episode ended, its final observation under "final_obs"
    (or as "final_X"), [T, N, ...], whose other rows are not read. What the buffer does not store is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError
from fledge.replay.ingest import ragged
from fledge.replay.schema import COUNT, DONE, FINAL, MASK, NEXT, Schema, Words, as_tensor


def read_rollout(schema: Schema, rollout: Mapping[str, Any]) -> Iterator[tuple[Words, np.ndarray, Words | None]]:
    """For each step: words per internal key [N, ...], which envs ended [N], and final observations, if there are any."""
    frames = {name: _find(rollout, name, "obs") for name in schema.stored}
    if missing := [name for name, value in frames.items() if value is None]:
        raise InputError(f"the rollout lacks {missing}; this buffer stores {schema.stored}: add them.")
    done = _done(rollout)
    shape = done.shape
    masks = {name: _find(rollout, name + MASK, "obs") for name in schema.ragged}
    words = _words(schema, {k: v for k, v in frames.items() if v is not None}, masks, shape, "")
    finals = {name: _find(rollout, name, "final_obs", FINAL) for name in schema.observed}
    given = {k: v for k, v in finals.items() if v is not None}
    final = None
    if given and len(given) == len(finals):
        final_masks = {name: _find(rollout, name + MASK, "final_obs", FINAL) for name in schema.ragged}
        for name in schema.observed.intersection(schema.ragged):
            if masks[name] is not None and final_masks[name] is None:
                raise InputError(f"{name + MASK!r} is given, but not {FINAL + name + MASK!r}: add it.")
        final = _words(schema, given, final_masks, shape, FINAL)
    if schema.observed and final is None and done.any():
        raise InputError("an episode ended, but the rollout has no 'final_obs' to end it with: add it.")
    for t in range(shape[0]):
        yield (
            {k: v[t] for k, v in words.items()},
            done[t],
            None if final is None else {k: v[t] for k, v in final.items()},
        )


def rollout_names(rollout: Mapping[str, Any]) -> list[str]:
    """Keys of a buffer that is made for rollouts like this one: observations, actions, rewards and ends.

    A rollout without "obs" is taken whole. Where there is "final_obs", what follows an observation is asked for too.
    """
    given = [str(name) for name in rollout.keys()]  # noqa: SIM118 - a TensorDict is no dict
    if "obs" not in given:
        return [name for name in given if name != "final_obs"]
    seen = [str(name) for name in rollout["obs"].keys()]  # noqa: SIM118
    names = [*seen, *(name for name in ("action", "reward", *DONE) if name in given)]
    return names + ([NEXT + name for name in seen] if "final_obs" in given else [])


def read_observations(schema: Schema, obs: Mapping[str, Any]) -> Words:
    """Words of one observation of all envs, [N, ...], for the keys that have a next one."""
    frames = {name: _find(obs, name, "obs") for name in schema.observed}
    if missing := [name for name, value in frames.items() if value is None]:
        raise InputError(f"the observations lack {missing}: give them, or nothing at all.")
    tensors = {k: v[None] for k, v in frames.items() if v is not None}
    masks = {name: _find(obs, name + MASK, "obs") for name in schema.ragged}
    shape = tuple(next(iter(tensors.values())).shape[:2])
    words = _words(schema, tensors, {k: None if v is None else v[None] for k, v in masks.items()}, shape, "")
    return {k: v[0] for k, v in words.items()}


def _done(rollout: Mapping[str, Any]) -> np.ndarray:
    flags = [as_tensor(rollout[name], name) for name in DONE if name in rollout.keys()]  # noqa: SIM118 - a TensorDict
    if not flags:
        raise InputError(
            "the rollout has none of 'terminated', 'truncated', 'done': add one, or episodes cannot be told apart."
        )
    shape = flags[0].shape[:2]
    if len(shape) != 2 or shape[0] < 1:
        raise InputError(f"the rollout's flags have shape {tuple(flags[0].shape)}, but must be [T, N].")
    if any(flag.numel() != shape.numel() for flag in flags):
        raise InputError(
            f"the rollout's flags have shapes {[tuple(flag.shape) for flag in flags]}, but must all be [T, N]."
        )
    return np.logical_or.reduce([flag.reshape(*shape).bool().numpy() for flag in flags])


def _find(rollout: Mapping[str, Any], name: str, nest: str, prefix: str = "") -> torch.Tensor | None:
    names = rollout.keys()
    # an observation may be called "obs" itself: the nest of that name is no tensor
    if prefix + name in names and not hasattr(rollout[prefix + name], "keys"):
        return as_tensor(rollout[prefix + name], prefix + name)
    if nest in names and name in rollout[nest].keys():  # noqa: SIM118 - a TensorDict is no dict
        return as_tensor(rollout[nest][name], f"{nest}.{name}")
    return None


def _words(
    schema: Schema,
    frames: Mapping[str, torch.Tensor],
    masks: Mapping[str, torch.Tensor | None],
    shape: tuple[int, ...],
    prefix: str,
) -> Words:
    """Words per internal key [T, N, ...] of tensors [T, N, ...]."""
    for name, tensor in frames.items():
        expected = (*shape[:2], *(schema.specs[name].shape if name in schema.specs else tensor.shape[2:]))
        if tuple(tensor.shape) != expected:
            raise InputError(f"{prefix + name!r} has shape {tuple(tensor.shape)}, but this rollout needs {expected}.")
    schema.learn({k: v.flatten(0, 1) for k, v in frames.items()})
    words: Words = {}
    for name, tensor in frames.items():
        spec = schema.specs[name]
        words[name] = schema.check(name, tensor.flatten(0, 1)).reshape(*shape[:2], *spec.shape)
        if spec.ragged:
            counts, mask = np.full(shape[:2], spec.shape[0]), masks[name]
            if mask is not None:
                counts = ragged.count(prefix + name, mask, shape[:2], spec)
            words[name] = ragged.clear_beyond(words[name], counts, spec)
            words[name + COUNT] = ragged.as_words(counts)
    return words
