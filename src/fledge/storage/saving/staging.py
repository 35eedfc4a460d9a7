"""Staging: copy the state's bytes into a staging buffer, off the training thread where that is safe.

`split` separates the leaves that only the `step()` of an attached optimiser changes. These may be copied in the background, as
long as the next step waits. torch counts in-place changes of a tensor: a count that differs after the copy means that other
code changed the tensor.
`Stager.copy` copies CPU memory by memmove on one thread, and large tensors without the GIL; torch's own copy would start
worker threads that compete with training. CUDA memory goes through pinned buffers on a separate stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from fledge.core.errors import InputError
from fledge.storage.format.leaves import PLAIN_TENSORS, TORCH_DTYPES, Leaf, entry_error, extent, is_dtensor
from fledge.storage.saving.staging_buffer import StagingBuffer

SMALL = 2**16  # bytes; a shorter copy keeps the GIL, because getting it back from a busy thread takes up to 5 ms
_move_small = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
Watched = list[tuple[torch.Tensor, int]]


def split(leaves: Sequence[Leaf], attached: Sequence[torch.optim.Optimizer]) -> tuple[list[Leaf], list[Leaf], Watched]:
    """Return the leaves to copy now, the leaves to copy in the background, and the tensors of the background leaves.

    The next step of an attached optimiser waits until the background leaves are copied. Each tensor comes with torch's
    version count, which grows with every change in place.
    """
    places: dict[int, int] = {}  # size of memory that only a step changes, by its address
    for optimizer in attached:
        places |= _places(parameters_of(optimizer)) | _places(_state_tensors(optimizer))
    now: list[Leaf] = []
    later: list[Leaf] = []
    watched: Watched = []
    for leaf in leaves:
        # Dense and from the same first byte: a longer tensor may reach into memory that other code changes.
        owned = leaf.place and leaf.nbytes <= places.get(leaf.place, -1)
        if not owned or (leaf.storage is None and not leaf.source.is_contiguous()):
            now.append(leaf)
            continue
        # A tensor object of our own: assigning to the caller's `data` (module.half()) does not affect it.
        if type(leaf.source) is not torch.Tensor:
            leaf.source = leaf.source.detach()
        later.append(leaf)
        try:
            watched.append((leaf.source, leaf.source._version))
        except RuntimeError:  # inference tensors have no count
            continue
    return now, later, watched


def _places(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return a dict from the address of each tensor's first byte to its size in bytes; leave out tensors without memory."""
    found = {}
    for tensor in tensors:
        try:
            found[tensor.data_ptr()] = tensor.nbytes
        except RuntimeError:  # sparse, or in a transform
            continue
    return found


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters of an optimiser, except tensor subclasses that manage their own memory; see `_in_memory`."""
    return _in_memory(parameter for group in optimizer.param_groups for parameter in group["params"])


def _state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the tensors of an optimiser's state, with the same exceptions; skip the plain values of custom optimisers."""
    states = (state for state in optimizer.state.values() if isinstance(state, dict))
    return _in_memory(value for state in states for value in state.values() if isinstance(value, torch.Tensor))


def _in_memory(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors, except subclasses that manage their own memory; for a DTensor, yield this rank's part."""
    for tensor in tensors:
        if type(tensor) not in PLAIN_TENSORS:
            tensor = tensor._local_tensor if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
            if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
                continue
        yield tensor


class Stager:
    """Copies leaves into a staging buffer, from CPU and CUDA."""

    def __init__(self) -> None:
        self._stream = functools.cache(torch.cuda.Stream)  # one per device

    def prepare(self, leaves: Sequence[Leaf]) -> dict[torch.device, torch.cuda.Event]:
        """Record and return an event on the caller's stream of each CUDA device; `copy` waits for these events."""
        if not torch.cuda.is_initialized():
            return {}
        devices = {leaf.source.device for leaf in leaves if leaf.kind == "tensor" and leaf.source.is_cuda}
        return {device: torch.cuda.current_stream(device).record_event() for device in devices}

    def copy(self, leaves: Sequence[Leaf], buffer: StagingBuffer, events: dict[torch.device, torch.cuda.Event]) -> None:
        """Copy every leaf into the next free part of the buffer, and set its `data` to that part; return when done."""
        devices = {leaf.source.device for leaf in leaves if events and leaf.kind == "tensor" and leaf.source.is_cuda}
        for device in devices:  # only these: waiting for another GPU's work would stall the caller
            self._stream(device).wait_event(events[device])
        for leaf in leaves:
            leaf.data, address = buffer.take(leaf.nbytes)
            if leaf.nbytes:
                self._copy_one(leaf, leaf.data, address)
        for device in devices:
            self._stream(device).synchronize()
        for leaf in leaves:
            leaf.source = leaf.storage = None

    def _copy_one(self, leaf: Leaf, data: np.ndarray, address: int) -> None:
        """Copy the bytes of a leaf to `data`, whose first byte is at `address`."""
        source, storage = leaf.source, leaf.storage
        if storage is not None and source.is_cpu and not (source.is_conj() or source.is_neg()):
            start = storage.data_ptr()
            if not start <= leaf.place <= start + storage.nbytes() - leaf.nbytes:
                raise _freed(leaf)
            (ctypes.memmove if leaf.nbytes > SMALL else _move_small)(address, leaf.place, leaf.nbytes)
        elif leaf.kind == "bytes":
            data[:] = np.frombuffer(source, np.uint8)
        elif leaf.kind != "tensor":
            np.copyto(data.view(source.dtype).reshape(source.shape), source)
        elif source.data_ptr() != leaf.place or source.untyped_storage().nbytes() < extent(source):
            raise _freed(leaf)
        else:
            target = torch.from_numpy(data).view(TORCH_DTYPES[leaf.dtype]).view(leaf.shape)
            cuda = source.is_cuda
            with torch.cuda.stream(self._stream(source.device)) if cuda else contextlib.nullcontext():
                target.copy_(source.detach(), non_blocking=cuda)


def _freed(leaf: Leaf) -> InputError:
    return entry_error(leaf.path, "was freed or resized before it was copied: call fence() before you do that.")
