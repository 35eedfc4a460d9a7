"""Select a part of a rollout: keys, envs and steps. A key or row that does not exist raises an InputError.

`Cut` selects rows of the time axis and of the env axis, which is the first batch axis that is not time. Both axes are kept,
even with one row. `find_keys` resolves nested keys: `("agents", "observation")` and `"agents/observation"` are the same. If a
key itself contains "/", a string may be ambiguous, and only a tuple is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError

Rows = slice | Sequence[int] | torch.Tensor | np.ndarray | int
Key = str | tuple[str, ...]
NestedKey = tuple[str, ...]


class Cut:
    """Selects envs and steps of tensors that share a batch size."""

    def __init__(self, batch: Sequence[int], time_dim: int, envs: Rows | None, steps: Rows | None) -> None:
        env_dim = next((axis for axis in range(len(batch)) if axis != time_dim), None)
        if envs is not None and env_dim is None:
            raise InputError(f"envs was given, but the rollout's batch {list(batch)} has only a time axis: omit envs.")
        asked = (("steps", time_dim, steps), ("envs", env_dim, envs))
        self.axes = {a: _rows(name, rows, batch[a]) for name, a, rows in asked if a is not None and rows is not None}

    def size(self, batch: Sequence[int]) -> list[int]:
        """Return the batch size that is left after the selection."""
        rows = [self.axes.get(axis, slice(None)) for axis in range(len(batch))]
        return [len(range(n)[r]) if isinstance(r, slice) else len(r) for n, r in zip(batch, rows, strict=True)]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the selected part of a tensor, copied so that the rest can be freed."""
        for axis, rows in self.axes.items():
            tensor = tensor[(slice(None),) * axis + (rows,)]
        return tensor.clone(memory_format=torch.contiguous_format) if self.axes else tensor


def _rows(name: str, rows: Any, size: int) -> slice | torch.Tensor:
    """Return the selected rows of an axis of this size, as a slice or as valid, non-negative indices.

    `name` is the caller's argument, "envs" or "steps", for error messages.
    """
    if isinstance(rows, slice):
        try:
            found = range(*rows.indices(size))
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} is {rows}, which is not a slice of whole numbers: {error}.") from error
        return rows if found.step > 0 else torch.tensor(found, dtype=torch.int64)
    try:
        numbers = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows)
    except ValueError:
        numbers = np.array(None)
    if numbers.shape == (size,) and numbers.dtype == bool:
        return torch.from_numpy(np.flatnonzero(numbers))
    if numbers.ndim > 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        allowed = f"an index, a slice, indices, or a boolean mask of length {size}"
        raise InputError(f"{name} is {str(rows)[:60]}, but must be {allowed}.")
    numbers = np.atleast_1d(numbers).astype(np.int64)
    if numbers.size and not (-size <= numbers.min() and numbers.max() < size):
        raise InputError(f"{name} is {str(rows)[:60]}, but every index must lie between {-size} and {size - 1}.")
    return torch.from_numpy(np.where(numbers < 0, numbers + size, numbers))


def find_keys(known: Iterable[NestedKey], keys: Iterable[Key], label: str) -> set[NestedKey]:
    """Return the nested keys that `keys` refer to; `known` holds the nested keys of all entries of the rollout."""
    by_name: dict[str, set[NestedKey]] = {}
    for nested in known:
        by_name.setdefault("/".join(nested), set()).add(nested)
    chosen: set[NestedKey] = set()
    for key in [keys] if isinstance(keys, str) else keys:
        if isinstance(key, str):
            found = by_name.get(key) or by_name.get(key.strip("/"), set())
        else:
            found = {tuple(key)} & {(), *(nested for group in by_name.values() for nested in group)}
        if not found:
            raise InputError(f"key {key!r} is not in {label}; it has {list(by_name)[:20]}: choose among these.")
        if len(found) > 1:
            raise InputError(f"key {key!r} may be any of {sorted(found)} in {label}: give one of these tuples.")
        chosen |= found
    return chosen
