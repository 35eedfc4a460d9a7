"""Exploration type of collectors: sample actions or take the mean, per collector or overridden in a `with` block.

    with set_exploration_type(ExplorationType.MEAN):
        rollout = collector.rollout()

A pipelined batch uses the type that was active where the batch was started.
"""

from __future__ import annotations

import enum
from contextvars import ContextVar, Token
from typing import Any

from fledge.core.errors import ConfigError


class ExplorationType(enum.StrEnum):
    """How actions are chosen; members compare equal to their string."""

    RANDOM = "random"
    MEAN = "deterministic"
    MODE = "deterministic"  # fledge's action distributions use the mean as mode
    DETERMINISTIC = "deterministic"


_override: ContextVar[ExplorationType | None] = ContextVar("exploration", default=None)


def read_exploration_type(value: Any) -> ExplorationType:
    """Convert a string or TorchRL's enum member to an ExplorationType; raise ConfigError for other values."""
    name = value.name if isinstance(value, enum.Enum) else str(value).upper()
    if name not in ExplorationType.__members__:
        raise ConfigError(f"exploration_type is {value!r}, but must be 'random' or 'deterministic' (MEAN).")
    return ExplorationType[name]


class set_exploration_type:
    """Context manager that overrides the exploration type of all collectors."""

    def __init__(self, exploration_type: Any) -> None:
        self.exploration_type = read_exploration_type(exploration_type)
        self._tokens: list[Token[ExplorationType | None]] = []

    def __enter__(self) -> ExplorationType:
        self._tokens.append(_override.set(self.exploration_type))
        return self.exploration_type

    def __exit__(self, *exc: object) -> None:
        _override.reset(self._tokens.pop())


def is_deterministic(own: bool) -> bool:
    """Return whether to take the mean: as set by `set_exploration_type`, or else `own`."""
    override = _override.get()
    return own if override is None else override is ExplorationType.MEAN
