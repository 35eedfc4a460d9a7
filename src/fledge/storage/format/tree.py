"""The shape of a saved state: nested dicts, lists, tuples and plain values as JSON, with the arrays taken out.

Contract
    `flatten(state)` walks the state once, at the moment of the call, and gives a JSON-able node and the list of leaves
    it refers to. Tensors that share memory exactly (tied weights) become one leaf, and are one tensor again after
    loading. What comes back is equal to what was given, and of the same type but for two cases: a `Parameter` is a tensor,
    and a subclass of str, int or float (an enum's member) the plain value it equals. What cannot be kept is refused.
    `unflatten(node, leaf)` is the inverse; it reads untrusted input, so it is strict and never calls anything named by the
    file.

Nodes
    null, true, false, 12, 1.5, "text"     themselves (finite floats only)
    [...]                                  list
    {"dict": {name: node}}                 dict with string keys
    {"items": [[key, node], ...]}          dict with other keys, such as an optimiser's integers
    {"ordered": node}                      OrderedDict; the node inside is one of the two above, also in the next three
    {"module": [node, node]}               OrderedDict with `_metadata`, what a module's state_dict() is: the versions
    {"counter": node}                      Counter
    {"default": ["list", node]}            defaultdict of a built-in type, or of null
    {"tuple": [...]}                       tuple
    {"size": [2, 3]}                       torch.Size
    {"leaf": 3}                            tensor, array, NumPy scalar or bytes number 3
    {"int": "-0x1f"}                       an integer beyond 64 bits
    {"float": "7ff8000000000000"}          NaN and infinities, as bits
    {"complex": [node, node]}              complex number
"""

from __future__ import annotations

import functools
import math
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from fledge.core.errors import FormatError, InputError
from fledge.storage.format.leaves import DTensorChoice, Leaf, describe_array, describe_tensor, format_path

Node = Any
MAX_DEPTH = 100  # of what is written: deeper than any real state, shallow enough for Python's own stack
READ_DEPTH = 2 * MAX_DEPTH
MAX_NODES = 2**22  # a state of nothing but short numbers would take 30 MB of JSON
MAX_HEX = 100_000  # digits of a whole number
FACTORIES: dict[str | None, Any] = {None: None} | {kind.__name__: kind for kind in (dict, list, int, float, str, bool)}


def flatten(state: Any, dtensor: DTensorChoice = None) -> tuple[Node, list[Leaf]]:
    """The state's structure as JSON, and its leaves, still in the caller's memory.

    Args:
        state: What to save.
        dtensor: What a DTensor is saved as: "full" (every rank must do so), or this rank's "local" part.
    """
    walk = _Walk(dtensor)
    return walk.node(state, ()), walk.leaves


class _Walk:
    """One walk over a state. It runs on the training thread, so the common types are tested first."""

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
            raise InputError(
                f"checkpoint entry {format_path(path[:4])}... is nested over {MAX_DEPTH} deep: flatten it, or break the cycle."
            )
        if kind is dict or isinstance(value, dict | list | tuple):
            self.nodes += len(value)
            if self.nodes > MAX_NODES:
                raise InputError(
                    f"the state has over {MAX_NODES} plain values (at {format_path(path[:4])}): put long lists of numbers "
                    "into tensors or NumPy arrays, or break the cycle."
                )
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
            return [self.node(item, (*path, i)) for i, item in enumerate(value)]
        if kind is tuple:
            return {"tuple": [self.node(item, (*path, i)) for i, item in enumerate(value)]}
        if isinstance(value, torch.Size):
            return {"size": [int(size) for size in value]}
        plain = "x._asdict()" if hasattr(value, "_asdict") else "list(x)" if isinstance(value, list) else "tuple(x)"
        raise InputError(
            f"checkpoint entry {format_path(path)} is a {kind.__name__}, which would come back as another type: make it a "
            f"plain one first, {plain}."
        )

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
        raise InputError(
            f"checkpoint entry {format_path(path)} is a {kind.__name__}{_factory_words(value)}, which would come back as "
            "another type: make it a plain one first, dict(x)."
        )

    def _items(self, value: dict[Any, Any], path: tuple[Any, ...]) -> Node:
        if set(map(type, value)) <= {str}:
            return {"dict": {key: self.node(item, (*path, key)) for key, item in value.items()}}
        return {"items": [[_key(key, path), self.node(item, (*path, key))] for key, item in value.items()]}

    def _tensor(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> int:
        leaf = describe_tensor(path, tensor, self.dtensor)
        known = self.seen.setdefault(leaf.place, len(self.leaves)) if leaf.place else len(self.leaves)
        if known < len(self.leaves):  # from the same byte as another: the same numbers, or only some of them?
            other = self.leaves[known]
            if (other.dtype, other.shape) == (leaf.dtype, leaf.shape) and _same_view(other.source, leaf.source):
                return known
        self.leaves.append(leaf)
        return len(self.leaves) - 1

    def _array(self, array: np.ndarray | np.generic, path: tuple[Any, ...]) -> int:
        index = self.seen.setdefault((id(array),), len(self.leaves))
        return index if index < len(self.leaves) else self._add(describe_array(path, array))

    def _add(self, leaf: Leaf) -> int:
        self.leaves.append(leaf)
        return len(self.leaves) - 1


def _versions(metadata: Any) -> Node | None:
    """The node of a module's `_metadata` where that is versions only, as nearly always; None: look closer."""
    if type(metadata) is not OrderedDict or set(map(type, metadata)) != {str}:
        return None
    numbers: list[Any] = [own.get("version") for own in metadata.values() if type(own) is dict and len(own) == 1]
    if len(numbers) != len(metadata) or set(map(type, numbers)) != {int} or max(numbers) >= 2**31 or min(numbers) < 0:
        return None
    return {"ordered": {"dict": {name: {"dict": {"version": n}} for name, n in zip(metadata, numbers, strict=True)}}}


def _same_view(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.stride(), one.is_conj(), one.is_neg()) == (other.stride(), other.is_conj(), other.is_neg())


def _factory_words(value: Any) -> str:
    if getattr(value, "__dict__", None):
        return " with attributes"
    return f" of {getattr(value.default_factory, '__name__', 'a function')}" if isinstance(value, defaultdict) else ""


def _number(value: int | float) -> Node:
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return value
        if value.bit_length() > 4 * (MAX_HEX - 3):
            raise InputError(f"the state has a whole number of {value.bit_length()} bits: keep such as bytes.")
        return {"int": hex(value)}
    return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}


