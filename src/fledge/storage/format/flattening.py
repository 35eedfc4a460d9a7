"""Flatten a state into a JSON tree (see `tree`) and a list of leaves (see `leaves`), which stay in the caller's memory.

Tensors with the same memory, dtype, shape and strides (tied weights) become one leaf, and are the same object after loading.
A loaded state equals the saved one and has the same types, with two exceptions: a `Parameter` becomes a tensor, and a subclass
of str, int or float (a member of an enum) becomes the plain value. Anything else that cannot be restored raises an InputError.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError
from fledge.storage.format.leaves import DTensorChoice, Leaf, describe_array, describe_tensor, entry_error
from fledge.storage.format.tree import FACTORIES, MAX_DEPTH, MAX_HEX, Node

_INSTEAD: dict[Any, str] = {  # what to save instead of a value, by its type
    Set: "sorted(x)",
    Enum: "x.value",
    (os.PathLike, torch.device, torch.dtype, Decimal, Fraction): "str(x)",
    (bytearray, memoryview): "bytes(x)",
    np.random.Generator: "x.bit_generator.state",
    Mapping: "dict(x)",
    argparse.Namespace: "vars(x)",
}
MAX_NODES = 2**22  # this many short numbers take 30 MB of JSON


def flatten(state: Any, dtensor: DTensorChoice = None) -> tuple[Node, list[Leaf]]:
    """Return the state's structure as JSON, and its leaves, still in the caller's memory.

    Args:
        state: The state to save.
        dtensor: How to save a DTensor that is sharded over ranks: "full" saves the whole tensor (every rank must call),
            "local" only this rank's part; None raises an InputError.
    """
    walk = _Walk(dtensor)
    try:
        return walk.node(state, ()), walk.leaves
    except RuntimeError as error:
        if not re.search(r"(changed size|mutated|keys changed) during iteration", str(error)):
            raise
        advice = "save from the thread that changes it, or pass a copy that only this call uses"
        raise InputError(
            f"another thread added or removed entries of the state while it was read: {advice}."
        ) from error


class _Walk:
    """Visits all entries of a state and collects the leaves; tests common types first, as the training thread waits."""

    def __init__(self, dtensor: DTensorChoice) -> None:
        self.leaves: list[Leaf] = []
        self.seen: dict[Any, int] = {}
        self.dtensor = dtensor
        self.nodes = 0

    def node(self, value: Any, path: tuple[Any, ...]) -> Node:
        kind = type(value)
        if kind is torch.Tensor or isinstance(value, torch.Tensor):
            return {"leaf": self._tensor(value, path)}
        if kind is str or kind is bool or value is None:
            return value
        if kind is float or kind is int:
            return _number(value)
        if len(path) >= MAX_DEPTH:
            raise entry_error(
                path[:4], f"... is nested more than {MAX_DEPTH} levels deep: flatten it, or break the cycle."
            )
        if kind is dict or isinstance(value, (dict, list, tuple)):
            self.nodes += len(value)
            if self.nodes > MAX_NODES:
                advice = "put long lists of numbers into tensors or NumPy arrays, or break the cycle"
                raise entry_error(path[:4], f"... brings the state to more than {MAX_NODES} plain values: {advice}.")
            return self._items(value, path) if kind is dict else self._container(value, path)
        if isinstance(value, np.ndarray | np.generic):
            return {"leaf": self._array(value, path)}
        if kind is bytes:
            return {"leaf": self._add(Leaf(path, "bytes", "uint8", (len(value),), len(value), value))}
        return _plain(value, path)

    def _container(self, value: dict[Any, Any] | list[Any] | tuple[Any, ...], path: tuple[Any, ...]) -> Node:
        kind = type(value)
        if isinstance(value, dict):
            return self._dict(value, path)
        if kind is list:
            return self._list(value, path)
        if kind is tuple:
            return {"tuple": self._list(value, path)}
        if isinstance(value, torch.Size):
            return {"size": [int(size) for size in value]}
        plain = "x._asdict()" if hasattr(value, "_asdict") else "list(x)" if isinstance(value, list) else "tuple(x)"
        raise _other_type(path, kind.__name__, plain)

    def _dict(self, value: dict[Any, Any], path: tuple[Any, ...]) -> Node:
        kind = type(value)
        if kind is OrderedDict and vars(value).keys() <= {"_metadata"}:
            body, versions = self._items(value, path), getattr(value, "_metadata", None)
            if versions is None:
                return {"ordered": body}
            return {"module": [body, _versions(versions) or self.node(versions, (*path, "_metadata"))]}
        if kind is Counter and not vars(value):
            return {"counter": self._items(value, path)}
        if isinstance(value, defaultdict) and kind is defaultdict:
            factory = value.default_factory
            name = None if factory is None else getattr(factory, "__name__", "")
            if FACTORIES.get(name) is factory:
                return {"default": [name, self._items(value, path)]}
        details = " with attributes" if getattr(value, "__dict__", None) else ""
        if isinstance(value, defaultdict) and not details:
            details = f" of {getattr(value.default_factory, '__name__', 'a function')}"
        raise _other_type(path, f"{kind.__name__}{details}", "dict(x)")

    def _items(self, value: dict[Any, Any], path: tuple[Any, ...]) -> Node:
        if set(map(type, value)) <= {str}:
            return {
                "dict": {key: item if _is_json(item) else self.node(item, (*path, key)) for key, item in value.items()}
            }
        return {"items": [[_key(key, path), self.node(item, (*path, key))] for key, item in value.items()]}

    def _list(self, value: list[Any] | tuple[Any, ...], path: tuple[Any, ...]) -> Node:
        return [item if _is_json(item) else self.node(item, (*path, i)) for i, item in enumerate(value)]

    def _tensor(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> int:
        leaf = describe_tensor(path, tensor, self.dtensor)
        known = self.seen.setdefault(leaf.place, len(self.leaves)) if leaf.place else len(self.leaves)
        if known < len(self.leaves):  # same first byte as another leaf: tied only if the whole view is the same
            other = self.leaves[known]
            if (other.dtype, other.shape, *_view(other.source)) == (leaf.dtype, leaf.shape, *_view(leaf.source)):
                return known
        return self._add(leaf)

    def _array(self, array: np.ndarray | np.generic, path: tuple[Any, ...]) -> int:
        index = self.seen.setdefault((id(array),), len(self.leaves))
        return index if index < len(self.leaves) else self._add(describe_array(path, array))

    def _add(self, leaf: Leaf) -> int:
        self.leaves.append(leaf)
        return len(self.leaves) - 1


def _is_json(value: Any) -> bool:
    """Return True for most values that JSON stores unchanged: a quick test, as a state may hold thousands of numbers."""
    kind = type(value)
    return (
        kind is str or kind is bool or value is None or ((kind is float or kind is int) and -(2**63) <= value < 2**63)
    )


def _versions(metadata: Any) -> Node | None:
    """Return the JSON node of the `_metadata` of a module's state dict; None if it holds more than version numbers (rare)."""
    if type(metadata) is not OrderedDict or set(map(type, metadata)) != {str}:
        return None
    numbers: list[Any] = [own.get("version") for own in metadata.values() if type(own) is dict and len(own) == 1]
    if len(numbers) != len(metadata) or set(map(type, numbers)) != {int} or max(numbers) >= 2**31 or min(numbers) < 0:
        return None
    return {"ordered": {"dict": {name: {"dict": {"version": n}} for name, n in zip(metadata, numbers, strict=True)}}}


