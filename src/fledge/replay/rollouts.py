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
from fledge.replay.schema import COUNT, DONE, FINAL, MASK, Schema, as_tensor, mask_counts

Words = dict[str, np.ndarray]


def read_rollout(schema: Schema, rollout: Mapping[str, Any]) -> Iterator[tuple[Words, np.ndarray, Words | None]]:
    """For each step: words per internal key [N, ...], which envs ended [N], and final observations, if there are any."""
    frames = {name: _find(rollout, name, "obs") for name in schema.stored}
    if missing := [name for name, value in frames.items() if value is None]:
        raise InputError(f"the rollout lacks {missing}; this buffer stores {schema.stored}: add them.")
    done = _done(rollout)
    shape = done.shape
    words = _words(schema, {k: v for k, v in frames.items() if v is not None}, rollout, shape, "")
    finals = {name: _find(rollout, name, "final_obs", FINAL) for name in schema.observed}
    given = {k: v for k, v in finals.items() if v is not None}
    final = _words(schema, given, rollout, shape, FINAL) if len(given) == len(finals) and given else None
    if schema.observed and final is None and done.any():
        raise InputError("an episode ended, but the rollout has no 'final_obs' to end it with: add it.")
    for t in range(shape[0]):
        yield (
            {k: v[t] for k, v in words.items()},
            done[t],
            None if final is None else {k: v[t] for k, v in final.items()},
        )


def read_observations(schema: Schema, obs: Mapping[str, Any]) -> Words:
    """Words of one observation of all envs, [N, ...], for the keys that have a next one."""
    frames = {name: _find(obs, name, "obs") for name in schema.observed}
    if missing := [name for name, value in frames.items() if value is None]:
        raise InputError(f"the observations lack {missing}: give them, or nothing at all.")
    tensors = {k: v[None] for k, v in frames.items() if v is not None}
    shape = tuple(next(iter(tensors.values())).shape[:2])
    return {k: v[0] for k, v in _words(schema, tensors, obs, shape, "").items()}


def _done(rollout: Mapping[str, Any]) -> np.ndarray:
    flags = [as_tensor(rollout[name]) for name in (*DONE, "done") if name in rollout.keys()]  # noqa: SIM118 - a TensorDict
    if not flags:
        raise InputError("the rollout has none of 'terminated', 'truncated', 'done': episodes cannot be told apart.")
    shape = flags[0].shape[:2]
    if len(shape) != 2 or shape[0] < 1:
        raise InputError(f"the rollout's flags have shape {tuple(flags[0].shape)}, but must be [T, N].")
    return np.logical_or.reduce([flag.reshape(*shape).bool().numpy() for flag in flags])


def _find(rollout: Mapping[str, Any], name: str, nest: str, prefix: str = "") -> torch.Tensor | None:
    names = rollout.keys()
    if prefix + name in names:
        return as_tensor(rollout[prefix + name])
    if nest in names and name in rollout[nest].keys():  # noqa: SIM118 - a TensorDict is no dict
        return as_tensor(rollout[nest][name])
    return None


def _words(
    schema: Schema, frames: Mapping[str, torch.Tensor], rollout: Mapping[str, Any], shape: tuple[int, ...], prefix: str
) -> Words:
    schema.learn({k: v.flatten(0, 1) for k, v in frames.items() if v.ndim >= 2})
    words: Words = {}
    for name, tensor in frames.items():
        spec = schema.specs[name]
        if tuple(tensor.shape) != (*shape[:2], *spec.shape):
            want = (*shape[:2], *spec.shape)
            raise InputError(f"{prefix + name!r} has shape {tuple(tensor.shape)}, but this rollout needs {want}.")
        flat = schema.check(name, tensor.flatten(0, 1))
        words[name] = flat.reshape(*shape[:2], *spec.shape)
        if spec.ragged:
            mask = _find(rollout, name + MASK, "final_obs" if prefix else "obs", prefix)
            most = spec.shape[0]
            counts = np.full(shape[:2], most) if mask is None else mask_counts(name, mask, most)
            words[name + COUNT] = counts.astype(np.int32).view(np.uint32)
    return words
