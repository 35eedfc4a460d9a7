"""Other forms that values of an episode come in, made into arrays: compressed frames, and small text.

Contract
    Compressed frames are a list (or object array) of what `compress_image` made, or bytes that `compress_image_seq` made for
    the whole episode; plain LZ4 frames in their place need the key's `KeySpec`, since they do not say what they hold.
    Text is one string for the whole episode, or a list with one per frame. It becomes a column of bytes [T, W], UTF-8 with
    zeros behind; W is that of the key's `KeySpec`, or `TEXT_BYTES`. `read_text` turns such columns back.
    Everything else passes as it is.
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
    """The episode with arrays under every key."""
    if not any(_kind(episode[name]) for name in episode.keys()):  # noqa: SIM118 - a TensorDict is no dict
        return episode
    frames = _Frames(schema, episode)
    return {str(name): frames.plain(str(name)) for name in episode.keys()}  # noqa: SIM118


def read_text(column: torch.Tensor | np.ndarray) -> list[str]:
    """Strings of a column of bytes [B, W]."""
    rows = np.asarray(column.cpu() if isinstance(column, torch.Tensor) else column, np.uint8)
    return [row.tobytes().rstrip(b"\0").decode("utf-8", "replace") for row in rows]


def _kind(value: Any) -> type | None:
    """`str` for text, `bytes` for compressed frames, None for the rest."""
    if isinstance(value, str | bytes | bytearray | memoryview):
        return str if isinstance(value, str) else bytes
    if isinstance(value, np.ndarray) and value.dtype.kind == "U":
        return str
    if not isinstance(value, list | tuple) and not (isinstance(value, np.ndarray) and value.dtype == object):
        return None
    kinds = {str if isinstance(item, str) else bytes if isinstance(item, _BYTES) else None for item in value}
    return kinds.pop() if len(kinds) == 1 else None


class _Frames:
    """One episode being made plain."""

    def __init__(self, schema: Schema, episode: Mapping[str, Any]) -> None:
        self.schema, self.episode = schema, episode

    def plain(self, name: str) -> Any:
        value = self.episode[name]
        kind = _kind(value)
        if kind is str:
            return self._text(name, value)
        return self._images(name, value) if kind is bytes else value

    def _length(self) -> int:
        """Transitions, as those keys tell whose values are arrays or lists."""
        for name in self.schema.steps + sorted(self.schema.observed):
            value = self.episode.get(name)
            if value is not None and not isinstance(value, str | bytes | bytearray | memoryview):
                apart = any(before + name in self.episode.keys() for before in (FINAL, NEXT))  # noqa: SIM118
                return len(value) - (name in self.schema.observed and not apart)
        raise InputError("no key of the episode says how long it is: give one as a list or an array.")

    def _images(self, name: str, value: Any) -> np.ndarray:
        base = name
        for before in (NEXT, FINAL):
            base = base.removeprefix(before) if base.removeprefix(before) in self.schema.observed else base
        spec = self.schema.specs.get(base)
        single = name == FINAL + base
        whole = isinstance(value, _BYTES) and not single
        shape: Sequence[int] | None = None
        dtype: Any = np.uint8
        if any(is_lz4(item) for item in ([value] if isinstance(value, _BYTES) else value)):
            if spec is None:
                raise InputError(
                    f"{name!r} holds plain LZ4 frames, which do not say what is in them: give the buffer a KeySpec for it."
                )
            shape, dtype = spec.shape, torch.empty(0, dtype=spec.dtype).numpy().dtype
        if single:
            return decompress_image(value, shape, dtype)
        if whole:
            apart = any(before + base in self.episode.keys() for before in (FINAL, NEXT))  # noqa: SIM118
            extra = base in self.schema.observed and not apart
            return decompress_image_seq(value, shape, self._length() + extra if shape is not None else None, dtype)
        return np.stack([decompress_image(item, shape, dtype) for item in value])

    def _text(self, name: str, value: Any) -> np.ndarray:
        spec = self.schema.specs.get(name)
        width = spec.shape[0] if spec is not None and len(spec.shape) == 1 else TEXT_BYTES
        texts = [value] * self._length() if isinstance(value, str) else list(value)
        column = np.zeros((len(texts), width), np.uint8)
        for row, text in zip(column, texts, strict=True):
            data = str(text).encode()
            if len(data) > width:
                raise InputError(
                    f"{name!r} has a text of {len(data)} bytes, but {width} are kept: give the buffer a KeySpec((n,), "
                    "torch.uint8) for it."
                )
            row[: len(data)] = np.frombuffer(data, np.uint8)
        return column
