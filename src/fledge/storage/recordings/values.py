"""Scenes and facts: plain values and arrays as JSON, and back.

`null`, booleans, whole numbers, finite floats, strings, lists and dicts with string keys are themselves; a tuple becomes a
list. The rest is an object with one key: `{"$float": "nan"}` (or `inf`, `-inf`), `{"$array": 3}` for array number 3 of the
file, and `{"$array": [dtype, shape, base64]}` for a small one in place.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fledge.core.errors import FormatError, InputError
from fledge.storage.recordings.layout import check_dtype, pack, read_description, split, to_json, unpack

SMALL = 256  # bytes of an array that is written in place
MAX_DEPTH = 32
_NAMED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def freeze(value: Any, what: str, depth: int = 0) -> Any:
    """A copy of a caller's value that a recording can hold: arrays stay arrays, all else is JSON-able.

    Raises:
        InputError: when something in it is neither.
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
        raise InputError(
            f"{what} holds a {type(value).__name__}; allowed are numbers, strings, arrays, lists and dicts with names "
            "that do not begin with $."
        )
    return {key: freeze(item, f"{what}[{key!r}]", depth + 1) for key, item in value.items()}


def to_node(value: Any, store: Callable[[np.ndarray], int]) -> Any:
    """JSON of a frozen value; `store` puts a large array into the file and gives its number."""
    if isinstance(value, np.ndarray):
        if value.nbytes > SMALL:
            return {"$array": store(value)}
        return {"$array": [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]}
    if isinstance(value, dict):
        return {key: to_node(item, store) for key, item in value.items()}
    return [to_node(item, store) for item in value] if isinstance(value, list) else value


def from_node(node: Any, load: Callable[[int], np.ndarray], depth: int = 0) -> Any:
    """The value of a node that nobody vouches for; `load` gives the array of a number."""
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
    told = node["$array"]
    if isinstance(told, int) and not isinstance(told, bool):
        return load(told)
    if not isinstance(told, list) or len(told) != 3 or not isinstance(told[2], str):
        raise FormatError("a scene has something for an array that is none")
    dtype, shape = read_description(told[0], told[1])
    try:
        data = base64.b64decode(told[2], validate=True)
    except (ValueError, binascii.Error) as error:
        raise FormatError("an array of a scene cannot be read") from error
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise FormatError("an array of a scene has another size than it says")
    return np.frombuffer(data, dtype).reshape(shape).copy()


def pack_array(array: np.ndarray) -> bytes:
    """Payload of an ARRAY record: a line of JSON with type and shape, and the packed bytes."""
    return to_json([array.dtype.str, list(array.shape)]) + b"\n" + pack(array)


def unpack_array(payload: bytes) -> np.ndarray:
    """The array of an ARRAY record."""
    line, _, packed = payload.partition(b"\n")
    try:
        told = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError("an array's description cannot be read") from error
    if not isinstance(told, list) or len(told) != 2:
        raise FormatError("an array has no description")
    dtype, shape = read_description(told[0], told[1])
    return unpack(split(packed, 1)[0], dtype, shape)
