"""Copies between the host and a CUDA device for which the host does not wait: they go through pinned memory.

    fetch = Fetch([loss, counts])          the copies are queued; host and device go on
    loss, counts = fetch.get()             waits only if they are not complete

    batch = to_device(batch, device)       one copy on a stream of its own, beside the work that is queued

On the CPU both return the tensors themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

ALIGNED = 16  # bytes: tensors in one buffer begin at multiples


class Fetch:
    """Tensors on their way to the host; other values, such as numbers, stay as they are."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._event: Any = None
        self._tensors = [self._queue(tensor) for tensor in tensors]
        if moved := [tensor.device for tensor in tensors if _is_away(tensor)]:
            self._event = torch.cuda.current_stream(moved[0]).record_event()

    @staticmethod
    def _queue(tensor: Any) -> Any:
        if not _is_away(tensor):
            return tensor
        tensor = tensor.detach()
        return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)

    @property
    def ready(self) -> bool:
        """Whether `get` returns without waiting."""
        return self._event is None or bool(self._event.query())

    def get(self) -> list[Any]:
        """Return the values, with all tensors on the CPU."""
        if not self.ready:
            self._event.synchronize()
        self._event = None
        return self._tensors


def to_host(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping (dict or TensorDict, may be nested) with all its CUDA tensors on the CPU, after a single wait."""
    fetches: list[Fetch] = []

    def queue(value: Any) -> Any:
        if hasattr(value, "keys"):
            return {name: queue(value[name]) for name in value.keys()}  # noqa: SIM118 - a TensorDict is no dict
        if _is_away(value):
            fetches.append(Fetch([value]))
            return fetches[-1]
        return value

    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: take(each) for name, each in value.items()}
        return value.get()[0] if isinstance(value, Fetch) else value

    queued = queue(data)
    if fetches:
        fetches[-1].get()  # then all are complete
    return dict(take(queued))


def to_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return CPU tensors on a device, where they share one buffer."""
    if device.type != "cuda":
        return {name: tensor.to(device) for name, tensor in tensors.items()}
    ends, size = {}, 0
    for name, tensor in tensors.items():
        ends[name] = slice(size, size + tensor.nbytes)
        size += -(-tensor.nbytes // ALIGNED) * ALIGNED

    def views(buffer: Tensor) -> dict[str, Tensor]:
        return {name: buffer[ends[name]].view(t.dtype).view(t.shape) for name, t in tensors.items()}

    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    for name, place in views(pinned).items():
        place.copy_(tensors[name])
    copies, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copies):
        moved = pinned.to(device, non_blocking=True)
    current.wait_stream(copies)
    moved.record_stream(current)
    return views(moved)


@functools.cache
def _copy_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)


def _is_away(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_cuda
