"""Leaves of a saved state: tensors, NumPy arrays, NumPy scalars and byte strings, each as a run of bytes.

`describe_*` turns a leaf of the caller's state into a `Leaf` without copying it: kind, dtype, shape, and where its bytes are
(`source`). `plain_tensor` handles special tensors: it returns a dense tensor with the same values, or raises. Staging fills
`Leaf.data` with the bytes, in C order, native byte order for tensors. `restore` turns bytes and a description back into the
object; a description from a file must have passed `check_description`.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fledge.core.errors import FormatError, InputError

_TORCH_NAMES = (
    "float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128", "bool", "uint8", "int8",
    "int16", "uint16", "int32", "uint32", "int64", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)  # fmt: skip
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _TORCH_NAMES}
DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}

WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # unsigned types by their size in bytes

# The NumPy types a file may name. Objects and records are left out: they would need pickle.
_NUMPY_DTYPE = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c8|c16|[mM]8(\[\d{0,6}[a-zA-Z]{1,2}\])?|[SU][1-9]\d{0,6})")

DTensorChoice = Literal["full", "local"] | None  # how to save a sharded tensor; None: only if each rank has the whole
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)

KINDS = ("tensor", "array", "scalar", "bytes")
MAX_DIMS = 64  # NumPy's own limit
MAX_DIM = 2**48


@dataclass(slots=True)
class Leaf:
    """One leaf: its description, the source of its bytes, and (once staged) the bytes."""

    path: tuple[Any, ...]
    kind: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    source: Any = None
    place: int = 0  # address of a tensor's first byte, when it was described
    storage: Any = None  # storage of a contiguous tensor, held so that its memory stays valid
    data: np.ndarray | None = None  # [nbytes] uint8, C order
    order: tuple[int, ...] | None = None  # axes of the stored array, if another layout compresses better
    lossy_from: str | None = None  # dtype of the caller's tensor, if it is stored with fewer bits


def word_size(kind: str, dtype: str) -> int:
    """Return the size in bytes of a word, the unit of codecs: a number, a character, or half a complex number."""
    if kind == "tensor":
        return TORCH_DTYPES[dtype].itemsize // (2 if TORCH_DTYPES[dtype].is_complex else 1)
    numpy_dtype = np.dtype(dtype)  # of a byte string, uint8
    fixed = {"U": 4, "S": 1, "c": numpy_dtype.itemsize // 2}
    return fixed.get(numpy_dtype.kind, numpy_dtype.itemsize)


def is_float(kind: str, dtype: str) -> bool:
    """Return True if a leaf of this kind and dtype holds floating-point or complex numbers."""
    if kind == "tensor":
        return TORCH_DTYPES[dtype].is_floating_point or TORCH_DTYPES[dtype].is_complex
    return np.dtype(dtype).kind in "fc"  # of a byte string, uint8


def plain_tensor(path: tuple[Any, ...], tensor: torch.Tensor, dtensor: DTensorChoice = None) -> torch.Tensor:
    """Return a plain dense tensor with the same values, without a copy where possible; raise InputError if there is none."""
    kind = type(tensor)
    if kind not in PLAIN_TENSORS:
        tensor = _unwrap(path, tensor, dtensor)
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_meta or tensor.dtype not in DTYPE_NAMES:
        what = "nested" if tensor.is_nested else str(tensor.layout)
        allowed = f"dense tensors of {', '.join(TORCH_DTYPES)}"
        got = f"{what} tensor of {tensor.dtype} on {tensor.device}"
        raise entry_error(path, f"is a {got}; allowed are {allowed}: convert it first.")
    try:
        stored = tensor.untyped_storage().nbytes() if tensor.data_ptr() else 0
    except RuntimeError:  # inside vmap, grad or a trace
        stored = -1
    if stored < extent(tensor):
        if stored == 0 and tensor._is_zerotensor():  # zeros without memory, as autograd makes them
            return tensor.detach().clone()
        if stored < 0 or torch._is_functional_tensor(tensor):
            what = "belongs to a trace or transform (vmap, grad, functionalize, compile) and has no memory: save it outside"
        else:
            what = (
                f"needs {extent(tensor)} bytes, but its storage was freed (resize_, FSDP): save it while it has values"
            )
        raise entry_error(path, f"{what}.")
    return tensor.detach()


def extent(tensor: torch.Tensor) -> int:
    """Return the number of bytes from the start of a strided tensor's storage to the end of its last element."""
    if not tensor.numel():
        return 0
    if tensor.is_contiguous():
        return int(tensor.storage_offset() + tensor.numel()) * tensor.itemsize
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.itemsize


