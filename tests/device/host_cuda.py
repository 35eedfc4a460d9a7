"""A CUDA device without a GPU: tensors say `cuda:0`, and are computed on the CPU with the same values.

`host_cuda.cpp` redirects PyTorch's CUDA operators to the CPU ones, on the same bytes. This module loads it, stands in for the
functions of `torch.cuda` and for Warp's CUDA device, and records what a program does to the device:

    ops        operators that would launch kernels on the GPU
    launches   Warp kernels
    syncs      places where the host would wait for the GPU: reading a value, blocking copies, results of unknown size
    faults     arrays of the wrong device given to a Warp kernel (PyTorch's own operators raise, as on CUDA)

Usage, before torch is imported for the first time:

    from tests.device import host_cuda
    host_cuda.start()
    with host_cuda.recording() as seen:
        ...
    seen.syncs  # Counter of (kind, "file.py:12 < other.py:3")

It says nothing about speed, streams or the GPU's own rounding.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("host_cuda.cpp")
MEMORY = 24 * 2**30  # bytes that the device claims to have
OURS = "/fledge/"


@dataclass
class Record:
    """Operators, launches and waits of a block of code."""

    ops: collections.Counter[str] = field(default_factory=collections.Counter)
    launches: collections.Counter[str] = field(default_factory=collections.Counter)
    syncs: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)


_record: Record | None = None
_current = threading.local()  # `stream` of torch and `warp_stream` of each thread
faults: list[str] = []


def available() -> str:
    """Return why the device cannot be had here, or ""."""
    if sys.platform != "linux":
        return "needs Linux"
    return "" if shutil.which("g++") else "needs g++"


def build() -> Path:
    """Compile `host_cuda.cpp` against the installed torch, once for each version of either; return the library."""
    torch_folder = Path(importlib.util.find_spec("torch").origin).parent  # type: ignore[union-attr, arg-type]
    version = (torch_folder / "version.py").read_bytes()
    key = hashlib.sha256(SOURCE.read_bytes() + version + sysconfig.get_platform().encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"fledge_host_cuda_{key}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.so"
        include = [f"-I{torch_folder / 'include'}", f"-I{torch_folder / 'include/torch/csrc/api/include'}"]
        link = [f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"]
        command = ["g++", "-O1", "-std=c++20", "-shared", "-fPIC", "-w", *include, str(SOURCE), "-o", str(made), *link]
        subprocess.run(command, check=True)
        shutil.copy(made, library.with_suffix(".new"))
        library.with_suffix(".new").replace(library)
    return library


def start() -> None:
    """Make `cuda:0` available to this process; must be called before torch is imported."""
    assert "torch" not in sys.modules, "host_cuda.start() must come before the first import of torch"
    library = build()
    lib = Path(importlib.util.find_spec("torch").origin).parent / "lib"  # type: ignore[union-attr, arg-type]
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(lib / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library))
    _patch_torch()
    _patch_warp()


def cpu_view(tensor: Any) -> Any:
    """Return a CPU tensor on the bytes of a tensor of the device."""
    import torch

    if not tensor.is_cuda:
        return tensor
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    data = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(data, dtype=torch.uint8)
    flat = flat.view(tensor.dtype) if storage.nbytes() % tensor.element_size() == 0 else flat
    found = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    found._device_tensor = tensor  # type: ignore[attr-defined]
    return found


# ---- torch ---------------------------------------------------------------------------------------------------------------


class Stream:
    """A stream of the device: work on it is done at once."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.cuda_stream = device, 0

    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def record_event(self, event: Any = None) -> Event:
        return event or Event()

    def synchronize(self) -> None:
        note("stream.synchronize()")

    def query(self) -> bool:
        return True


