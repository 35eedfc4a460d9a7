"""Programs: an env's recorded launches that write to one set of the caller's buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from fledge.core.cuda_graphs import CudaGraphs, Function
from fledge.envs.launch import Program

Tensors = dict[tuple[str, ...], torch.Tensor]  # buffers by path


@dataclass
class Programs:
    """Recorded launches that write to one set of buffers. Keeps the buffers alive, so that their addresses stay valid."""

    tensors: Tensors
    advance: Program  # move every env by one decision, and write the results
    restart: Program  # begin the next episode where one ended, and observe it
    observe: Program  # observe every env
    captured: dict[str, Function] = field(default_factory=dict, init=False)  # parts of a step, as CUDA graphs

    def ended(self) -> torch.Tensor:
        return self.tensors[("terminated",)] | self.tensors[("truncated",)]

    def run(self, part: Callable[[Programs], None], graphs: CudaGraphs | None) -> None:
        """Run a part of a step, a method of the env; with `graphs` of a GPU, it is captured for these buffers."""
        if graphs is None or not graphs.enabled:
            return part(self)
        name = part.__name__
        if name not in self.captured:
            self.captured[name] = graphs.captured(partial(part, self))
        self.captured[name]()
