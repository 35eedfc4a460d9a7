"""The structure of a saved state as JSON nodes (see docs/reference/checkpoint_format.md), with references to the leaves.

`unflatten(node, leaf)` rebuilds the state that `flattening.flatten` was given. It reads untrusted input, so it is strict and
never calls anything that the file names. `select` extracts a part of a tree by paths.
"""

from __future__ import annotations

import functools
import struct
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fledge.core.errors import FormatError, InputError

Node = Any
MAX_DEPTH = 100  # when writing: deeper than any real state, shallow enough for Python's stack
READ_DEPTH = 2 * MAX_DEPTH
MAX_HEX = 100_000  # digits of a whole number
FACTORIES: dict[str | None, Any] = {None: None} | {kind.__name__: kind for kind in (dict, list, int, float, str, bool)}


def unflatten(node: Node, leaf: Callable[[int], Any]) -> Any:
    """Build the state that `node` describes, with `leaf(i)` for leaf `i`; raise FormatError for anything unknown.

    `leaf` is called once per number, so that tensors that were tied when saved are the same object again.
    """
    return _build(node, functools.cache(leaf), 0)


def _build(node: Node, leaf: Callable[[int], Any], depth: int) -> Any:
    if node is None or isinstance(node, str | bool | int | float):
        return node
    if depth > READ_DEPTH + 1:
        raise FormatError(f"the manifest's tree is over {READ_DEPTH} levels deep: the file is damaged or was altered.")
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
    """Build an OrderedDict, a module's state dict, a Counter or a defaultdict from its node `{tag: body}`."""
    content = _build(_inside({tag: body}), leaf, depth + 1)
    if not isinstance(content, dict):
        raise _bad({tag: body})
    if tag == "counter":
        return Counter(content)
    if tag == "default":
        return defaultdict(FACTORIES[body[0]], content)
    ordered = OrderedDict(content)
    if tag == "module":
        metadata = _build(body[1], leaf, depth + 1)
        ordered._metadata = metadata  # type: ignore[attr-defined] # as torch.nn.Module.state_dict does
    return ordered


def _inside(node: dict[str, Any]) -> Node:
    """Return the part of the node of an OrderedDict, state dict, Counter or defaultdict that describes its entries."""
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
    except (ValueError, TypeError, OverflowError) as error:
        raise _bad({tag: body}) from error
    raise _bad({tag: body})


def _bad(node: Any) -> FormatError:
    return FormatError(f"the manifest's tree holds {str(node)[:80]!r}, which Fledge never writes: the file is damaged.")


def select(node: Node, keys: Iterable[str]) -> Node:
    """Return the part of a tree under the given paths (`"model"`, `"model/actor.0.weight"`, `"optimizer/state/0"`).

    A path that ends in "?" may be missing.

    Raises:
        InputError: A path that does not end in "?" is missing.
    """
    paths = []
    for key in keys:
        paths.append(key.removesuffix("?").strip("/").split("/"))
        if not key.endswith("?"):
            _require(node, paths[-1])
    return _prune(node, paths)


def children(node: Node) -> list[tuple[Any, Node]]:
    """Return the keys and child nodes of a node, if it is a dict of any kind; else an empty list."""
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
    below = [(key, child, [path[1:] for path in paths if path[0] == str(key)]) for key, child in children(node)]
    return with_children(node, [(key, _prune(child, rest)) for key, child, rest in below if rest])


def with_children(node: Node, kept: list[tuple[Any, Node]]) -> Node:
    """Return the node of a dict with `kept` as its only children; if `node` is not a dict, return a plain dict's node."""
    tag = next(iter(node), "") if isinstance(node, dict) else ""
    if tag == "dict":
        return {"dict": dict(kept)}
    if tag not in _DICTS:
        return {"items": [list(pair) for pair in kept]}
    inside = with_children(_inside(node), kept)
    body = node[tag]
    return {tag: [inside, body[1]] if tag == "module" else [body[0], inside] if tag == "default" else inside}


def leaf_numbers(node: Node) -> list[int]:
    """Return the numbers of the leaves that a tree refers to, in order, each once."""
    found: list[int] = []
    unflatten(node, found.append)
    return found


def shift_leaves(node: Node, by: int) -> Node:
    """Return a tree whose leaf numbers are larger by `by`, to make it a part of another tree."""
    if isinstance(node, list):
        return [shift_leaves(item, by) for item in node]
    if not isinstance(node, dict):
        return node
    ((tag, body),) = node.items()
    if tag == "leaf":
        return {"leaf": body + by}
    if tag == "dict":
        return {"dict": {key: shift_leaves(item, by) for key, item in body.items()}}
    return {tag: shift_leaves(body, by)}
