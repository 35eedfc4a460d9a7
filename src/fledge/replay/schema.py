"""Keys of a replay buffer: shape and dtype of their frames, and which are stored or derived.

A key X is stored once. If `next_X` is a key too, it is derived as the next frame of X, so X has one frame more than an episode
has transitions (the final observation).
Words: inside the buffer, values are unsigned integers of the dtype's size, [rows, *shape], so that every bit is preserved.
Ragged keys (graph inputs) have frames with a varying number of elements, up to the spec's shape[0]. They come as a list of
arrays [k, ...], or as a padded array [..., most, ...] with a mask [..., most] whose true cells come first (`most` is the
spec's shape[0]). They are stored padded with zeros, with the number of elements under `X_count`. "Internal" keys are the
stored keys and these counts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fledge.core.errors import ConfigError, InputError
from fledge.replay.checks import damaged
from fledge.storage.format.leaves import DTYPE_NAMES, MAX_DIMS, TORCH_DTYPES, WORDS

NEXT, FINAL, MASK, COUNT = "next_", "final_", "_mask", "_count"
DONE = ("terminated", "truncated", "done")  # flags that end an episode
MAX_CELLS = 2**28  # limit for a frame in a saved state

Words = dict[str, np.ndarray]


@dataclass(frozen=True)
class KeySpec:
    """Shape and dtype of a key's frames; shape[0] of a ragged key is the largest number of elements."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    ragged: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if self.dtype not in DTYPE_NAMES or self.dtype.itemsize not in WORDS:
            raise ConfigError(f"KeySpec.dtype is {self.dtype}, but must be a torch.dtype of at most 8 bytes.")
        if self.ragged and (not self.shape or self.shape[0] < 1):
            raise ConfigError(
                f"A ragged key has shape {self.shape}, but must begin with its largest number of elements."
            )

    @property
    def frame_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def word(self) -> Any:
        return WORDS[self.dtype.itemsize]

    def to_state(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "dtype": DTYPE_NAMES[self.dtype], "ragged": self.ragged}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> KeySpec:
        shape = tuple(int(n) for n in state["shape"])
        if len(shape) > MAX_DIMS or min(shape, default=0) < 0 or math.prod(n or 1 for n in shape) > MAX_CELLS:
            raise damaged(f"has frames of the invalid shape {str(shape)[:60]}")
        return cls(shape, TORCH_DTYPES[state["dtype"]], bool(state["ragged"]))


def as_tensor(value: Any, name: str) -> torch.Tensor:
    """Return the value of a key as a CPU tensor, sharing memory if possible."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_nested or value.is_quantized:
            kind = "meta" if value.is_meta else "nested" if value.is_nested else str(value.layout)
            raise InputError(f"{name!r} is a {kind} tensor of {value.dtype}, but must be dense: convert it first.")
        return value.detach().resolve_conj().resolve_neg().cpu()
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{name!r} is a masked array: fill it, and pass the mask as a key of its own.")
    try:
        array = np.asarray(value)
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("=")) if array.ndim else array
        return torch.from_numpy(array) if array.ndim else torch.as_tensor(array)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name!r} cannot be converted to an array ({error}).") from error


def to_words(tensor: torch.Tensor, spec: KeySpec) -> np.ndarray:
    """Return a CPU tensor of the key's dtype as words (unsigned integers with the same bits)."""
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[spec.dtype.itemsize]
    return tensor.contiguous().view(signed).numpy().view(spec.word)


def from_words(words: np.ndarray, spec: KeySpec) -> torch.Tensor:
    """Return words (unsigned integers) as a tensor of the key's dtype, sharing memory."""
    if spec.dtype is torch.float32:  # fast path for most keys
        return torch.from_numpy(words.view(np.float32))
    signed = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[spec.dtype.itemsize]
    return torch.from_numpy(words.view(signed)).view(spec.dtype)


def pad_ragged(name: str, frames: Sequence[Any], spec: KeySpec) -> tuple[torch.Tensor, np.ndarray]:
    """Return arrays [k, ...] as one tensor [rows, *shape] padded with zeros, and the number k of each [rows]."""
    out = torch.zeros(len(frames), *spec.shape, dtype=spec.dtype)
    counts = np.zeros(len(frames), np.int64)
    for row, frame in enumerate(frames):
        tensor = as_tensor(frame, name)
        fits = tensor.ndim and tuple(tensor.shape[1:]) == spec.shape[1:] and len(tensor) <= spec.shape[0]
        if tensor.dtype != spec.dtype or not fits:
            got = f"{tuple(tensor.shape)} {tensor.dtype}"
            raise InputError(
                f"A frame of {name!r} is {got}, but must be {spec.dtype} of shape {spec.shape} or with a shorter first axis."
            )
        out[row, : len(tensor)] = tensor
        counts[row] = len(tensor)
    return out, counts


