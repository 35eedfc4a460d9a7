"""Read rollouts of parallel envs, [T, N] time-major, step by step, as words (unsigned integers, see `schema`).

A rollout is a mapping (TensorDict, dict) with each stored key as [T, N, ...], at the top or under "obs"; flags "terminated"
and "truncated" (or "done") [T, N]; and final observations under "final_obs" (or as "final_X"), [T, N, ...], which are read
only where an episode ended. Entries that the buffer does not store are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError
from fledge.replay.schema import DONE, FINAL, MASK, NEXT, Schema, Words, as_tensor, ragged_counts, set_ragged_counts

Tensors = dict[str, torch.Tensor]


def read_rollout(schema: Schema, rollout: Mapping[str, Any]) -> Iterator[tuple[Words, np.ndarray, Words | None]]:
    """Yield for each step the words per internal key [N, ...], which envs ended [N], and the final observations, if any."""
    frames = _find(rollout, schema.stored, "obs")
    if missing := [name for name in schema.stored if name not in frames]:
        raise InputError(f"The rollout lacks {missing}: add them, this buffer stores {schema.stored}.")
    done = _done(rollout)
    masks = _find(rollout, schema.ragged, "obs", suffix=MASK)
    words = _words(schema, frames, masks, done.shape, "")
    finals = _find(rollout, schema.observed, "final_obs", FINAL)
    final = None
    if finals and len(finals) == len(schema.observed):
        final_masks = _find(rollout, schema.ragged, "final_obs", FINAL, MASK)
        for name in finals:
            if name in masks and name not in final_masks:
                raise InputError(f"The rollout has {name + MASK!r}, but lacks {FINAL + name + MASK!r}: add it.")
        final = _words(schema, finals, final_masks, done.shape, FINAL)
    if schema.observed and final is None and done.any():
        raise InputError("An episode ended, but the rollout has no 'final_obs': add it.")
    for t in range(len(done)):
        last = None if final is None else {k: v[t] for k, v in final.items()}
        yield {k: v[t] for k, v in words.items()}, done[t], last


def rollout_names(rollout: Mapping[str, Any]) -> list[str]:
    """Return the keys of a buffer for this rollout: all entries but "final_obs" if it has no mapping "obs".

    If it has one: the observations, action, reward and end flags, and `next_X` of observations if it has "final_obs".
    """
    if not hasattr(rollout.get("obs"), "keys"):
        return [name for name in rollout if name != "final_obs"]
    seen = [str(name) for name in rollout["obs"].keys()]  # noqa: SIM118 - a TensorDict is no dict
    names = [*seen, *(name for name in ("action", "reward", *DONE) if name in rollout)]
    return names + ([NEXT + name for name in seen] if "final_obs" in rollout else [])


def read_observations(schema: Schema, obs: Mapping[str, Any]) -> Words:
    """Return one observation of all envs, [N, ...], as words, for the keys with a `next_X`."""
    frames = _find(obs, schema.observed, "obs")
    if missing := [name for name in schema.observed if name not in frames]:
        raise InputError(f"obs lacks {missing}: add them, or leave obs out.")
    masks = _find(obs, schema.ragged, "obs", suffix=MASK)
    tensors, masks = ({k: v[None] for k, v in part.items()} for part in (frames, masks))
    words = _words(schema, tensors, masks, tuple(next(iter(tensors.values())).shape[:2]), "")
    return {k: v[0] for k, v in words.items()}


def _done(rollout: Mapping[str, Any]) -> np.ndarray:
    flags = [as_tensor(rollout[name], name) for name in DONE if name in rollout]
    if not flags:
        raise InputError("The rollout needs 'terminated', 'truncated' or 'done' to split it into episodes.")
    shape = flags[0].shape[:2]
    if len(shape) != 2 or shape[0] < 1:
        raise InputError(f"The rollout's flags have shape {tuple(flags[0].shape)}, but must be [T, N].")
    if any(flag.numel() != shape.numel() for flag in flags):
        raise InputError(f"The rollout's flags have shapes {[tuple(f.shape) for f in flags]}, but must be [T, N].")
    return np.logical_or.reduce([flag.reshape(*shape).bool().numpy() for flag in flags])


def _find(rollout: Mapping[str, Any], names: Iterable[str], nest: str, prefix: str = "", suffix: str = "") -> Tensors:
    """Return the rollout's entries with these names, from the top level (with prefix and suffix) or from under `nest`."""
    found = {}
    for name in names:
        inner, top = name + suffix, prefix + name + suffix
        # an observation may be called "obs" too: then the entry is a tensor, not a mapping
        if top in rollout.keys() and not hasattr(rollout[top], "keys"):  # noqa: SIM118 - a TensorDict is no dict
            found[name] = as_tensor(rollout[top], top)
        elif nest in rollout.keys() and inner in rollout[nest].keys():  # noqa: SIM118
            found[name] = as_tensor(rollout[nest][inner], f"{nest}.{inner}")
    return found


def _words(schema: Schema, frames: Tensors, masks: Tensors, shape: tuple[int, ...], prefix: str) -> Words:
    """Convert tensors [T, N, ...] to words [T, N, ...] per internal key."""
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
            counts = np.full(shape[:2], spec.shape[0])
            if name in masks:
                counts = ragged_counts(prefix + name, masks[name], shape[:2], spec)
            set_ragged_counts(words, name, counts, spec)
    return words