def _unwrap(path: tuple[Any, ...], tensor: torch.Tensor, dtensor: DTensorChoice) -> torch.Tensor:
    """Return the plain tensor inside a subclass of torch.Tensor; raise InputError if something would be lost."""
    kind = type(tensor)
    # If there is such a tensor, its module is loaded already: do not import it otherwise.
    if (collectives := sys.modules.get("torch.distributed._functional_collectives")) is not None and isinstance(
        tensor, collectives.AsyncCollectiveTensor
    ):
        return tensor.wait()
    if is_dtensor(tensor):
        return _of_dtensor(path, tensor, dtensor)
    if torch.nn.parameter.is_lazy(tensor):
        raise entry_error(path, f"is a {kind.__name__} without a shape yet: run the module once before saving.")
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise entry_error(path, f"is a {kind.__name__}, which has its own memory layout: save its plain tensors.")
    own = [name for name in getattr(tensor, "__dict__", ()) if not name.startswith("_")]
    if own and not issubclass(kind, torch.nn.Parameter) and kind.__module__.partition(".")[0] != "tensordict":
        lost = f"is a {kind.__name__} whose attributes ({', '.join(own[:4])}) would be lost"
        raise entry_error(path, f"{lost}: save tensor.as_subclass(torch.Tensor), and the attributes beside it.")
    return tensor.as_subclass(torch.Tensor)


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Return True for a DTensor, which is sharded or replicated over ranks."""
    sharded = sys.modules.get("torch.distributed.tensor")
    return sharded is not None and isinstance(tensor, sharded.DTensor)


def _of_dtensor(path: tuple[Any, ...], tensor: Any, choice: DTensorChoice) -> torch.Tensor:
    """Return the whole tensor if `choice` is "full" (then every rank must save); otherwise return this rank's part.

    Raises:
        InputError: `choice` is None, but this rank has only a part; or the ranks' parts must still be summed.
    """
    if choice == "full":
        whole = tensor.full_tensor()
        return whole.wait() if hasattr(whole, "wait") else whole
    whole_here = tensor.device_mesh.size() == 1 or all(placement.is_replicate() for placement in tensor.placements)
    if choice is None and not whole_here:
        sharded = f"is a DTensor sharded over {tensor.device_mesh.size()} ranks"
        whole = "dtensor='full' (all ranks call save, each saves the whole)"
        raise entry_error(path, f"{sharded}: pass {whole} or dtensor='local' (each saves its part).")
    if any(placement.is_partial() for placement in tensor.placements) and tensor.device_mesh.size() > 1:
        raise entry_error(path, "is a DTensor whose parts must still be summed: pass dtensor='full'.")
    local = tensor.to_local()
    return local.wait() if hasattr(local, "wait") else local


def describe_tensor(path: tuple[Any, ...], tensor: torch.Tensor, dtensor: DTensorChoice = None) -> Leaf:
    """Return the `Leaf` of a tensor, without copying the tensor.

    The caller waits for this, so the common case (contiguous, with memory of its own) takes as few checks as possible, each
    of 0.1 to 0.3 us.
    """
    name = DTYPE_NAMES.get(tensor.dtype)
    if name is not None and type(tensor) in PLAIN_TENSORS:
        try:
            place, nbytes, shape = tensor.data_ptr(), tensor.nbytes, tensor.shape  # a nested tensor has no shape
            if place and tensor.is_contiguous():
                storage = tensor.untyped_storage()
                if place + nbytes <= storage.data_ptr() + storage.nbytes():
                    return Leaf(path, "tensor", name, shape, nbytes, tensor, place, storage)
        except RuntimeError:  # sparse, or in a transform
            pass
    plain = plain_tensor(path, tensor, dtensor)
    return Leaf(path, "tensor", DTYPE_NAMES[plain.dtype], plain.shape, plain.nbytes, plain, plain.data_ptr())


def describe_array(path: tuple[Any, ...], array: np.ndarray | np.generic) -> Leaf:
    """Return the `Leaf` of a NumPy array or scalar, without copying it."""
    dtype = array.dtype.str
    if isinstance(array, np.ndarray) and type(array) not in (np.ndarray, np.memmap):
        advice = "save its parts (data and mask of a masked array) as plain arrays"
        raise entry_error(path, f"is a NumPy {type(array).__name__}; only the numbers would be kept: {advice}.")
    if array.dtype.names or not _NUMPY_DTYPE.fullmatch(dtype):
        allowed = "numbers, dates and fixed-length strings: split records and convert objects first"
        raise entry_error(path, f"is a NumPy {type(array).__name__} of dtype {array.dtype}; allowed are {allowed}.")
    kind = "array" if isinstance(array, np.ndarray) else "scalar"
    if kind == "scalar" and array.dtype.kind in "SU" and np.array(array)[()] != array:
        raise entry_error(path, "is a NumPy string that ends in NUL, which NumPy drops: make it a plain str or bytes.")
    return Leaf(path, kind, dtype, array.shape, array.nbytes, array)


def entry_error(path: tuple[Any, ...], problem: str) -> InputError:
    """Return the error for an entry of the caller's state that cannot be saved."""
    where = "".join(f"[{key!r}]" for key in path) or "(top level)"  # as Python indexing
    return InputError(f"checkpoint entry {where} {problem}")