class Event:
    """An event of the device; it has always happened."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        note("event.synchronize()")

    def elapsed_time(self, other: Any) -> float:
        note("event.elapsed_time()")
        return 1.0


def _patch_torch() -> None:
    import torch

    from tests.device import host_graphs

    cuda, stream = torch.cuda, Stream()

    @contextlib.contextmanager
    def use_stream(given: Any) -> Iterator[Any]:
        before = getattr(_current, "stream", stream)
        _current.stream = given or before
        try:
            yield given
        finally:
            _current.stream = before

    replaced: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: "no GPU: computed on the CPU",
        "get_device_capability": lambda device=None: (8, 9),
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda state, device="cuda": torch.set_rng_state(state),
        "synchronize": lambda device=None: note("torch.cuda.synchronize()"),
        "current_stream": lambda device=None: getattr(_current, "stream", stream),
        "default_stream": lambda device=None: stream,
        "stream": use_stream,
        "device": lambda given: contextlib.nullcontext(given),
        "Stream": Stream,
        "Event": Event,
        "is_current_stream_capturing": lambda: threading.get_ident() in host_graphs.active,
        "CUDAGraph": host_graphs.Graph,
        "graph_pool_handle": lambda: (0, 0),
    }
    for name, function in replaced.items():
        setattr(cuda, name, function)
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign, assignment]
    copy_storage = torch.UntypedStorage.clone

    def clone_storage(self: Any) -> Any:
        if self.device.type != "cuda":
            return copy_storage(self)
        return torch.empty(0, dtype=torch.uint8, device="cuda").set_(self).clone().untyped_storage()

    torch.UntypedStorage.clone = clone_storage  # type: ignore[method-assign]
    numpy = torch.Tensor.numpy

    def to_numpy(self: Any, **options: Any) -> Any:
        if self.is_cuda:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return numpy(self, **options)

    torch.Tensor.numpy = to_numpy  # type: ignore[method-assign, assignment]


# ---- Warp ----------------------------------------------------------------------------------------------------------------


class WarpDevice:
    """Warp's CUDA device: arrays and launches of it are those of the CPU."""

    is_cuda, is_cpu, ordinal, alias = True, False, 0, "cuda:0"

    def __str__(self) -> str:
        return "cuda:0"


class Command:
    """A recorded launch, which is counted when it runs."""

    def __init__(self, name: str, command: Any) -> None:
        self.name, self.command = name, command

    def launch(self, stream: Any = None) -> None:
        from tests.device import host_graphs

        _count_launch(self.name)
        host_graphs.launched(self, stream or getattr(_current, "warp_stream", None))
        self.command.launch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.command, name)


def _patch_warp() -> None:
    import warp as wp

    wp.config.quiet = True
    wp.init()
    device = WarpDevice()
    real = {name: getattr(wp, name) for name in ("zeros", "from_torch", "launch", "get_device")}

    def is_ours(given: Any) -> bool:
        return given is device or str(given).startswith("cuda")

    def mark(array: Any) -> Any:
        array._on_device = True
        return array

    def get_device(given: Any = None) -> Any:
        return device if given is not None and is_ours(given) else real["get_device"](given)

    def from_torch(tensor: Any, dtype: Any = None, **options: Any) -> Any:
        array = real["from_torch"](cpu_view(tensor), dtype=dtype, **options)
        array._tensor = tensor  # keeps the memory
        return mark(array) if tensor.is_cuda else array

    init = wp.array.__init__

    def init_array(self: Any, *args: Any, device: Any = None, **options: Any) -> None:
        ours = device is not None and is_ours(device)
        init(self, *args, device="cpu" if ours else device, **options)
        if ours:
            mark(self)

    def zeros(*args: Any, device: Any = None, **options: Any) -> Any:
        if device is not None and is_ours(device):
            return mark(real["zeros"](*args, device="cpu", **options))
        return real["zeros"](*args, device=device, **options)

    def launch(
        kernel: Any,
        dim: Any,
        inputs: Any = (),
        outputs: Any = (),
        device: Any = None,
        record_cmd: bool = False,
        **options: Any,
    ) -> Any:
        name = f"{kernel.module.name.removeprefix('fledge.')}.{kernel.key}"
        ours = device is not None and is_ours(device)
        for value in (*inputs, *outputs):
            _check(value, ours, name)
        if not ours:
            return real["launch"](kernel, dim, inputs, outputs, device=device, record_cmd=record_cmd, **options)
        stream = options.pop("stream", None)
        command = Command(name, real["launch"](kernel, dim, inputs, outputs, device="cpu", record_cmd=True, **options))
        command.values = (inputs, outputs)  # type: ignore[attr-defined]
        return command if record_cmd else command.launch(stream)

    wp.get_device, wp.from_torch, wp.zeros, wp.launch = get_device, from_torch, zeros, launch
    wp.array.__init__ = init_array
    wp.stream_from_torch = lambda stream=None: stream

    @contextlib.contextmanager
    def scoped_stream(stream: Any, *_: Any, **__: Any) -> Iterator[Any]:
        before = getattr(_current, "warp_stream", None)
        _current.warp_stream = stream
        try:
            yield stream
        finally:
            _current.warp_stream = before

    wp.ScopedStream = scoped_stream


