"""Check the form of a saved replay, which comes from a file and is not trusted, before anything is built from it.

A form describes what belongs in each place of a saved state:

    int, float, str, bool       a plain value of this type (a float may be a whole number)
    Array("iu")                 a NumPy array or tensor of these kinds of dtype, with one axis unless `ndim` is None
    Maybe(form)                 None, or a value of this form
    [form]                      a list of values of this form
    {str: form}                 a dict of values of this form, by any names
    {"a": form, ...}            a dict with these entries; further ones are kept unchecked
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fledge.replay.checks import damaged

KINDS = {"i": "whole numbers", "f": "numbers", "b": "booleans", "u": "unsigned numbers"}


@dataclass(frozen=True)
class Array:
    """Form of an array: the allowed kinds of its dtype (as NumPy names them), and its number of axes."""

    kinds: str
    ndim: int | None = 1


@dataclass(frozen=True)
class Maybe:
    """Form of a value that may be None."""

    form: Any


INTS, WORDS = Array("iu"), Array("u", None)
SPEC = {"shape": [int], "dtype": str, "ragged": bool}
BLOBS = {"segments": [Array("u")], "segment": INTS, "begin": INTS, "end": INTS, "dropped": int}
REPLAY = {
    "version": int,
    "keys": [str],
    "specs": {str: SPEC},
    "plan": [{"keys": [str], "rows": Maybe(int), "codec": str}],
    "stores": [{"blobs": BLOBS, "first": INTS, "length": INTS}],
    "index": {"values": INTS, "evicted_total": int},
    "measured": bool,
    "rng": {"bit_generator": str, "state": {"state": int, "inc": int}, "has_uint32": int, "uinteger": int},
    "priorities": Maybe({"priorities": Array("f"), "largest": float}),
    "open": Maybe({"count": INTS, "rows": {str: WORDS}}),
}
JOINED = {"numbers": INTS, "sizes": INTS, "data": Array("u")}
STORAGE = {"filled": Array("b"), "length": int, "packed": JOINED, "single": [JOINED]}


def check_form(value: Any, form: Any, saved: str = "replay", where: str = "") -> Any:
    """Check that a saved state has a form, and return it with its tensors as NumPy arrays.

    Args:
        value: The state, or a part of it.
        form: Form that `value` must have (see the module).
        saved: Kind of object that was saved, such as "replay"; used in the error.
        where: Path of `value` in the state, such as "index/values"; used in the error.

    Raises:
        FormatError: A value does not have its form.
    """
    if isinstance(form, Maybe):
        return None if value is None else check_form(value, form.form, saved, where)
    if isinstance(form, Array):
        array = value.numpy() if isinstance(value, torch.Tensor) and value.layout is torch.strided else value
        if not isinstance(array, np.ndarray) or array.dtype.kind not in form.kinds:
            raise _wrong(value, f"an array of {KINDS[form.kinds[0]]}", saved, where)
        if form.ndim is not None and array.ndim != form.ndim:
            raise damaged(f"has an array with {array.ndim} axes at {where!r} instead of {form.ndim}", saved)
        return array
    if isinstance(form, list):
        if not isinstance(value, list):
            raise _wrong(value, "a list", saved, where)
        return [check_form(item, form[0], saved, f"{where}/{i}") for i, item in enumerate(value)]
    if isinstance(form, dict):
        if not isinstance(value, Mapping) or (str in form and not all(isinstance(key, str) for key in value)):
            raise _wrong(value, "a dict", saved, where)
        if missing := [key for key in form if key is not str and key not in value]:
            raise damaged(f"has no entry {missing[0]!r} at {where or 'the top'!r}", saved)
        forms = dict.fromkeys(value, form[str]) if str in form else form
        parts = {key: check_form(value[key], part, saved, f"{where}/{key}".strip("/")) for key, part in forms.items()}
        return {**value, **parts}
    allowed = {int: int | np.integer, float: float | int | np.floating}.get(form, form)
    if not isinstance(value, allowed) or (isinstance(value, bool) and form is not bool):
        raise _wrong(value, f"a value of type {form.__name__}", saved, where)
    return value


def _wrong(value: Any, expected: str, saved: str, where: str) -> Exception:
    kind = f"array of {value.dtype}" if isinstance(value, np.ndarray | torch.Tensor) else type(value).__name__
    return damaged(f"has a value of type {kind} at {where or 'the top'!r} instead of {expected}", saved)
