"""Convert scenes and facts (plain values and arrays) to JSON and back.

`null`, booleans, integers, finite floats, strings, lists and dicts with string keys stay as they are; a tuple becomes a list.
The rest is an object with one key: `{"$float": "nan"}` (or `inf`, `-inf`), `{"$array": 3}` for array number 3 of the file, and
`{"$array": [dtype, shape, base64]}` for a small inline array.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fledge.core.errors import FormatError, InputError
from fledge.storage.recordings import layout
from fledge.storage.recordings.layout import check_dtype, from_json, pack, read_description, split, to_json, unpack

SMALL = 256  # maximum bytes of an inline array
MAX_DEPTH = 32
_NAMED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def freeze(value: Any, what: str, depth: int = 0) -> Any:
    """Return a copy of a value for a recording: arrays stay arrays, everything else becomes plain JSON values.

    Raises:
        InputError: The value holds something that a recording cannot store.
    """
    if isinstance(value, np.ndarray | np.generic) and np.ndim(value):
        dtype = check_dtype(value.dtype, what)
        try:
            read_description(np.dtype(dtype).str, list(value.shape))  # as the reader will
        except FormatError as error:
            limits = f"at most {layout.MAX_DIMS} axes and {layout.MAX_BLOCK_BYTES} bytes"
            got = f"an array of shape {value.shape} and {value.nbytes} bytes"
            raise InputError(f"{what} is {got}, but may have {limits}: split it, or record less.") from error
        return np.array(value, dtype, order="C")
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, list | tuple) and depth < MAX_DEPTH:
        return [freeze(item, what, depth + 1) for item in value]
    named = isinstance(value, dict) and all(isinstance(k, str) and not k.startswith("$") for k in value)
    if not named or depth >= MAX_DEPTH:
        allowed = "numbers, strings, arrays, lists and dicts with string keys that do not begin with $"
        depths = f"nested at most {MAX_DEPTH} levels deep"
        raise InputError(f"{what} holds a {type(value).__name__}; allowed are {allowed}, {depths}.")
    return {key: freeze(item, f"{what}[{key!r}]", depth + 1) for key, item in value.items()}


def as_array(name: str, value: Any) -> np.ndarray:
    """Return an entry of a frame (an array, a tensor or a number) as an array; raise InputError if it cannot be one."""
    try:
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"frame entry {name} cannot be converted to a NumPy array ({error}): convert it first."
        ) from error


def check_episode(scene: Any, facts: Any) -> None:
    """Raise InputError if the frozen scene and facts of an episode are larger than a reader accepts."""
    sizes: list[int] = []

    def store(array: np.ndarray) -> int:
        sizes.append(array.nbytes)
        return layout.MAX_READ  # at least as long as the number that the array will get

    layout.record(layout.BEGIN, to_json({"scene": to_node(scene, store), "facts": to_node(facts, store)}))
    if sum(sizes) > layout.MAX_READ:
        raise InputError(
            f"the arrays of an episode's scene and facts take {sum(sizes)} bytes, but at most {layout.MAX_READ} are allowed: "
            "record less."
        )


def to_header(facts: Any) -> Any:
    """Return the JSON of a recording's frozen facts, which may hold small arrays only."""

    def store(array: np.ndarray) -> int:
        allowed = f"but at most {SMALL} are allowed there"
        raise InputError(
            f"facts holds an array of {array.nbytes} bytes, {allowed}: put it into the scene of an episode."
        )

    return to_node(facts, store)


def to_node(value: Any, store: Callable[[np.ndarray], int]) -> Any:
    """Return the JSON of a value that `freeze` returned; `store` writes a large array to the file and returns its number."""
    if isinstance(value, np.ndarray):
        if value.nbytes > SMALL:
            return {"$array": store(value)}
        return {"$array": [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}
    if isinstance(value, dict):
        return {key: to_node(item, store) for key, item in value.items()}
    return [to_node(item, store) for item in value] if isinstance(value, list) else value


def from_node(node: Any, load: Callable[[int], np.ndarray], depth: int = 0) -> Any:
    """Decode the JSON node of an untrusted file into a value; `load(n)` returns array number n of the file."""
    if depth > MAX_DEPTH + 1:
        raise FormatError("a scene is nested too deeply")
    if isinstance(node, list):
        return [from_node(item, load, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    if "$float" in node:
        return _NAMED.get(str(node["$float"]), math.nan)
    if "$array" not in node:
        return {key: from_node(item, load, depth + 1) for key, item in node.items()}
    array = node["$array"]
    if isinstance(array, int) and not isinstance(array, bool):
        return load(array)
    if not isinstance(array, list) or len(array) != 3 or not isinstance(array[2], str):
        raise FormatError(f"a scene's array must be a number or [dtype, shape, base64], got {str(array)[:60]}")
    dtype, shape = read_description(array[0], array[1])
    try:
        data = base64.b64decode(array[2], validate=True)
    except (ValueError, binascii.Error) as error:
        raise FormatError("a scene's array is not base64") from error
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise FormatError("a scene's array does not have the declared size")
    return np.frombuffer(data, dtype).reshape(shape).copy()


def pack_array(array: np.ndarray) -> bytes:
    """Return the payload of an ARRAY record: a line of JSON with dtype and shape, and the compressed bytes."""
    return to_json([array.dtype.str, list(array.shape)]) + b"\n" + pack(array)


def unpack_array(payload: bytes) -> np.ndarray:
    """Return the array of an ARRAY record."""
    line, _, packed = payload.partition(b"\n")
    described = from_json(line, list)
    if len(described) != 2:
        raise FormatError("an array has no dtype and shape")
    return unpack(split(packed, 1)[0], *read_description(*described))
