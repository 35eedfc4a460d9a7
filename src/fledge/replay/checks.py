"""Validation of arguments, and errors for saved states, which come from files and are not trusted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fledge.core.errors import ConfigError, FledgeError, FormatError, InputError
from fledge.core.machine import available_bytes

MANY_ROWS = 2**24  # from here on, compare with the free memory
Indices = np.ndarray | torch.Tensor | Sequence[int]


def whole(name: str, value: Any, least: int, error: type[FledgeError] = InputError) -> int:
    """Return the value as an int, or raise `error` unless it is a whole number of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise error(f"{name} is {value!r}, but must be a whole number of at least {least}.")
    return int(value)


def integers(index: Indices) -> np.ndarray:
    """Return indices of transitions as [B] int64."""
    numbers = (index.detach().cpu().numpy() if isinstance(index, torch.Tensor) else np.asarray(index)).reshape(-1)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise InputError(f'index is {numbers.dtype}, but must hold whole numbers: pass the "index" of a batch.')
    return numbers.astype(np.int64, copy=False)


def floats(name: str, values: Any) -> np.ndarray:
    """Return numbers (a tensor, an array or a sequence) as [B] float64, or raise InputError if they are not numbers."""
    try:
        plain = values.detach().to("cpu", torch.float64).numpy() if isinstance(values, torch.Tensor) else values
        if (numbers := np.asarray(plain)).dtype.kind in "biuf" or not numbers.size:
            return numbers.astype(np.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise InputError(f"{name} is {' '.join(str(values).split())[:60]}, but must hold one number per index.")


def check_rows(rows: int) -> None:
    """Raise MemoryError if a batch of this many rows cannot fit: some systems would end the process instead."""
    if rows > MANY_ROWS and 8 * rows > available_bytes(torch.device("cpu")):  # one index of 8 bytes per row
        raise MemoryError


@contextlib.contextmanager
def in_memory(request: str) -> Iterator[None]:
    """Turn a MemoryError in the block into an InputError that names the request, such as "batch_size=1000"."""
    try:
        yield
    except MemoryError as error:
        raise InputError(f"a batch of {request} does not fit into memory: ask for a smaller one.") from error


def named_values(what: str, data: Any) -> dict[str, Any]:
    """Return a mapping with string keys, such as a TensorDict, as a dict; raise InputError for other data."""
    if not hasattr(data, "keys"):
        raise InputError(f"The {what} is a {type(data).__name__}, but must be a dict of arrays or tensors.")
    if odd := [name for name in data.keys() if not isinstance(name, str)]:  # noqa: SIM118 - a TensorDict is no dict
        raise InputError(f"The {what} has the keys {odd[:5]}, but keys must be strings.")
    return {name: data[name] for name in data.keys()}  # noqa: SIM118


def device_of(device: str | torch.device) -> torch.device:
    """Return the device, or raise ConfigError for an unknown name."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f'device is {device!r}, but must be one such as "cpu" or "cuda:0".') from error


def damaged(what: str, saved: str = "replay") -> FormatError:
    """Return the FormatError for a damaged saved state; `what` says what is wrong with it."""
    return FormatError(f"The saved {saved} {what}: it is damaged, load an older checkpoint.")


@contextlib.contextmanager
def reading(saved: str = "replay") -> Iterator[None]:
    """Turn errors that a malformed saved state causes in the block into a FormatError."""
    try:
        yield
    except FledgeError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise damaged(f"cannot be read ({type(error).__name__}: {reason})", saved) from error
