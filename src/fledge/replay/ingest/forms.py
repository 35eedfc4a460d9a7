"""Convert compressed frames and text in an episode to arrays.

Compressed frames are a list (or object array) of outputs of `compress_image`, or the output of `compress_image_seq` for the
whole episode. Plain LZ4 frames are accepted if the key has a `KeySpec`, because they do not contain shape and dtype.
Text is one string for the whole episode, or a list with one per frame. It becomes a column of bytes [T, W], UTF-8 padded with
zeros; W is shape[0] of the key's `KeySpec`, or `TEXT_BYTES`. `read_text` converts such columns back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fledge.core.errors import InputError
from fledge.replay.images import decompress_image, decompress_image_seq, is_lz4
from fledge.replay.schema import FINAL, NEXT, Schema

TEXT_BYTES = 64
_BYTES = (bytes, bytearray, memoryview)


def plain_values(schema: Schema, episode: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the episode with text and compressed frames converted to arrays."""
    readers: dict[type | None, Any] = {str: _text, bytes: _images, None: lambda schema, episode, name: episode[name]}
    return {name: readers[_kind(value)](schema, episode, name) for name, value in episode.items()}


def read_text(column: torch.Tensor | np.ndarray) -> list[str]:
    """Return the strings of a column of bytes [B, W]."""
    rows = np.asarray(column.cpu() if isinstance(column, torch.Tensor) else column, np.uint8)
    return [row.tobytes().rstrip(b"\0").decode("utf-8", "replace") for row in rows]


def _kind(value: Any) -> type | None:
    """Return `str` for text, `bytes` for compressed frames, None for other values."""
    if isinstance(value, (str, *_BYTES)):
        return str if isinstance(value, str) else bytes
    if not isinstance(value, list | tuple) and not (isinstance(value, np.ndarray) and value.dtype.kind in "UO"):
        return None
    kinds = {str if isinstance(item, str) else bytes if isinstance(item, _BYTES) else None for item in value}
    return kinds.pop() if len(kinds) == 1 else None


def _final_rows(schema: Schema, episode: Mapping[str, Any], name: str) -> int:
    """Return 1 if the frames of a key include its final observation, else 0."""
    return int(name in schema.observed and not any(before + name in episode for before in (FINAL, NEXT)))


def _length(schema: Schema, episode: Mapping[str, Any]) -> int:
    """Return the number of transitions, taken from a key that is an array or a list."""
    for name in schema.steps + sorted(schema.observed):
        value = episode.get(name)
        if value is not None and not isinstance(value, (str, *_BYTES)):
            return len(value) - _final_rows(schema, episode, name)
    raise InputError("The length of the episode is unknown: pass at least one key as a list or an array.")


def _images(schema: Schema, episode: Mapping[str, Any], name: str) -> np.ndarray:
    value, base = episode[name], name
    for before in (NEXT, FINAL):
        base = base.removeprefix(before) if base.removeprefix(before) in schema.observed else base
    shape: Sequence[int] | None = None
    dtype: Any = np.uint8
    if any(is_lz4(item) for item in ([value] if isinstance(value, _BYTES) else value)):
        spec = schema.specs.get(base)
        if spec is None:
            raise InputError(f"{name!r} holds LZ4 frames, which lack shape and dtype: give the key a KeySpec.")
        shape, dtype = spec.shape, torch.empty(0, dtype=spec.dtype).numpy().dtype
    if name == FINAL + base:
        return decompress_image(value, shape, dtype)
    if isinstance(value, _BYTES):
        count = None if shape is None else _length(schema, episode) + _final_rows(schema, episode, base)
        return decompress_image_seq(value, shape, count, dtype)
    return np.stack([decompress_image(item, shape, dtype) for item in value])


def _text(schema: Schema, episode: Mapping[str, Any], name: str) -> np.ndarray:
    value, spec = episode[name], schema.specs.get(name)
    width = spec.shape[0] if spec is not None and len(spec.shape) == 1 else TEXT_BYTES
    texts = [value] * _length(schema, episode) if isinstance(value, str) else list(value)
    column = np.zeros((len(texts), width), np.uint8)
    for row, text in zip(column, texts, strict=True):
        data = str(text).encode()
        if len(data) > width:
            fix = f"give the key KeySpec(({len(data)},), torch.uint8)"
            raise InputError(f"{name!r} has a text of {len(data)} bytes, but at most {width} are stored: {fix}.")
        row[: len(data)] = np.frombuffer(data, np.uint8)
    return column
