"""GradientSteps: the two halves of a gradient step, captured as CUDA graphs on a GPU and called as they are on a CPU.

    find(batch)     zero, forward and backward: the gradient of a minibatch
    apply()         clipping and the optimiser's step; between the two, ranks average their gradients

A graph reads fixed addresses, so a minibatch is copied to buffers of its size first, and numbers that change during training
are tensors (`variable`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from fledge.core.cuda_graphs import CudaGraphs, Function

SIZES = 4  # sizes of minibatches whose graphs are kept: a schedule of sizes never comes back to an earlier one

Batch = dict[str, Tensor]


class GradientSteps:
    """Runs a learner's functions `find` and `apply`; `allowed` as in CudaGraphs."""

    def __init__(
        self, device: torch.device, find: Callable[[Batch], None], apply: Function, allowed: bool = True
    ) -> None:
        self.graphs = CudaGraphs(device, allowed=allowed)
        self._find, self._apply = find, apply
        self._by_size: OrderedDict[tuple[torch.Size, ...], tuple[Batch, Function]] = OrderedDict()
        self.forget()

    def forget(self) -> None:
        """Drop all graphs, as tensors that they read have been replaced."""
        self._by_size.clear()
        self.apply: Function = self.graphs.captured(self._apply)

    def variable(self, value: float, place: float | Tensor | None = None) -> float | Tensor:
        """Return a number for the captured functions: a tensor on a GPU, which is `place` if given; else the number itself."""
        if self.graphs.device.type != "cuda":
            return value
        if isinstance(place, Tensor):
            return place.fill_(value)
        return torch.full((), value, device=self.graphs.device)

    def find(self, batch: Batch) -> None:
        """Call `find` with a minibatch."""
        if not self.graphs.enabled:
            return self._find(batch)
        size = tuple(entry.shape for entry in batch.values())
        if size not in self._by_size:
            self._by_size[size] = (batch, self.graphs.captured(partial(self._find, batch)))
            while len(self._by_size) > SIZES:
                self._by_size.popitem(last=False)
        fixed, captured = self._by_size[size]
        if fixed is not batch:
            torch._foreach_copy_(list(fixed.values()), list(batch.values()))
        captured()