def ragged_counts(name: str, mask: torch.Tensor, shape: Sequence[int], spec: KeySpec) -> np.ndarray:
    """Return the number of elements of each frame, [*shape], from a padding mask [*shape, most]."""
    expected = (*shape, spec.shape[0])
    if tuple(mask.shape) != expected:
        raise InputError(f"{name + MASK!r} has shape {tuple(mask.shape)}, but must have {expected}.")
    counts = mask.bool().sum(-1)
    if not torch.equal(mask.bool(), torch.arange(spec.shape[0]) < counts[..., None]):
        raise InputError(f"{name + MASK!r} must have its true cells first: move the elements to the front.")
    return counts.numpy()


def set_ragged_counts(words: Words, name: str, counts: np.ndarray, spec: KeySpec) -> None:
    """Set the words [..., *spec.shape] of a ragged key to zero beyond its counts, and add the counts to `words`."""
    there = np.arange(spec.shape[0]) < counts[..., None]
    there = there.reshape(*there.shape, *(1,) * (len(spec.shape) - 1))
    words[name] = np.where(there, words[name], words[name].dtype.type(0))
    words[name + COUNT] = counts.astype(np.int32).view(np.uint32)


class Schema:
    """Keys of a buffer: which are stored, which are derived, and the shape and dtype of each.

    Args:
        keys: Names, optionally with a `KeySpec` each; None leaves the keys unknown until `settle`. Missing specs are learned
            from the data added first.
        reserved: Names that a batch adds itself, which keys must not have.
    """

    def __init__(
        self, keys: Sequence[str] | Mapping[str, KeySpec | None] | None, reserved: Collection[str] = ()
    ) -> None:
        self.reserved = frozenset(reserved)
        self.names: list[str] = []
        self.nexts: list[str] = []
        self.stored: list[str] = []
        self.observed: set[str] = set()
        self.steps: list[str] = []
        self.specs: dict[str, KeySpec] = {}
        if keys is not None:
            self.settle(keys)

    @property
    def open(self) -> bool:
        """True if the keys are still unknown."""
        return not self.names

    def settle(self, keys: Sequence[str] | Mapping[str, KeySpec | None]) -> None:
        """Set the keys of a schema that was made without keys."""
        names = list(keys)
        if isinstance(keys, str) or not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"keys is {keys!r}, but must be a list of at least one name.")
        if len(set(names)) != len(names):
            raise ConfigError(f"keys has {sorted({n for n in names if names.count(n) > 1})} twice: name each key once.")
        self.names = names
        self.nexts = [n for n in names if n.startswith(NEXT) and n.removeprefix(NEXT) in names]
        self.stored = [n for n in names if n not in self.nexts]
        self.observed = {n.removeprefix(NEXT) for n in self.nexts}
        self.steps = [n for n in self.stored if n not in self.observed]
        if odd := sorted(self.observed - set(self.stored)):
            raise ConfigError(f"keys has {[NEXT + n for n in odd]}, but a {NEXT}X key has no next frame: rename them.")
        if flags := sorted(self.observed.intersection(DONE)):
            raise ConfigError(
                f"keys has {[NEXT + n for n in flags]}, but end flags have no next value: leave them out."
            )
        if isinstance(keys, Mapping):
            if wrong := [n for n, spec in keys.items() if not isinstance(spec, KeySpec | None)]:
                raise ConfigError(
                    f"The values of {wrong} in keys must be a KeySpec, or None to learn it from the data."
                )
            self.specs = {n: spec for n in self.stored if (spec := keys[n]) is not None}
        taken = {*self.reserved, *(n + end for n in self.ragged for end in (MASK, COUNT))}
        if clash := sorted(taken.intersection(names)):
            raise ConfigError(f"The keys {clash} are names that a batch adds itself: rename them.")

    @property
    def ragged(self) -> list[str]:
        """Stored keys with a varying number of elements."""
        return [n for n in self.stored if n in self.specs and self.specs[n].ragged]

    def internal(self) -> dict[str, KeySpec]:
        """Return the specs of all internal keys: the stored keys, and the counts of ragged ones."""
        counts = {n + COUNT: KeySpec((), torch.int32) for n in self.ragged}
        return {n: self.specs[n] for n in self.stored} | counts

    def with_final(self) -> set[str]:
        """Return the internal keys with one row more than the episode has transitions (the final observation)."""
        return self.observed | {n + COUNT for n in self.ragged if n in self.observed}

    def learn(self, frames: Mapping[str, torch.Tensor]) -> None:
        """Set the spec of each key that has none yet, from its tensor [rows, ...]."""
        for name, tensor in frames.items():
            if name not in self.specs:
                self.specs[name] = KeySpec(tuple(tensor.shape[1:]), tensor.dtype)

    def check(self, name: str, tensor: torch.Tensor, rows: int | None = None) -> np.ndarray:
        """Return a tensor [rows, *shape] as words; raise InputError if it does not match the key's spec."""
        spec = self.specs[name]
        if tensor.dtype != spec.dtype:
            raise InputError(f"{name!r} is {tensor.dtype}, but this buffer stores {spec.dtype}: convert it first.")
        if tuple(tensor.shape[1:]) != spec.shape or (rows is not None and len(tensor) != rows):
            expected = ("rows" if rows is None else rows, *spec.shape)
            raise InputError(f"{name!r} has shape {tuple(tensor.shape)}, but this episode needs {expected}.")
        return to_words(tensor, spec)
