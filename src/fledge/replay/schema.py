"""What a replay buffer stores under which key, and episodes checked and brought into that form.

Contract
    A key X is stored once. If `next_X` is also asked for, it is derived: the next frame of X, so X has one frame more
    than the episode has transitions (the final observation). An episode of T transitions may give X as
        [T + 1, ...]                          the final observation is the last frame
        [T, ...] and final_X [...]            ... comes apart
        [T, ...] and next_X [T, ...]          ... is the last of next_X, whose others must repeat X
    Words: inside the buffer values are unsigned integers of the dtype's size, [rows, *shape], so that every bit survives.
    Ragged keys (graph inputs) hold a different number of elements per frame, up to shape[0]: a list of arrays, or a
    padded array with `X_mask`. They are stored padded with zeros, with the count under `X_count`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fledge.core.errors import ConfigError, InputError
from fledge.storage.leaves import DTYPE_NAMES, TORCH_DTYPES

WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
NEXT, FINAL, MASK, COUNT = "next_", "final_", "_mask", "_count"
DONE = ("terminated", "truncated")


@dataclass(frozen=True)
class KeySpec:
    """One key: shape and type of a frame; of a ragged key, shape[0] is the most elements a frame may have."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    ragged: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_NAMES or self.dtype.itemsize not in WORDS:
            raise ConfigError(f"a key of {self.dtype} cannot be stored: allowed are dtypes of up to 8 bytes.")
        if self.ragged and (not self.shape or self.shape[0] < 1):
            raise ConfigError(f"a ragged key has shape {self.shape}, but its first size must be the most elements.")

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
        return cls(tuple(int(n) for n in state["shape"]), TORCH_DTYPES[state["dtype"]], bool(state["ragged"]))


def as_tensor(value: Any) -> torch.Tensor:
    """The value as a CPU tensor, sharing memory where that is possible."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return torch.from_numpy(np.ascontiguousarray(value)) if np.ndim(value) else torch.as_tensor(value)


def to_words(tensor: torch.Tensor, spec: KeySpec) -> np.ndarray:
    """A CPU tensor of the key's dtype as words."""
    tensor = tensor.contiguous()
    if tensor.ndim == 0:
        return to_words(tensor[None], spec)[0]
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[spec.dtype.itemsize]
    return tensor.view(signed).numpy().view(spec.word)


def from_words(words: np.ndarray, spec: KeySpec) -> torch.Tensor:
    """Words as a tensor of the key's dtype, sharing memory."""
    if spec.dtype is torch.float32:  # most keys; the shortest way
        return torch.from_numpy(words.view(np.float32))
    signed = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[spec.dtype.itemsize]
    return torch.from_numpy(words.view(signed)).view(spec.dtype)


