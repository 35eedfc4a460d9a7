"""Read pickled NumPy arrays from untrusted bytes, without Python's unpickler.

`read_numpy_pickle` interprets the pickle's opcodes itself. It knows dicts, lists, tuples, str, bytes, numbers, booleans, None,
and the few functions by which NumPy pickles arrays, dtypes and scalars of numbers; nothing is imported and nothing called.
Everything else raises a FormatError. All arrays together may not take more memory than the pickle.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fledge.core.errors import FormatError
from fledge.storage.format.leaves import MAX_DIMS

MAX_DEPTH = 32  # of nested dicts, lists and tuples
MAX_OPCODES = 2**20  # an array takes about 30
_NUMBERS = re.compile(r"b1|[iu][1248]|f[248]|c8|c16")
_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")
_GLOBALS: dict[tuple[str, str], str] = {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    **{(module, "_reconstruct"): "reconstruct" for module in _MULTIARRAY},
    **{(module, "scalar"): "scalar" for module in _MULTIARRAY},
    **{(module, "_frombuffer"): "frombuffer" for module in _NUMERIC},
}
_MARK = object()


@dataclass
class _Function:
    """A NumPy function or class that the pickle refers to; `name` is one of the values of `_GLOBALS`."""

    name: str


@dataclass
class _Dtype:
    """A dtype of numbers; a later step of the pickle may set its byte order."""

    text: str
    order: Any = "="

    def get(self) -> np.dtype[Any]:
        return np.dtype(self.text).newbyteorder(self.order)


class _Array:
    """An array whose state (shape, dtype, content) follows later in the pickle."""

    value: np.ndarray | None = None


class _Refused(ValueError):
    """Reason why a pickle is not read."""


def read_numpy_pickle(content: bytes, label: str) -> Any:
    """Return the object in a pickle of plain values and NumPy arrays (protocol 3 or later); arrays are copies.

    Raises:
        FormatError: The pickle is truncated or damaged, or holds anything else.
    """
    try:
        return _Tree().finish(_Machine(content).run(), 0)
    except _Refused as error:
        raise FormatError(
            f"{label} is not a pickle of plain values and NumPy arrays: {error}. No code in it was run."
        ) from error
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        AttributeError,
        OverflowError,
        MemoryError,
        UnicodeError,
    ) as error:
        reason = f"{type(error).__name__}: {str(error)[:100]}"
        raise FormatError(f"{label} is a damaged or truncated pickle ({reason}). No code in it was run.") from error


class _Machine:
    """The stack machine of pickles, limited to plain values and NumPy arrays."""

    def __init__(self, content: bytes) -> None:
        self.content, self.room = content, len(content)
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(self.content))):
            if count > MAX_OPCODES:
                raise _Refused(f"it has more than {MAX_OPCODES} opcodes")
            name = opcode.name
            if name == "STOP":
                return self.stack.pop()
            if name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name in _ARGUMENTS:
                self.stack.append(argument)
            elif name in _STEPS:
                _STEPS[name](self, argument)
            elif name not in ("PROTO", "FRAME"):
                raise _Refused(f"it uses the opcode {name}, which is not allowed")
        raise _Refused("its last opcode, STOP, is missing")

    def pop_mark(self) -> list[Any]:
        """Remove the last mark and all values above it from the stack, and return the values."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                items = self.stack[place + 1 :]
                del self.stack[place:]
                return items
        raise _Refused("an opcode needs a mark on the stack, but there is none")

    def pop(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise _Refused("an opcode needs more values than there are on the stack")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def add_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise _Refused("entries are added to something that is not a dict")
        target.update(zip(items[::2], items[1::2], strict=True))  # keys: a list or an array is a TypeError

    def append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise _Refused("elements are added to something that is not a list")
        self.stack[-1].extend(items)

    def push_global(self, module: Any, name: Any) -> None:
        known = _GLOBALS.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if known is None:
            raise _Refused(f"it refers to {str(module)[:60]}.{str(name)[:60]}, which is not allowed")
        self.stack.append(_Function(known))

    def reduce(self) -> None:
        """Build a dtype, a scalar or an array: a pickle may not call other functions."""
        function, arguments = self.pop(2)
        if not isinstance(function, _Function) or type(arguments) is not tuple:
            raise _Refused("it calls something that is not a function of NumPy")
        if function.name == "dtype":
            self.stack.append(_Dtype(_number_type(arguments[0])))
        elif function.name == "reconstruct":
            self.stack.append(_Array())
        elif function.name == "scalar":
            dtype, data = arguments
            self.stack.append(self.make_array(dtype, (), data, fortran=False)[()])
        elif function.name == "frombuffer":
            data, dtype, shape, order, *axes = arguments
            array = self.make_array(dtype, shape, data, fortran=order == "F")
            if order == "K" and axes and axes[0] is not None:
                array = np.ascontiguousarray(array.transpose(axes[0]))  # ValueError unless they are its axes
            self.stack.append(array)
        else:
            raise _Refused(f"it calls numpy.{function.name}, which is not allowed")

    def build(self) -> None:
        """Set the byte order of a dtype, or the shape, dtype and content of an array."""
        target, state = self.pop(2)
        if (
            isinstance(target, _Dtype)
            and type(state) is tuple
            and state[1] in ("<", ">", "|", "=")
            and state[2] is None
        ):
            target.order = state[1]
        elif isinstance(target, _Array) and type(state) is tuple and len(state) == 5 and target.value is None:
            _, shape, dtype, fortran, data = state
            target.value = self.make_array(dtype, shape, data, bool(fortran))
        else:
            raise _Refused("it sets the state of something that is not an array of numbers")
        self.stack.append(target)

    def make_array(self, dtype: Any, shape: Any, data: Any, fortran: bool) -> np.ndarray:
        """Return a new array in native byte order; raise _Refused if the data do not fit its dtype and shape."""
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray):
            raise _Refused("the content of an array is not bytes with a dtype of numbers")
        valid = (
            type(shape) is tuple and len(shape) <= MAX_DIMS and all(type(n) is int and 0 <= n < 2**48 for n in shape)
        )
        kind = dtype.get()
        if not valid or math.prod(shape) * kind.itemsize != len(data):
            raise _Refused(f"an array of {len(data)} bytes cannot have the shape {str(shape)[:60]} of {kind}")
        self.room -= len(data)
        if self.room < 0:
            raise _Refused("its arrays take more memory than the file")
        array = np.frombuffer(data, kind).reshape(shape, order="F" if fortran else "C")
        return np.array(array, kind.newbyteorder("="), order="C")


