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
from fledge.storage.recordings.layout import check_dtype, from_json, pack, read_description, split, to_json, unpack

SMALL = 256  # maximum bytes of an inline array
MAX_DEPTH = 32
_NAMED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def freeze(value: Any, what: str, depth: int = 0) -> Any:
    """Return a copy of a value for a recording: arrays stay arrays, everything else becomes plain JSON values.

    `what` names the value in error messages; `depth` is the number of lists and dicts around it.

    Raises:
        InputError: The value holds something that a recording cannot store.
    """
    if isinstance(value, np.ndarray | np.generic) and np.ndim(value):
        return np.array(value, check_dtype(value.dtype, what), order="C")
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
