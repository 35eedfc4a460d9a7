"""Parts of a rollout: which keys, envs and steps a caller asks for.

Contract
    `Cut` takes rows out of the time axis and the env axis, which is the first other axis of the batch; both stay axes, also
    with one row. Rows are a number (-1 is the last one), a slice, numbers, or a mask with one cell per row.
    `find_keys` says which nested keys are meant. `("agents", "observation")` and `"agents/observation"` are the same; where
    a key itself holds a "/", a string may mean two entries, and only a tuple says which.
    What is not in the rollout is an InputError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError

Rows = slice | Sequence[int] | torch.Tensor | np.ndarray | int
Key = str | tuple[str, ...]
Names = Mapping[str, Any]  # keys of a TensorDict; those of nested ones below them, None below a tensor


class Cut:
    """Takes some envs and steps of a batch out of its tensors."""

    def __init__(self, batch: Sequence[int], time_dim: int, envs: Rows | None, steps: Rows | None) -> None:
        env_dim = next((axis for axis in range(len(batch)) if axis != time_dim), None)
        if envs is not None and env_dim is None:
            raise InputError(f"envs was given, but the rollout has a batch of {list(batch)}, time alone: leave it out.")
        asked = (("steps", time_dim, steps), ("envs", env_dim, envs))
        self.axes = {a: _rows(name, rows, batch[a]) for name, a, rows in asked if a is not None and rows is not None}

    def size(self, batch: Sequence[int]) -> list[int]:
        """What is left of a batch."""
        return [self._count(self.axes[a], n) if a in self.axes else n for a, n in enumerate(batch)]

    @staticmethod
    def _count(rows: slice | torch.Tensor, size: int) -> int:
        return len(range(*rows.indices(size))) if isinstance(rows, slice) else len(rows)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is left of a tensor, in memory of its own: the rest can be forgotten."""
        for axis, rows in self.axes.items():
            tensor = tensor[(slice(None),) * axis + (rows,)]
        return tensor.clone(memory_format=torch.contiguous_format) if self.axes else tensor


def _rows(name: str, rows: Any, size: int) -> slice | torch.Tensor:
    """Rows of an axis as a slice or as numbers that are in it."""
    if isinstance(rows, slice):
        try:
            found = range(*rows.indices(size))
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} is {rows}, which is no slice of whole numbers: {error}.") from error
        return rows if found.step > 0 else torch.tensor(found, dtype=torch.int64)
    try:
        numbers = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows)
    except ValueError:
        numbers = np.array(None)
    if numbers.shape == (size,) and numbers.dtype == bool:
        return torch.from_numpy(np.flatnonzero(numbers))
    if numbers.ndim > 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise InputError(
            f"{name} is {str(rows)[:60]}, but must be a number, a slice, numbers, or a mask of {size} cells."
        )
    numbers = np.atleast_1d(numbers).astype(np.int64)
    if numbers.size and not (-size <= numbers.min() and numbers.max() < size):
        raise InputError(f"{name} is {str(rows)[:60]}, but the rollout has {size}: give {-size} to {size - 1}.")
    return torch.from_numpy(np.where(numbers < 0, numbers + size, numbers))


def find_keys(names: Names, keys: Iterable[Key], label: str) -> set[tuple[str, ...]]:
    """The nested keys that are asked for."""
    chosen = set()
    for key in [keys] if isinstance(keys, str) else keys:
        found = _meant(names, key)
        if not found:
            raise InputError(f"key {key!r} is not in {label}; it has {_listed(names)[:20]}: choose among these.")
        if len(found) > 1:
            raise InputError(f"key {key!r} may be any of {sorted(found)} in {label}: give one of these.")
        chosen |= found
    return chosen


def _meant(names: Names, key: Key) -> set[tuple[str, ...]]:
    if not isinstance(key, str):
        return {tuple(key)} if _has(names, tuple(key)) else set()
    return _readings(names, key.split("/")) or _readings(names, key.strip("/").split("/"))


def _has(names: Names | None, key: tuple[str, ...]) -> bool:
    return not key or (names is not None and key[0] in names and _has(names[key[0]], key[1:]))


def _readings(names: Names | None, parts: Sequence[str]) -> set[tuple[str, ...]]:
    """Nested keys that are `parts` when they are joined by "/"."""
    if not parts or names is None:
        return set() if parts else {()}
    heads = [(count, "/".join(parts[:count])) for count in range(1, len(parts) + 1)]
    return {(head, *rest) for n, head in heads if head in names for rest in _readings(names[head], parts[n:])}


def _listed(names: Names, above: tuple[str, ...] = ()) -> list[Key]:
    found: list[Key] = []
    for name, below in names.items():
        key = (*above, name)
        found += [key if len(key) > 1 else name] if below is None else _listed(below, key)
    return found
