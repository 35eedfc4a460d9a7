"""All parameters of a module in one flat tensor, and all gradients in another.

Ranks average gradients with one collective operation, the norm is one reduction, and the optimiser updates one tensor.
The module's own parameters and gradients stay usable, as views of the flat tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fledge.learn.shared_average import ExchangedAverage, SharedAverage, connect_average


class FlatParameters:
    """Flat tensors of all trainable parameters of a module (`values`) and of their gradients (`grads`)."""

    def __init__(self, module: nn.Module) -> None:
        parameters = [p for p in module.parameters() if p.requires_grad]
        flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.values, self.grads = nn.Parameter(flat), torch.zeros_like(flat)
        self.values.grad = self.grads
        self._connected = False  # all ranks connect at their first average
        self._average: SharedAverage | ExchangedAverage | None = None
        self._places: dict[nn.Parameter, slice] = {}
        offset = 0
        for p in parameters:
            self._places[p] = part = slice(offset, offset + p.numel())
            p.data = self.values.data[part].view_as(p)
            p.grad = self.grads[part].view_as(p)
            offset += p.numel()

    def zero_grad(self) -> None:
        self.grads.zero_()

    def average_grads(self, ranks: int) -> None:
        """Average the gradients over all ranks, in place."""
        if ranks > 1 and not self._connected:
            self._connected, self._average = True, connect_average(self.grads)
        if self._average is not None:
            self._average(self.grads)
        else:
            average_over_ranks(self.grads, ranks)

    def part(self, module: nn.Module) -> Tensor:
        """Return the part of the flat gradients that belongs to a submodule, whose parameters must be adjacent."""
        places = [self._places[p] for p in module.parameters()]
        return self.grads[places[0].start : places[-1].stop]

    def clip_grad_norm(self, limit: float, parts: Sequence[Tensor] | None = None) -> Tensor:
        """Scale gradients so that their norm is at most `limit`; return the norm of all gradients before scaling.

        Args:
            parts: Parts of the gradients (see `part`) to scale, each by its own norm; if None, scale all by the common norm.
        """
        norm = torch.linalg.vector_norm(self.grads)
        if parts is None:
            self.grads.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
        for part in parts or ():
            part.mul_((limit / (torch.linalg.vector_norm(part) + 1e-6)).clamp(max=1.0))
        return norm


def average_over_ranks(values: Tensor, ranks: int) -> Tensor:
    """Average a tensor over all ranks, in place, and return it."""
    if ranks > 1:
        dist.all_reduce(values)
        values.div_(ranks)
    return values


def copy_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's state_dict with copies of its tensors."""
    state = optimizer.state_dict()
    return {**state, "state": {k: {n: t.clone() for n, t in v.items()} for k, v in state["state"].items()}}