def _view(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _other_type(path: tuple[Any, ...], kind: str, plain: str) -> InputError:
    return entry_error(path, f"is a {kind}, which would come back as another type: convert it first, with {plain}.")


def _number(value: int | float) -> Node:
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return value
        if value.bit_length() > 4 * (MAX_HEX - 3):
            limit = f"but at most {4 * (MAX_HEX - 3)} are allowed"
            raise InputError(f"the state has an integer of {value.bit_length()} bits, {limit}: save it as bytes.")
        return {"int": hex(value)}
    return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}


def _plain(value: Any, path: tuple[Any, ...]) -> Node:
    if isinstance(value, int | float):  # subclasses such as IntEnum, saved as plain numbers
        return _number(int.__int__(value) if isinstance(value, int) else float.__float__(value))
    if isinstance(value, str):  # not str(value), which gives the name of an enum's member
        return str.__str__(value)
    if isinstance(value, complex):
        return {"complex": [_number(value.real), _number(value.imag)]}
    allowed = "dicts, lists, tuples, tensors, NumPy arrays, numbers, strings, bytes and None"
    raise entry_error(path, f"is a {type(value).__name__}; allowed are {allowed}: {_advice(value)}.")


def _advice(value: Any) -> str:
    """Return what to save instead of a value that cannot be saved, as a hint for the user who calls the value `x`."""
    if isinstance(value, type | ModuleType) or (callable(value) and hasattr(value, "__qualname__")):
        return "save its name, and look it up after loading"
    if dataclasses.is_dataclass(value):
        return "save dataclasses.asdict(x) instead"
    for kinds, instead in _INSTEAD.items():
        if isinstance(value, kinds):
            return f"save {instead} instead"
    for name in ("state_dict", "get_state", "getstate", "to_dict", "isoformat"):
        if callable(getattr(value, name, None)):
            return f"save x.{name}() instead"
    if isinstance(value, Iterable) and not isinstance(value, Iterator):
        return "save list(x) instead"
    return "save vars(x) instead" if getattr(value, "__dict__", None) else "leave it out"


def _key(key: Any, path: tuple[Any, ...]) -> Node:
    if isinstance(key, tuple):
        return {"tuple": [_key(part, path) for part in key]}
    if key is None or isinstance(key, str | int | float | bool):
        return key if key is None or type(key) in (str, bool) else _plain(key, path)
    allowed = "strings, numbers, None or tuples of these"
    raise entry_error(path, f"has a key of type {type(key).__name__}; keys must be {allowed}: rename it.")