def _plain(value: Any, path: tuple[Any, ...]) -> Node:
    if isinstance(value, int | float):  # subclasses, such as IntEnum: kept as the number they are
        return _number(int.__int__(value) if isinstance(value, int) else float.__float__(value))
    if isinstance(value, str):  # not str(value): an enum's member would say its name
        return str.__str__(value)
    if isinstance(value, complex):
        return {"complex": [_number(value.real), _number(value.imag)]}
    raise InputError(
        f"checkpoint entry {format_path(path)} is a {type(value).__name__}; a state is made of dicts, lists, tuples, "
        "tensors, NumPy arrays, numbers, strings, bytes and None: convert it (state_dict(), to_dict(), vars()) first."
    )


def _key(key: Any, path: tuple[Any, ...]) -> Node:
    if isinstance(key, tuple):
        return {"tuple": [_key(part, path) for part in key]}
    if key is None or isinstance(key, str | int | float | bool):
        return key if key is None or type(key) in (str, bool) else _plain(key, path)
    raise InputError(
        f"checkpoint entry {format_path(path)} has a key of type {type(key).__name__}; keys are strings, numbers, None "
        "or tuples of these: rename it."
    )


def unflatten(node: Node, leaf: Callable[[int], Any]) -> Any:
    """The state that `node` describes, with `leaf(i)` in the places of leaf `i`; FormatError on anything unknown.

    `leaf` is called once for each, so that tied tensors are tied again.
    """
    return _build(node, functools.cache(leaf), 0)


def _build(node: Node, leaf: Callable[[int], Any], depth: int) -> Any:
    if node is None or isinstance(node, str | bool | int | float):
        return node
    if depth > READ_DEPTH + 1:
        raise FormatError(f"the manifest's tree is nested over {READ_DEPTH} deep: the file is damaged or hostile.")
    if isinstance(node, list):
        return [_build(item, leaf, depth + 1) for item in node]
    if not isinstance(node, dict) or len(node) != 1:
        raise _bad(node)
    (tag, body), *_ = node.items()
    if tag == "dict" and isinstance(body, dict):
        return {key: _build(item, leaf, depth + 1) for key, item in body.items()}
    if tag == "leaf" and type(body) is int:
        return leaf(body)
    if tag == "tuple" and isinstance(body, list):
        return tuple(_build(item, leaf, depth + 1) for item in body)
    if tag == "items" and isinstance(body, list):
        return dict(_pair(item, leaf, depth) for item in body)
    if tag in _DICTS:
        return _build_dict(tag, body, leaf, depth)
    return _special(tag, body)


_DICTS = ("ordered", "module", "counter", "default")


def _build_dict(tag: str, body: Any, leaf: Callable[[int], Any], depth: int) -> Any:
    """A dict of another kind than plain, with the plain one inside its node."""
    inside, other = _inside({tag: body}), None
    content = _build(inside, leaf, depth + 1)
    if tag == "module":
        other = _build(body[1], leaf, depth + 1)
    if not isinstance(content, dict):
        raise _bad({tag: body})
    if tag == "counter":
        return Counter(content)
    if tag == "default":
        return defaultdict(FACTORIES[body[0]], content)
    ordered = OrderedDict(content)
    if tag == "module":
        ordered._metadata = other  # type: ignore[attr-defined] # as torch.nn.Module.state_dict does
    return ordered


