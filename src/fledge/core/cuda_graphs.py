"""CUDA graphs: a function that repeats the same work on the same buffers is recorded once, and then costs one launch.

    graphs = CudaGraphs(device)
    step = graphs.captured(function)       on the CPU, `function` itself
    step()                                 1st call: runs; 2nd: is captured, then replayed; later: only replayed

A captured function takes and returns nothing. It must
- read and write only tensors that stay at their addresses, and keep no other tensor for later: memory that it allocates
  belongs to the graph, and the next replay overwrites it;
- read values that change (learning rates, masks, counters) from tensors of the device, as Python runs in the first two calls
  only;
- not wait for the device, and launch all its work on torch's current stream.

Random numbers follow torch's generators, as without a graph: a replay draws the next numbers of the default generator and of
those passed as `generators`, so a run resumes exactly from their states.

Where a capture fails, a sentence is logged, and the function runs without graphs from then on. `FLEDGE_CUDA_GRAPHS=0` in the
environment switches all graphs off.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("fledge")
Function = Callable[[], None]


class CudaGraphs:
    """Graphs of one owner, which replays them one after the other: they share memory and a stream to capture on.

    Args:
        generators: Random generators that the functions draw from, besides torch's default one.
        allowed: Whether the functions keep to what the module's docstring says; if not, they run as they are.
    """

    def __init__(
        self, device: torch.device | str, generators: Iterable[torch.Generator] = (), allowed: bool = True
    ) -> None:
        self.device, self.generators = torch.device(device), list(generators)
        switched_on = os.environ.get("FLEDGE_CUDA_GRAPHS", "1") != "0"
        self.enabled = allowed and switched_on and self.device.type == "cuda"
        self._pool: Any = None
        self._stream: Any = None

    def captured(self, function: Function) -> Function:
        """Return a function that does the same as `function`, captured if the device is a GPU."""
        return Captured(self, function) if self.enabled else function

    def capture(self, function: Function) -> Any:
        """Return the graph of a function that has run before; None if it cannot be captured, which is logged."""
        if self._stream is None:
            self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(self.device)
        current, graph = torch.cuda.current_stream(self.device), torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        self._stream.wait_stream(current)
        collects = gc.isenabled()
        gc.disable()  # freeing another graph during a capture is an error
        try:
            with torch.cuda.stream(self._stream):
                # other threads may copy to the host meanwhile: only this thread is restricted
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    function()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            self.enabled = False
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            log.warning("CUDA graphs are off for a part of this run, which is slower: %s", reason)
            return None
        finally:
            if collects:
                gc.enable()
        current.wait_stream(self._stream)
        return graph


class Captured:
    """A function that runs once, is captured at its second call, and is replayed from then on."""

    def __init__(self, graphs: CudaGraphs, function: Function) -> None:
        self.graphs, self.function = graphs, function
        self.graph: Any = None
        self.has_run = False  # the first call loads kernels and allocates what stays

    def __call__(self) -> None:
        if self.graph is None and self.has_run and self.graphs.enabled:
            self.graph = self.graphs.capture(self.function)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.function()
            self.has_run = True


def addresses(tensors: Iterable[Tensor]) -> tuple[tuple[int, torch.Size], ...]:
    """Return a key that changes if a tensor moves in memory or changes its shape, so that graphs of it are outdated."""
    return tuple((tensor.data_ptr(), tensor.shape) for tensor in tensors)