def _check(value: Any, on_gpu: bool, kernel: str) -> None:
    """Note a fault if a kernel's argument is an array of the other device, also inside structs."""
    import warp as wp

    if isinstance(value, wp._src.types.array):
        if value.size and getattr(value, "_on_device", False) != on_gpu:
            here, there = ("cuda:0", "cpu") if on_gpu else ("cpu", "cuda:0")
            faults.append(f"{kernel} runs on {here} with an array of {there}, {value.dtype.__name__} {value.shape}")
    elif hasattr(value, "_cls") and hasattr(value._cls, "vars"):
        for name in value._cls.vars:
            _check(getattr(value, name), on_gpu, f"{kernel} ({name})")


def _count_launch(name: str) -> None:
    if _record is not None:
        _record.launches[name] += 1


# ---- recording -----------------------------------------------------------------------------------------------------------


def place() -> str:
    """Return the two innermost places of Fledge's code on the stack."""
    rows = [
        f"{frame.filename.rpartition(OURS)[2]}:{frame.lineno}"
        for frame in traceback.extract_stack()
        if OURS in frame.filename and "/site-packages/" not in frame.filename
    ]
    return " < ".join(reversed(rows[-2:])) or "outside Fledge"


def note(kind: str) -> None:
    """Record that the host waits for the device here, which a capture does not allow."""
    from tests.device import host_graphs

    host_graphs.forbid(kind)
    if _record is not None:
        _record.syncs[(kind, place())] += 1


WAITS = {
    "aten::_local_scalar_dense": "a value is read: item(), bool(), float()",
    "aten::nonzero": "a size is read: nonzero()",
    "aten::masked_select": "a size is read: masked_select()",
    "aten::_unique2": "a size is read: unique()",
    "aten::unique_dim": "a size is read: unique()",
    "aten::unique_consecutive": "a size is read: unique_consecutive()",
    "aten::bincount": "a value is read: bincount()",
    "aten::equal": "a value is read: equal()",
    "aten::multinomial": "values are checked: multinomial()",
    "aten::is_nonzero": "a value is read: bool()",
}
NO_KERNEL = (
    "aten::empty",
    "aten::new_empty",
    "aten::detach",
    "aten::lift_fresh",
    "aten::_local_scalar_dense",
    "aten::set_",
)
DEFERRED = ("aten::to", "aten::_to_copy")


def _observer() -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Observer(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = func._schema.name
            tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
            on_gpu = any(each.is_cuda for each in tensors) or str(kwargs.get("device") or "").startswith("cuda")
            if _record is not None and on_gpu:
                self.observe(name, func, args, kwargs)
            return func(*args, **kwargs)

        def observe(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
            assert _record is not None
            returns = func._schema.returns
            is_view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
            if not is_view and not name.startswith(NO_KERNEL):
                _record.ops[name.removeprefix("aten::")] += 1
            if name in WAITS:
                note(WAITS[name])
            elif name in ("aten::index", "aten::index_put_", "aten::index_put", "aten::_unsafe_index"):
                for index in args[1]:
                    if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                        note("a size is read: indexing with a mask")
                    elif isinstance(index, torch.Tensor) and not index.is_cuda:
                        note("a blocking copy: index on the CPU")
            elif name == "aten::copy_":
                self.observe_copy(args[1], args[0], (len(args) > 2 and args[2]) or kwargs.get("non_blocking", False))
            elif name == "aten::_to_copy" and kwargs.get("device") is not None:
                source, target = args[0], torch.device(kwargs["device"])
                if source.device.type != target.type:
                    self.copied(source, source.is_cuda, kwargs.get("non_blocking", False), True)

        def observe_copy(self, source: Any, target: Any, non_blocking: bool) -> None:
            if source.device.type != target.device.type:
                pinned = (target if source.is_cuda else source).is_pinned()
                self.copied(source, source.is_cuda, non_blocking, pinned)

        def copied(self, source: Any, to_host: bool, non_blocking: bool, pinned: bool) -> None:
            if not non_blocking:
                note(f"a blocking copy: {'to the host' if to_host else 'to the device'}")
            elif not pinned:
                note("a copy that waits, as its host memory is not pinned")

    return Observer()


@contextlib.contextmanager
def recording() -> Iterator[Record]:
    """Record what the code inside does to the device."""
    global _record
    before, _record = _record, Record()
    try:
        with _observer():
            yield _record
    finally:
        _record = before
