"""Ragged keys (graph inputs): frames with a varying number of elements, up to the spec's shape[0].

They come as a list of arrays [k, ...], or as a padded array [..., most, ...] with a mask [..., most] whose true cells come
first. They are stored padded, with zeros beyond a frame's count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError
from fledge.replay.schema import COUNT, MASK, KeySpec, Words, as_tensor


def pad(name: str, frames: Sequence[Any], spec: KeySpec) -> tuple[torch.Tensor, np.ndarray]:
    """Return a list of arrays [k, ...] as one tensor [rows, *shape], and the counts [rows]."""
    out = torch.zeros(len(frames), *spec.shape, dtype=spec.dtype)
    counts = np.zeros(len(frames), np.int64)
    for row, frame in enumerate(frames):
        tensor = as_tensor(frame, name)
        fits = tensor.ndim and tuple(tensor.shape[1:]) == spec.shape[1:] and len(tensor) <= spec.shape[0]
        if tensor.dtype != spec.dtype or not fits:
            got = f"{tuple(tensor.shape)} {tensor.dtype}"
            raise InputError(f"A frame of {name!r} is {got}, but must be at most {spec.shape} {spec.dtype}.")
        out[row, : len(tensor)] = tensor
        counts[row] = len(tensor)
    return out, counts


def count(name: str, mask: torch.Tensor, shape: Sequence[int], spec: KeySpec) -> np.ndarray:
    """Return the elements per frame, [*shape], from a padding mask [*shape, most]."""
    expected = (*shape, spec.shape[0])
    if tuple(mask.shape) != expected:
        raise InputError(f"{name + MASK!r} has shape {tuple(mask.shape)}, but must have {expected}.")
    counts = mask.bool().sum(-1)
    if not torch.equal(mask.bool(), torch.arange(spec.shape[0]) < counts[..., None]):
        raise InputError(f"{name + MASK!r} must have its true cells first: move the elements to the front.")
    return counts.numpy()


def set_counts(words: Words, name: str, counts: np.ndarray, spec: KeySpec) -> None:
    """Set the words [..., *spec.shape] of a ragged key to zero beyond its counts, and add the counts."""
    there = np.arange(spec.shape[0]) < counts[..., None]
    there = there.reshape(*there.shape, *(1,) * (len(spec.shape) - 1))
    words[name] = np.where(there, words[name], words[name].dtype.type(0))
    words[name + COUNT] = counts.astype(np.int32).view(np.uint32)
