"""Whether collectors sample actions or take the mean (exploration type), and the generator that they sample from.

    with set_exploration_type(ExplorationType.MEAN):
        rollout = collector.rollout()

The `with` block overrides the collector's setting. TorchRL's own `set_exploration_type` works too; inside both, fledge's
decides. A batch of a pipelined collector uses the type that was set when the batch was started.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from contextvars import Context, ContextVar, Token, copy_context
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fledge.core.errors import ConfigError

_FUNCTIONS = (
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial poisson binomial "
    "_sample_dirichlet _standard_gamma"
)
_METHODS = "normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ bernoulli multinomial"
RANDOM_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    [getattr(torch, name) for name in _FUNCTIONS.split()] + [getattr(torch.Tensor, name) for name in _METHODS.split()]
)


class ExplorationType(enum.StrEnum):
    """How actions are chosen; members equal their strings ("random", "deterministic")."""

    RANDOM = "random"
    MEAN = "deterministic"
    MODE = "deterministic"  # fledge's action distributions use the mean as mode
    DETERMINISTIC = "deterministic"


_override: ContextVar[ExplorationType | None] = ContextVar("exploration", default=None)


def read_exploration_type(value: Any) -> ExplorationType:
    """Convert a string or TorchRL's enum member to an ExplorationType; raise ConfigError for other values."""
    name = value.name if isinstance(value, enum.Enum) else str(value).upper()
    if name not in ExplorationType.__members__:
        raise ConfigError(f"exploration_type is {value!r}, but must be 'random' or 'deterministic' (or 'mean').")
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


def caller_context() -> Context:
    """Return a copy of the caller's `contextvars` context: code that runs in it uses the caller's exploration type."""
    context = copy_context()
    context.run(_override.set, _override.get() or _torchrl_type())
    return context


def is_deterministic(default: bool) -> bool:
    """Return whether to take the mean, as set by fledge's or TorchRL's `set_exploration_type`, else `default`."""
    override = _override.get() or _torchrl_type()
    return default if override is None else override is ExplorationType.MEAN


def _torchrl_type() -> ExplorationType | None:
    """Return the type set by TorchRL's `set_exploration_type`, or None outside such a block."""
    module = sys.modules.get("tensordict.nn.probabilistic")  # not imported: then there is no such block
    chosen = None if module is None else module.interaction_type()
    return None if chosen is None or chosen.name not in ExplorationType.__members__ else ExplorationType[chosen.name]


class RngScope(TorchFunctionMode):
    """Context in which this thread draws random numbers from `generator`, except in calls that pass a generator.

    torch's global generator is shared by all threads: if two of them draw from it, the numbers depend on timing. The scope
    does not use it. It covers functions that are called from Python and accept a generator (torch.distributions,
    `randn_like`, `normal_`, ...), so not dropout.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in RANDOM_FUNCTIONS and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)