def damaged(problem: str) -> FormatError:
    """Return the error for invalid content of a file."""
    return FormatError(f"{problem}: the file is damaged or was altered.")


def bytes_of(source: Any) -> np.ndarray:
    """Return the bytes of a leaf in C order: a view if the memory is contiguous and on the CPU, else a copy."""
    if isinstance(source, torch.Tensor):
        plain = source.detach().resolve_conj().resolve_neg()
        return plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if isinstance(source, bytes):
        return np.frombuffer(source, np.uint8)
    return np.ascontiguousarray(source).reshape(-1).view(np.uint8) if source.nbytes else np.zeros(0, np.uint8)


def check_description(kind: Any, dtype: Any, shape: Any) -> int:
    """Return the size in bytes of the leaf that a file describes; raise FormatError if the description is invalid."""
    if not isinstance(dtype, str) or kind not in KINDS:
        raise damaged(f"a leaf has kind {str(kind)[:40]!r} and dtype {str(dtype)[:40]!r}; kinds are {', '.join(KINDS)}")
    well_formed = isinstance(shape, list) and len(shape) <= MAX_DIMS
    if not well_formed or not all(type(n) is int and 0 <= n <= MAX_DIM for n in shape):
        raise damaged(f"shape {str(shape)[:80]} is not a list of at most {MAX_DIMS} sizes from 0 to 2^48")
    if math.prod(n or 1 for n in shape) > MAX_DIM:  # also for empty tensors: torch overflows
        raise damaged(f"shape {str(shape)[:80]} has more than 2^48 elements")
    if kind == "bytes":
        if dtype != "uint8" or len(shape) != 1:
            raise damaged(
                f"a byte string has dtype {str(dtype)[:40]!r} and shape {str(shape)[:80]}, not uint8 and one axis"
            )
        return int(shape[0])
    if kind == "scalar" and shape:
        raise damaged(f"a NumPy scalar has shape {str(shape)[:80]}, but must have no axes")
    if kind == "tensor":
        if dtype not in TORCH_DTYPES:
            raise damaged(f"tensor dtype {str(dtype)[:40]!r} is unknown; allowed are {', '.join(_TORCH_NAMES)}")
        return math.prod(shape) * TORCH_DTYPES[dtype].itemsize
    if not _NUMPY_DTYPE.fullmatch(dtype):
        raise damaged(f"NumPy dtype {str(dtype)[:40]!r} is not allowed in a checkpoint")
    try:
        return math.prod(shape) * np.dtype(dtype).itemsize
    except TypeError as error:
        raise damaged(f"NumPy dtype {dtype!r} does not exist") from error


def restore(kind: str, dtype: str, shape: tuple[int, ...], data: np.ndarray, device: torch.device) -> Any:
    """Rebuild the saved object from its bytes; arrays and CPU tensors share the memory of `data`."""
    if kind == "bytes":
        return data.tobytes()
    if kind == "tensor":
        if data.nbytes == 0:
            return torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=device)
        return torch.from_numpy(data).view(TORCH_DTYPES[dtype]).view(shape).to(device)
    array = data.view(np.dtype(dtype)).reshape(shape) if data.nbytes else np.empty(shape, np.dtype(dtype))
    return array if kind == "array" else array[()]


def permute(data: np.ndarray, dtype: str, shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Transpose a tensor of this shape, whose bytes in C order are `data`, to the axis order `order`; return its bytes."""
    return np.ascontiguousarray(_cells(data, dtype).reshape(shape).transpose(order)).reshape(-1).view(np.uint8)


def unpermute(data: np.ndarray, dtype: str, shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Invert `permute`; `shape` is the shape of the original tensor."""
    stored = _cells(data, dtype).reshape([shape[axis] for axis in order])
    return np.ascontiguousarray(stored.transpose(np.argsort(order))).reshape(-1).view(np.uint8)


def _cells(data: np.ndarray, dtype: str) -> np.ndarray:
    # complex128 serves as a word of 16 bytes; NumPy copies it bit for bit
    return data.view(WORDS.get(TORCH_DTYPES[dtype].itemsize, np.complex128))
