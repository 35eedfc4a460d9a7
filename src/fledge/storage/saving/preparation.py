"""Preparation: estimate the size of a saver's first checkpoint, so that its memory is ready before the first save.

Parameters are counted when modules register them, which is long before the first save; an optimiser's first step, or `attach`,
tells which of them are trained. Adam's moments are assumed, which are twice as large as the parameters.
"""

from __future__ import annotations

import contextlib
import threading
import weakref

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from fledge.storage.format.leaves import PLAIN_TENSORS
from fledge.storage.saving.pipeline import Pipeline
from fledge.storage.saving.staging import parameters_of
from fledge.storage.saving.staging_buffer import padded


class Preparation:
    """Estimates from models and optimisers how large the first checkpoint will be, and has the pipeline prepare memory.

    Args:
        pipeline: The pipeline of the saver.
        watch: Count the parameters of models that are built from now on. No effect if there is a GPU, because models are
            built on the CPU and then moved to the GPU.
    """

    def __init__(self, pipeline: Pipeline, watch: bool) -> None:
        self._pipeline = pipeline
        self._built: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()  # bytes by module
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._counted = self._grown = 0  # bytes of parameters in `_built` at the last count, and since
        self._hook = None
        if watch and not torch.cuda.device_count():
            self._hook = register_module_parameter_registration_hook(self._on_parameter)

    def expect(self, optimizer: torch.optim.Optimizer) -> None:
        """Prepare memory for a first checkpoint with the CPU parameters of this optimiser and of all earlier ones.

        Do nothing after the first save, or if `expect` was called with this optimiser before.
        """
        if not self._pipeline.before_first_save or optimizer in self._optimizers:
            return
        with self._lock:  # several threads may train
            self._optimizers.add(optimizer)
            parameters = [parameter for known in self._optimizers for parameter in parameters_of(known)]
        cpu = (p for p in parameters if p.device.type == "cpu" and p.layout is torch.strided)
        self._pipeline.prepare(expected_bytes(sum(padded(p.nbytes) for p in cpu)))

    def _on_parameter(self, module: torch.nn.Module, name: str, parameter: torch.Tensor) -> None:
        """Count a module's new parameter, and prepare memory for all models that still exist.

        The sum over models is computed only when it may have grown by an eighth. Errors must not stop the user's program.
        """
        if not self._pipeline.before_first_save:
            return
        with contextlib.suppress(RuntimeError, TypeError):  # another thread builds a model; a module cannot be hashed
            if type(parameter) in PLAIN_TENSORS and parameter.device.type == "cpu":
                self._built[module] = self._built.get(module, 0) + padded(parameter.nbytes)
                self._grown += padded(parameter.nbytes)
                if 8 * self._grown > self._counted:
                    self._grown, self._counted = 0, sum(self._built.values())
                    self._pipeline.prepare(expected_bytes(self._counted))

    def stop(self) -> None:
        """Stop counting the parameters of new models."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def expected_bytes(parameters: int) -> int:
    """Return the likely size in bytes of a checkpoint with `parameters` bytes of parameters and Adam's moments of them."""
    return 3 * parameters + parameters // 8 + 2**16 if parameters else 0
