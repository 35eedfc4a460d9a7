"""Whether actions are drawn or the policy's mean is taken: a collector's own setting, and a block that overrides it.

    with set_exploration_type(ExplorationType.MEAN):
        rollout = collector.rollout()

A pipelined batch is flown as it was asked for where it was begun, whichever block its flight falls into.
"""

from __future__ import annotations

import enum
from contextvars import ContextVar, Token
from typing import Any

from fledge.core.errors import ConfigError


class ExplorationType(enum.StrEnum):
    """How actions come from a policy; equal to the word that stands for it."""

    RANDOM = "random"
    MEAN = "deterministic"
    MODE = "deterministic"  # of our heads, the mean is what is taken for the most likely action
    DETERMINISTIC = "deterministic"


_asked: ContextVar[ExplorationType | None] = ContextVar("exploration", default=None)


def read_exploration_type(value: Any) -> ExplorationType:
    """Ours, its word, or TorchRL's member of the same name; ConfigError for others."""
    name = value.name if isinstance(value, enum.Enum) else str(value).upper()
    if name not in ExplorationType.__members__:
        raise ConfigError(f"exploration_type is {value!r}, but must be 'random' or 'deterministic' (MEAN).")
    return ExplorationType[name]


class set_exploration_type:
    """A block in which collectors explore in this way, whatever their own setting."""

    def __init__(self, exploration_type: Any) -> None:
        self.exploration_type = read_exploration_type(exploration_type)
        self._tokens: list[Token[ExplorationType | None]] = []

    def __enter__(self) -> ExplorationType:
        self._tokens.append(_asked.set(self.exploration_type))
        return self.exploration_type

    def __exit__(self, *exc: object) -> None:
        _asked.reset(self._tokens.pop())


def is_deterministic(own: bool) -> bool:
    """Whether to take the mean now: as the block around says, or else as `own` says."""
    asked = _asked.get()
    return own if asked is None else asked is ExplorationType.MEAN