class Schema:
    """Keys of a buffer: which are stored, which derived, and what their frames look like once that is known.

    Args:
        keys: Names, or names with their `KeySpec`. What is not given is learned from the first episode.
    """

    def __init__(self, keys: Sequence[str] | Mapping[str, KeySpec]) -> None:
        names = list(keys)
        if isinstance(keys, str) or not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"keys is {keys!r}, but must list at least one name.")
        if len(set(names)) != len(names):
            raise ConfigError(f"keys names {sorted({n for n in names if names.count(n) > 1})} twice.")
        self.names = names
        self.nexts = [n for n in names if n.startswith(NEXT) and n.removeprefix(NEXT) in names]
        self.stored = [n for n in names if n not in self.nexts]
        self.observed = {n.removeprefix(NEXT) for n in self.nexts}
        self.steps = [n for n in self.stored if n not in self.observed]
        self.specs: dict[str, KeySpec] = {}
        if isinstance(keys, Mapping):
            self.specs = {n: keys[n] for n in self.stored if keys[n] is not None}

    @property
    def extra(self) -> int:
        """1 if episodes hold a final observation, else 0."""
        return 1 if self.nexts else 0

    def internal(self) -> dict[str, KeySpec]:
        """Everything the stores hold: the stored keys, and counts of the ragged ones."""
        counts = {n + COUNT: KeySpec((), torch.int32) for n in self.stored if self.specs[n].ragged}
        return {**{n: self.specs[n] for n in self.stored}, **counts}

    def learn(self, frames: Mapping[str, torch.Tensor]) -> None:
        """Take the shape and type of keys not specified from tensors [rows, ...]."""
        for name, tensor in frames.items():
            if name not in self.specs:
                self.specs[name] = KeySpec(tuple(tensor.shape[1:]), tensor.dtype)

    # ---- episodes ----------------------------------------------------------------------------------------------

    def read_episode(self, episode: Mapping[str, Any]) -> tuple[int, dict[str, np.ndarray]]:
        """Number of transitions, and words per internal key: T + 1 rows of observations with a next, T of the rest."""
        self._check_names(episode)
        values = {n: self._frames(n, episode) for n in self.stored}
        length = self._length(values, episode)
        frames = {n: self._complete(n, values[n], episode, length) for n in self.stored}
        self.learn(frames)
        words: dict[str, np.ndarray] = {}
        for name, tensor in frames.items():
            rows = length + 1 if name in self.observed else length
            words[name] = self.check(name, tensor, rows)
            if self.specs[name].ragged:
                words[name + COUNT] = self._counts(name, episode, rows)
        self._check_done(words, length)
        return length, words

    def check(self, name: str, tensor: torch.Tensor, rows: int | None = None) -> np.ndarray:
        """Words of a tensor [rows, *shape], or InputError."""
        spec = self.specs[name]
        if tensor.dtype != spec.dtype:
            raise InputError(
                f"{name!r} has type {tensor.dtype}, but this buffer stores {spec.dtype}: convert it first."
            )
        if tuple(tensor.shape[1:]) != spec.shape or (rows is not None and len(tensor) != rows):
            want = ("rows" if rows is None else rows, *spec.shape)
            raise InputError(f"{name!r} has shape {tuple(tensor.shape)}, but this episode needs {want}.")
        return to_words(tensor, spec)

    def _check_names(self, episode: Mapping[str, Any]) -> None:
        given = set(episode.keys())
        allowed = {*self.names, *(FINAL + n for n in self.observed), *(NEXT + n for n in self.observed)}
        allowed |= {p + n + MASK for n in self.stored for p in ("", FINAL)}
        if missing := [n for n in self.stored if n not in given]:
            raise InputError(f"the episode lacks {missing}; this buffer stores {self.stored}: add them.")
        if unknown := sorted(str(n) for n in given - allowed):
            raise InputError(f"the episode has {unknown}, which this buffer does not store: leave them out.")

    def _frames(self, name: str, episode: Mapping[str, Any]) -> torch.Tensor:
        value = episode[name]
        spec = self.specs.get(name)
        if spec is not None and spec.ragged and isinstance(value, list | tuple):
            return torch.stack([self._pad(name, frame) for frame in value]) if value else torch.zeros(0, *spec.shape)
        tensor = as_tensor(value)
        if tensor.ndim == 0:
            raise InputError(f"{name!r} is a single number, but its first axis must be time.")
        return tensor

    def _pad(self, name: str, frame: Any) -> torch.Tensor:
        tensor, spec = as_tensor(frame), self.specs[name]
        if tensor.dtype != spec.dtype or tuple(tensor.shape[1:]) != spec.shape[1:] or len(tensor) > spec.shape[0]:
            raise InputError(
                f"a frame of {name!r} has shape {tuple(tensor.shape)} and type {tensor.dtype}, but at most "
                f"{spec.shape} and {spec.dtype} fit."
            )
        return torch.cat([tensor, tensor.new_zeros(spec.shape[0] - len(tensor), *spec.shape[1:])])

    def _length(self, values: Mapping[str, torch.Tensor], episode: Mapping[str, Any]) -> int:
        lengths = {n: len(values[n]) for n in self.steps}
        if not lengths:
            apart = (NEXT, FINAL)
            lengths = {n: len(v) - (not any(p + n in episode for p in apart)) for n, v in values.items()}
        if len(set(lengths.values())) != 1:
            raise InputError(f"the keys of an episode have different numbers of frames: {lengths}.")
        length = next(iter(lengths.values()))
        if length < 1:
            raise InputError("the episode is empty: it needs at least one transition.")
        return length

    def _complete(self, name: str, frames: torch.Tensor, episode: Mapping[str, Any], length: int) -> torch.Tensor:
        """Observations with their final one."""
        if name not in self.observed or len(frames) == length + 1:
            return frames
        if FINAL + name in episode:
            spec = self.specs.get(name)
            final = episode[FINAL + name]
            padded = self._pad(name, final) if spec is not None and spec.ragged else as_tensor(final)
            return torch.cat([frames, padded.reshape(1, *frames.shape[1:]).to(frames.dtype)])
        if NEXT + name not in episode:
            raise InputError(
                f"{name!r} has {len(frames)} frames for {length} transitions and {NEXT + name!r} is asked for: give "
                f"{length + 1} frames, {FINAL + name!r} or {NEXT + name!r}."
            )
        following = as_tensor(episode[NEXT + name])
        if following.shape != frames.shape or following.dtype != frames.dtype:
            raise InputError(f"{NEXT + name!r} must have the shape and type of {name!r}, {tuple(frames.shape)}.")
        view = torch.uint8  # compare bits: NaN is equal to itself here
        if not torch.equal(following[:-1].contiguous().view(view), frames[1:].contiguous().view(view)):
            raise InputError(f"{NEXT + name!r} does not repeat {name!r} one frame later: store it under another name.")
        return torch.cat([frames, following[-1:]])

    def _counts(self, name: str, episode: Mapping[str, Any], rows: int) -> np.ndarray:
        """How many elements each frame of a ragged key has; cells beyond are required to be zero by their absence."""
        value, most = episode[name], self.specs[name].shape[0]
        if isinstance(value, list | tuple):
            counts = [len(frame) for frame in value]
            if len(counts) < rows:
                final = episode.get(FINAL + name)
                counts.append(len(final if final is not None else episode[NEXT + name][-1]))
        elif name + MASK in episode:
            counts = mask_counts(name, as_tensor(episode[name + MASK]), most).tolist()
            if len(counts) < rows and FINAL + name + MASK in episode:
                counts.append(int(as_tensor(episode[FINAL + name + MASK]).sum()))
        else:
            counts = [most] * rows
        if len(counts) != rows:
            raise InputError(f"{name!r} has masks for {len(counts)} frames, but {rows} are needed.")
        return np.array(counts, np.int32).view(np.uint32)

    def _check_done(self, words: Mapping[str, np.ndarray], length: int) -> None:
        for name in DONE:
            if name in words and words[name].reshape(length, -1)[:-1].any():
                raise InputError(
                    f"{name!r} is set before the last transition: one episode per add(), or add_rollout()."
                )

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)


def mask_counts(name: str, mask: torch.Tensor, most: int) -> np.ndarray:
    """Elements per frame from a padding mask [..., most], whose true cells come first."""
    counts = mask.bool().sum(-1)
    if mask.shape[-1] != most or not torch.equal(mask.bool(), torch.arange(most) < counts[..., None]):
        raise InputError(f"{name + MASK!r} must have {most} cells, the true ones first: sort the elements that way.")
    return counts.numpy()
