"""Drawing from a generator of one's own, whatever code does the drawing.

torch's global generator belongs to the process: two threads that draw from it get numbers that depend on who came first.
`RngScope` redirects the draws of the thread that enters it, and of no other, to a generator; the global one stays
untouched. It reaches what is called from Python and takes a generator (torch.distributions, `randn_like`, `normal_`, ...);
dropout does not take one.
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
DRAWS: frozenset[Callable[..., Any]] = frozenset(
    [getattr(torch, name) for name in _FUNCTIONS.split()] + [getattr(torch.Tensor, name) for name in _METHODS.split()]
)


class RngScope(TorchFunctionMode):
    """While entered, this thread's draws come from `generator`, unless a call names one itself."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DRAWS and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)
