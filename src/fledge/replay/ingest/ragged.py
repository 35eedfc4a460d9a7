"""Ragged keys (graph inputs): frames with a different number of elements each, up to the spec's shape[0].

Contract
    They come as a list of arrays [k, ...], or as a padded array [..., most, ...] with a mask [..., most] whose true cells
    come first. They are stored padded: what lies beyond a frame's count is zero, whatever it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError
from fledge.replay.schema import MASK, KeySpec, as_tensor


def pad(name: str, frames: Sequence[Any], spec: KeySpec) -> tuple[torch.Tensor, np.ndarray]:
    """A list of arrays [k, ...] as one tensor [rows, *shape], and the counts [rows]."""
    out = torch.zeros(len(frames), *spec.shape, dtype=spec.dtype)
    counts = np.zeros(len(frames), np.int64)
    for row, frame in enumerate(frames):
        tensor = as_tensor(frame, name)
        fits = tensor.ndim and tuple(tensor.shape[1:]) == spec.shape[1:] and len(tensor) <= spec.shape[0]
        if tensor.dtype != spec.dtype or not fits:
            raise InputError(
                f"a frame of {name!r} has shape {tuple(tensor.shape)} and type {tensor.dtype}, but at most "
                f"{spec.shape} and {spec.dtype} fit."
            )
        out[row, : len(tensor)] = tensor
        counts[row] = len(tensor)
    return out, counts


def count(name: str, mask: torch.Tensor, shape: Sequence[int], spec: KeySpec) -> np.ndarray:
    """Elements per frame, [*shape], from a padding mask [*shape, most]."""
    expected = (*shape, spec.shape[0])
    if tuple(mask.shape) != expected:
        raise InputError(f"{name + MASK!r} has shape {tuple(mask.shape)}, but must have {expected}.")
    counts = mask.bool().sum(-1)
    if not torch.equal(mask.bool(), torch.arange(spec.shape[0]) < counts[..., None]):
        raise InputError(f"{name + MASK!r} must have the true ones first: sort the elements that way.")
    return counts.numpy()


def clear_beyond(words: np.ndarray, counts: np.ndarray, spec: KeySpec) -> np.ndarray:
    """Words [..., *spec.shape] with zeros where a frame has no element."""
    there = np.arange(spec.shape[0]) < counts[..., None]
    return np.where(there.reshape(*there.shape, *(1,) * (len(spec.shape) - 1)), words, words.dtype.type(0))


def as_words(counts: np.ndarray) -> np.ndarray:
    """Counts in the form they are stored in."""
    return counts.astype(np.int32).view(np.uint32)
