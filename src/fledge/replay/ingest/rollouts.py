"""Read rollouts of parallel envs, [T, N] time-major, step by step into the buffer's words.

A rollout is a mapping (TensorDict, dict) with each stored key as [T, N, ...], at the top or under "obs"; flags "terminated"
and "truncated" (or "done") [T, N]; and final observations under "final_obs" (or as "final_X"), [T, N, ...], which are read
only where an episode ended. Entries that the buffer does not store are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError
from fledge.replay.ingest import ragged
from fledge.replay.schema import DONE, FINAL, MASK, NEXT, Schema, Words, as_tensor


def read_rollout(schema: Schema, rollout: Mapping[str, Any]) -> Iterator[tuple[Words, np.ndarray, Words | None]]:
    """Yield per step: words per internal key [N, ...], which envs ended [N], and the final observations, if any."""
    frames = {name: _find(rollout, name, "obs") for name in schema.stored}
    if missing := [name for name, value in frames.items() if value is None]:
        raise InputError(f"The rollout lacks {missing}; this buffer stores {schema.stored}.")
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
                raise InputError(f"There is {name + MASK!r}, but not {FINAL + name + MASK!r}: add it.")
        final = _words(schema, given, final_masks, shape, FINAL)
    if schema.observed and final is None and done.any():
        raise InputError("An episode ended, but the rollout has no 'final_obs': add it.")
    for t in range(shape[0]):
        last = None if final is None else {k: v[t] for k, v in final.items()}
        yield {k: v[t] for k, v in words.items()}, done[t], last


def rollout_names(rollout: Mapping[str, Any]) -> list[str]:
    """Return the keys of a buffer for rollouts like this one: observations, actions, rewards and ends.

    Without "obs" these are all keys of the rollout. With "final_obs" they include `next_X` of the observations.
    """
    given = [str(name) for name in rollout.keys()]  # noqa: SIM118 - a TensorDict is no dict
    if "obs" not in given:
        return [name for name in given if name != "final_obs"]
    seen = [str(name) for name in rollout["obs"].keys()]  # noqa: SIM118
    names = [*seen, *(name for name in ("action", "reward", *DONE) if name in given)]
    return names + ([NEXT + name for name in seen] if "final_obs" in given else [])


def read_observations(schema: Schema, obs: Mapping[str, Any]) -> Words:
    """Return the words of one observation of all envs, [N, ...], for the keys with a `next_X`."""
    frames = {name: _find(obs, name, "obs") for name in schema.observed}
    if missing := [name for name, value in frames.items() if value is None]:
        raise InputError(f"obs lacks {missing}: add them, or leave obs out.")
    tensors = {k: v[None] for k, v in frames.items() if v is not None}
    masks = {name: _find(obs, name + MASK, "obs") for name in schema.ragged}
    shape = tuple(next(iter(tensors.values())).shape[:2])
    words = _words(schema, tensors, {k: None if v is None else v[None] for k, v in masks.items()}, shape, "")
    return {k: v[0] for k, v in words.items()}


def _done(rollout: Mapping[str, Any]) -> np.ndarray:
    flags = [as_tensor(rollout[name], name) for name in DONE if name in rollout.keys()]  # noqa: SIM118 - a TensorDict
    if not flags:
        raise InputError("The rollout needs 'terminated', 'truncated' or 'done' to split it into episodes.")
    shape = flags[0].shape[:2]
    if len(shape) != 2 or shape[0] < 1:
        raise InputError(f"The rollout's flags have shape {tuple(flags[0].shape)}, but must be [T, N].")
    if any(flag.numel() != shape.numel() for flag in flags):
        raise InputError(f"The rollout's flags have shapes {[tuple(f.shape) for f in flags]}, but must be [T, N].")
    return np.logical_or.reduce([flag.reshape(*shape).bool().numpy() for flag in flags])


def _find(rollout: Mapping[str, Any], name: str, nest: str, prefix: str = "") -> torch.Tensor | None:
    names = rollout.keys()
    # an observation may be called "obs" too: then the entry is a tensor, not a mapping
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
    """Return the words per internal key [T, N, ...] of tensors [T, N, ...]."""
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
            ragged.set_counts(words, name, counts, spec)
    return words