def _inside(node: dict[str, Any]) -> Node:
    """The plain dict's node in the node of another kind of dict."""
    ((tag, body),) = node.items()
    if tag in ("ordered", "counter"):
        return body
    if not isinstance(body, list) or len(body) != 2:
        raise _bad(node)
    if tag == "module":
        return body[0]
    if not isinstance(body[0], str | None) or body[0] not in FACTORIES:
        raise _bad(node)
    return body[1]


def _pair(item: Any, leaf: Callable[[int], Any], depth: int) -> tuple[Any, Any]:
    if not isinstance(item, list) or len(item) != 2:
        raise _bad(item)
    key = _build(item[0], _no_leaf, depth + 1)
    try:
        hash(key)
    except TypeError as error:
        raise _bad(item[0]) from error
    return key, _build(item[1], leaf, depth + 1)


def _no_leaf(index: int) -> Any:
    raise FormatError(f"the manifest uses leaf {index} as a dictionary key: the file is damaged.")


def _special(tag: str, body: Any) -> Any:
    try:
        if tag == "size" and isinstance(body, list) and all(type(size) is int and 0 <= size < 2**63 for size in body):
            return torch.Size(body)
        if tag == "int" and isinstance(body, str) and len(body) <= MAX_HEX:
            return int(body, 16)
        if tag == "float" and isinstance(body, str) and len(body) == 16:
            return struct.unpack(">d", bytes.fromhex(body))[0]
        if tag == "complex" and isinstance(body, list) and len(body) == 2:
            real, imag = (_build(part, _no_leaf, 0) for part in body)
            return complex(float(real), float(imag))
    except (ValueError, TypeError) as error:
        raise _bad({tag: body}) from error
    raise _bad({tag: body})


def _bad(node: Any) -> FormatError:
    return FormatError(f"the manifest's tree holds {str(node)[:80]!r}, which no version writes: the file is damaged.")


def select(node: Node, keys: Iterable[str]) -> Node:
    """The part of a tree under the given paths (`"model"`, `"model/actor.0.weight"`, `"optimizer/state/0"`).

    A path that ends in "?" may be missing: what is not there is left out.

    Raises:
        InputError: Another path that is not in the tree.
    """
    paths = []
    for key in keys:
        path = key.removesuffix("?").strip("/").split("/")
        if not key.endswith("?"):
            _require(node, path)
        paths.append(path)
    return _prune(node, paths)


def children(node: Node) -> list[tuple[Any, Node]]:
    """Keys and nodes of a dict of any kind; nothing of anything else."""
    if isinstance(node, dict) and len(node) == 1 and next(iter(node)) in _DICTS:
        return children(_inside(node))
    if isinstance(node, dict) and isinstance(node.get("dict"), dict):
        return list(node["dict"].items())
    if isinstance(node, dict) and isinstance(node.get("items"), list):
        return [tuple(pair) for pair in node["items"] if isinstance(pair, list) and len(pair) == 2]
    return []


def _require(node: Node, path: list[str]) -> None:
    for depth, part in enumerate(path):
        names = {str(key): child for key, child in children(node)}
        if part not in names:
            raise InputError(
                f"key {'/'.join(path)!r} is not in the checkpoint: at {'/'.join(path[:depth]) or 'the top'} it has "
                f"{', '.join(sorted(names)[:20]) or 'no keys'}; choose among these."
            )
        node = names[part]


def _prune(node: Node, paths: list[list[str]]) -> Node:
    if any(not path for path in paths):
        return node
    kept = []
    for key, child in children(node):
        below = [path[1:] for path in paths if path[0] == str(key)]
        if below:
            kept.append((key, _prune(child, below)))
    return with_children(node, kept)


def with_children(node: Node, kept: list[tuple[Any, Node]]) -> Node:
    """A dict's node with some of its children; of anything else, which has none, an empty dict's."""
    tag = next(iter(node), "") if isinstance(node, dict) else ""
    if tag == "dict":
        return {"dict": dict(kept)}
    if tag not in _DICTS:
        return {"items": [list(pair) for pair in kept]}
    inside = with_children(_inside(node), kept)
    body = node[tag]
    return {tag: [inside, body[1]] if tag == "module" else [body[0], inside] if tag == "default" else inside}


def leaf_numbers(node: Node) -> list[int]:
    """Numbers of the leaves that a tree refers to, in order, each once."""
    found: list[int] = []
    unflatten(node, found.append)
    return found
