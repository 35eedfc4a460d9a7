"""CUDA graphs on the device without a GPU (`host_cuda`): record what a capture issues, and replay it.

A capture runs the operators and Warp launches to know their results' shapes, and then undoes them, as a GPU only records:
every tensor written, and the random generators, are restored, and memory that the capture allocated is filled with NaN. A
replay runs the recorded operators again on the recorded tensors, draws new random numbers, and fills the graph's own memory
with NaN again. So a value that Python computed during the capture stays as it was then, and reading the graph's memory later
gives NaN.

Not allowed in a capture, as on CUDA: waiting for the device, copies through memory that is not pinned, generators that are not
registered, and Warp launches on another stream than the one that is captured.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.device import host_cuda

active: dict[int, Graph] = {}  # graphs under capture by their thread
replays = 0  # of all graphs in this process
captures = 0


def forbid(what: str, thread: int | None = None) -> None:
    """Raise an error if this thread (or `thread`) is capturing a stream."""
    if (thread or threading.get_ident()) in active:
        raise RuntimeError(f"operation not permitted when stream is capturing: {what} at {host_cuda.place()}")


class Graph:
    """Stand-in for torch.cuda.CUDAGraph."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.steps: list[Any] = []  # functions that repeat one operator or launch each
        self.before: dict[
            int, tuple[Any, torch.Tensor]
        ] = {}  # memory written by the capture: a tensor of it, its bytes before
        self.own: dict[int, torch.Tensor] = {}  # memory that the capture allocated, by address
        self.generators = [torch.default_generator]
        self.states: list[tuple[torch.Generator, torch.Tensor]] = []  # of those that the capture drew from, before
        self.recorder = Recorder(self)

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
        global captures
        self.thread = threading.get_ident()
        assert self.thread not in active, "a capture is under way already"
        assert torch.cuda.current_stream() is not torch.cuda.default_stream(), "the default stream cannot be captured"
        active[self.thread], captures = self, captures + 1
        self.stream = torch.cuda.current_stream()
        self.recorder.__enter__()

    def capture_end(self) -> None:
        self.recorder.__exit__(None, None, None)
        del active[self.thread]
        for place, content in reversed(self.before.values()):  # a Warp array may be a part of a tensor
            _bytes(place).copy_(content)
        self.before.clear()
        for generator, state in self.states:
            generator.set_state(state)
        self.states.clear()
        self._spoil()

    def replay(self) -> None:
        global replays
        forbid("replay of another graph")
        replays += 1
        host_cuda._count_launch("graph")
        with _disable_current_modes(), torch.no_grad():
            for step in self.steps:
                step()
            self._spoil()

    def reset(self) -> None:
        self.steps.clear()

    def pool(self) -> int:
        return 0

    # ---- called while the capture is under way -------------------------------------------------------------------------

    def will_write(self, tensor: Any) -> None:
        """Keep the memory of a tensor as it was before the capture."""
        key = tensor.untyped_storage().data_ptr()
        if key and key not in self.before and key not in self.own:
            place = tensor.detach()
            self.before[key] = (place, _bytes(place).clone())

    def will_draw(self, generator: torch.Generator) -> None:
        """Keep the state of a random generator as it was before the capture."""
        if all(generator._cdata != known._cdata for known, _ in self.states):
            self.states.append((generator, generator.get_state()))

    def add_launch(self, command: Any) -> None:
        self.steps.append(command.launch)

    def add_operator(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.is_cuda]
        for tensor in results:
            key = tensor.untyped_storage().data_ptr()
            if key and key not in given and key not in self.before:
                self.own[key] = tensor.detach()
        if func._schema.name.startswith(("aten::empty", "aten::new_empty", "aten::detach", "aten::lift_fresh")):
            return
        args, kwargs = tree_map_only(torch.Tensor, lambda t: t.detach(), (args, kwargs))
        places = [tensor.detach() for tensor in results]

        def repeat() -> None:
            again = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, torch.Tensor) and t.is_cuda]
            for place, value in zip(places, again, strict=True):
                if place.data_ptr() != value.data_ptr():
                    place.copy_(value)

        self.steps.append(repeat)

    def _spoil(self) -> None:
        """Overwrite the graph's own memory, as other graphs of the pool would."""
        for tensor in self.own.values():
            _bytes(tensor).fill_(255)  # NaN in every floating-point format


class Recorder(TorchDispatchMode):
    """Records the operators of a capture."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        on_gpu = any(each.is_cuda for each in tensors) or str(kwargs.get("device") or "").startswith("cuda")
        if not on_gpu:
            return func(*args, **kwargs)
        name, returns = func._schema.name, func._schema.returns
        self._check(name, args, kwargs)
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for each in tree_leaves(value):
                    self.graph.will_write(each)
        for argument in func._schema.arguments:
            if argument.name in kwargs and argument.alias_info is not None and argument.alias_info.is_write:
                for each in tree_leaves(kwargs[argument.name]):
                    self.graph.will_write(each)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.graph.will_draw(kwargs.get("generator") or torch.default_generator)
        result = func(*args, **kwargs)
        is_view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if not is_view:
            self.graph.add_operator(func, args, kwargs, result)
        return result

    def _check(self, name: str, args: Any, kwargs: Any) -> None:
        def forbid(what: str) -> None:  # also in the thread of a backward pass
            globals()["forbid"](what, self.graph.thread)

        if name in host_cuda.WAITS:
            forbid(host_cuda.WAITS[name])
        generator = kwargs.get("generator")
        if generator is not None and all(generator._cdata != known._cdata for known in self.graph.generators):
            forbid("a random generator that is not registered")
        if name in ("aten::index", "aten::index_put_", "aten::index_put", "aten::_unsafe_index"):
            for index in args[1]:
                if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                    forbid("a size is read: indexing with a mask")
        if name == "aten::copy_" and args[0].device.type != args[1].device.type:
            host = args[1] if args[0].is_cuda else args[0]
            if not host.is_pinned():
                forbid("a copy from or to memory that is not pinned")
        target = kwargs.get("device")
        if name == "aten::_to_copy" and target is not None and torch.device(target).type != args[0].device.type:
            forbid("a copy to another device")


def _bytes(tensor: Any) -> torch.Tensor:
    """Return the bytes of a tensor's storage, or of a Warp array, as a CPU tensor."""
    import warp as wp

    if isinstance(tensor, torch.Tensor):
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    else:
        ends = ((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True))
        address, size = tensor.ptr, sum(ends) + wp.types.type_size_in_bytes(tensor.dtype) if tensor.size else 0
    if not address or not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


def launched(command: Any, stream: Any) -> None:
    """Record a Warp launch, before it runs, if a stream is being captured; `stream` is the one that it is queued on."""
    capturing = active.get(threading.get_ident())
    if capturing is None:
        return
    if stream is not capturing.stream:
        forbid(f"{command.name} on another stream than the captured one")
    for array in _arrays((*command.values[0], *command.values[1])):
        if array.ptr and array.size:
            key = array.ptr
            if key not in capturing.before:
                capturing.before[key] = (array, _bytes(array).clone())
    capturing.add_launch(command.command)


def _arrays(values: Any) -> list[Any]:
    import warp as wp

    found = []
    for value in values:
        if isinstance(value, wp._src.types.array):
            found.append(value)
        elif hasattr(value, "_cls") and hasattr(value._cls, "vars"):
            found += _arrays([getattr(value, name) for name in value._cls.vars])
    return found
