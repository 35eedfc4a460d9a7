"""RngScope: redirect the random draws of one thread to a given generator.

torch's global generator is shared by all threads of the process: if two of them draw from it, the numbers depend on timing.
While entered, `RngScope` makes this thread draw from its own generator, without touching the global one. It covers functions
that are called from Python and accept a generator (torch.distributions, `randn_like`, `normal_`, ...), so not dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_FUNCTIONS = (
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial poisson binomial "
    "_sample_dirichlet _standard_gamma"
)
_METHODS = "normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ bernoulli multinomial"
RANDOM_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    [getattr(torch, name) for name in _FUNCTIONS.split()] + [getattr(torch.Tensor, name) for name in _METHODS.split()]
)


class RngScope(TorchFunctionMode):
    """Context in which this thread draws from `generator`, except in calls that pass their own generator."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in RANDOM_FUNCTIONS and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)