def _number_type(text: Any) -> str:
    if not isinstance(text, str) or not _NUMBERS.fullmatch(text):
        what = "Python objects" if text in ("O", "O8") else f"dtype {str(text)[:40]!r}"
        raise _Refused(f"an array holds {what}, but must hold numbers or booleans")
    return text


class _Tree:
    """Replaces each `_Array` in a value by its NumPy array; refuses a value that is cyclic, nested too deep or too large."""

    def __init__(self) -> None:
        self.visits = 0

    def finish(self, value: Any, depth: int) -> Any:
        self.visits += 1
        if depth > MAX_DEPTH:
            raise _Refused(f"it is nested more than {MAX_DEPTH} levels deep")
        if self.visits > MAX_OPCODES:
            raise _Refused(f"it has more than {MAX_OPCODES} values")
        if isinstance(value, _Array):
            if value.value is None:
                raise _Refused("an array has no content")
            return value.value
        if isinstance(value, _Function | _Dtype) or value is _MARK:
            raise _Refused("it holds a function or a dtype as a value")
        if type(value) is dict:
            for key in value:
                if not isinstance(key, str) and not (type(key) is tuple and all(isinstance(part, str) for part in key)):
                    raise _Refused(f"a key is a {type(key).__name__}, but must be a str or a tuple of str")
            return {key: self.finish(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            found = [self.finish(item, depth + 1) for item in value]
            return found if type(value) is list else tuple(found)
        return value


def _memoize(machine: _Machine, place: int | None) -> None:
    machine.memo[len(machine.memo) if place is None else place] = machine.stack[-1]


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": _MARK}
_ARGUMENTS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "SETITEMS": lambda machine, _: machine.add_items(machine.pop_mark()),
    "SETITEM": lambda machine, _: machine.add_items(machine.pop(2)),
    "APPENDS": lambda machine, _: machine.append(machine.pop_mark()),
    "APPEND": lambda machine, _: machine.append(machine.pop(1)),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_mark())),
    "TUPLE1": lambda machine, _: machine.stack.append(tuple(machine.pop(1))),
    "TUPLE2": lambda machine, _: machine.stack.append(tuple(machine.pop(2))),
    "TUPLE3": lambda machine, _: machine.stack.append(tuple(machine.pop(3))),
    "MEMOIZE": _memoize,
    "BINPUT": _memoize,
    "LONG_BINPUT": _memoize,
    "BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "LONG_BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "GLOBAL": lambda machine, names: machine.push_global(*str(names).split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.push_global(*machine.pop(2)),
    "REDUCE": lambda machine, _: machine.reduce(),
    "BUILD": lambda machine, _: machine.build(),
}
