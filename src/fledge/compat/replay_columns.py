"""How the compat replay buffer stores the keys of its episodes in a `fledge.DictReplayBuffer`, the engine.

The engine derives `next_X` from X, refuses `done` inside an episode, and needs a `KeySpec` for frames of different sizes. So
each key is a column under a neutral name, "kN"; `next_X` is derived, "next_kN", as long as it repeats X one frame later in
every episode; and a column whose frames differ in the length of their first axis is ragged: all its frames are padded to the
same length, a power of two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from fledge.compat.lz4_images import decompress_image, decompress_image_seq, describe
from fledge.core.errors import InputError
from fledge.replay.ingest.forms import TEXT_BYTES
from fledge.replay.schema import NEXT, KeySpec, as_tensor

Form = Literal["frame", "episode", "plain"]
_BYTES = (bytes, bytearray, memoryview)


@dataclass(frozen=True)
class Column:
    """How a key is stored: its name in the engine, its spec if known, and the form in which its frames were added."""

    name: str
    spec: KeySpec | None = None
    form: Form = "plain"

    @property
    def derived(self) -> bool:
        return self.name.startswith(NEXT)

    @property
    def ragged(self) -> bool:
        return self.spec is not None and self.spec.ragged


def read_columns(
    entries: Mapping[str, Any], columns: Mapping[str, Column], given: Mapping[str, KeySpec | None], most: int
) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return columns that can store an episode, and its values by column name; only its last `most` frames are kept."""
    length = _length(entries)
    frames, forms = {}, {}
    for key, value in entries.items():
        frames[key], forms[key] = _read(key, value, length, given.get(key))
        if len(frames[key]) != length:
            raise InputError(
                f"{key!r} has {len(frames[key])} frames, but other keys of the episode have {length}: pass as many for each."
            )
        frames[key] = frames[key][-most:]
    found = dict(columns) or {key: Column(f"k{number}", form=forms[key]) for number, key in enumerate(entries)}
    if not columns:
        for key in entries:
            base = key.removeprefix(NEXT)
            if key.startswith(NEXT) and base in entries:
                found[key] = replace(found[key], name=NEXT + found[base].name)
    for key, values in frames.items():
        found[key] = replace(found[key], spec=_spec(key, values, found[key].spec))
    for key in [key for key, column in found.items() if column.derived]:
        base = key.removeprefix(NEXT)
        if not _follows(frames[base], frames[key]) or base.startswith(NEXT):
            taken = [column.name for column in found.values()]
            unused = next(name for name in (f"k{number}" for number in range(len(taken) + 1)) if name not in taken)
            found[key] = replace(found[key], name=unused)
        else:  # both are one column of the engine
            spec = _larger(found[base].spec, found[key].spec)
            found[base], found[key] = replace(found[base], spec=spec), replace(found[key], spec=spec)
    return found, {c.name: list(frames[key]) if c.ragged else frames[key] for key, c in found.items()}


def _length(entries: Mapping[str, Any]) -> int:
    """Return the number of frames of "done", or of the first key that is neither text nor compressed."""
    for value in (entries.get(key) for key in ("done", *entries)):
        if isinstance(value, list | tuple) and not (len(value) == 1 and isinstance(value[0], _BYTES)):
            return len(value)
        if isinstance(value, np.ndarray | torch.Tensor) and value.ndim:
            return len(value)
    one = next(iter(entries.values()))
    shape = describe(one[0] if isinstance(one, list | tuple) else one)[0] if not isinstance(one, str) else None
    if shape is None:
        raise InputError("The length of the episode is unknown: pass 'done' as a list or an array.")
    return shape[0]


def _read(key: str, value: Any, length: int, spec: KeySpec | None) -> tuple[Any, Form]:
    """Return the frames of a key as a tensor [T, ...], or a list if they differ in size; and the form they were given in."""
    if isinstance(value, str):
        value = [value] * length
    if isinstance(value, _BYTES):
        value = [value]
    if isinstance(value, list | tuple) and value and all(isinstance(item, _BYTES) for item in value):
        return _decompress(key, value, length, spec)
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        return _text(key, value), "plain"
    return (_stack(key, value), "plain") if isinstance(value, list | tuple) else (as_tensor(value, key), "plain")


def _decompress(key: str, value: Sequence[Any], length: int, spec: KeySpec | None) -> tuple[Any, Form]:
    said, shape, dtype = describe(value[0])[0], None, None
    if said is None:  # a frame of another program
        if spec is None:
            fix = f"pass keys={{{key!r}: KeySpec(shape, dtype), ...}}, or use compress_image of this module"
            raise InputError(f"{key!r} holds LZ4 frames that do not contain their shape: {fix}.")
        shape, dtype = spec.shape, torch.empty(0, dtype=spec.dtype).numpy().dtype
    if len(value) == 1 and (length > 1 or (said is not None and said[:1] == (1,) and len(said) > 1)):
        return torch.from_numpy(
            decompress_image_seq(value[0], shape, length if said is None else None, dtype)
        ), "episode"
    return _stack(key, [decompress_image(item, dtype=dtype, shape=shape) for item in value]), "frame"


def _stack(key: str, frames: Sequence[Any]) -> Any:
    tensors = [as_tensor(frame, key) for frame in frames]
    if len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1:
        return torch.stack(tensors)
    if any(tensor.ndim == 0 for tensor in tensors):
        return as_tensor(np.asarray(frames), key)
    if len({(tensor.shape[1:], tensor.dtype) for tensor in tensors}) != 1:
        shapes = sorted({f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors})[:4]
        raise InputError(f"The frames of {key!r} have shapes {', '.join(shapes)}, but only the first axis may differ.")
    return tensors


def _text(key: str, texts: Sequence[str]) -> torch.Tensor:
    rows = [text.encode() for text in texts]
    if max(map(len, rows)) > TEXT_BYTES:
        raise InputError(f"{key!r} has a text of more than {TEXT_BYTES} bytes: shorten it, or store a number for it.")
    return torch.from_numpy(np.stack([np.frombuffer(row.ljust(TEXT_BYTES, b"\0"), np.uint8).copy() for row in rows]))


def _spec(key: str, frames: Any, known: KeySpec | None) -> KeySpec | None:
    """Return a spec that fits these frames and all earlier ones of the column; `known` is the column's spec so far."""
    shape, dtype = tuple(frames[0].shape), frames[0].dtype
    if known is None:
        known = KeySpec(shape, dtype)
    if isinstance(frames, torch.Tensor) and not known.ragged and shape == known.shape:
        return known
    if shape[1:] != known.shape[1:] or not shape:
        raise InputError(
            f"A frame of {key!r} has shape {shape}, but earlier ones have {known.shape}: only the first axis may differ."
        )
    count = max(1, *(len(frame) for frame in frames), known.shape[0] if known.shape else 0)
    return KeySpec((1 << (count - 1).bit_length(), *shape[1:]), known.dtype, ragged=True)


def _larger(a: KeySpec | None, b: KeySpec | None) -> KeySpec | None:
    assert a is not None
    assert b is not None
    return max(a, b, key=lambda spec: (spec.ragged, spec.shape[0] if spec.shape else 0))


def _follows(frames: Any, later: Any) -> bool:
    """Return whether `later` equals `frames` shifted by one frame, bit for bit."""
    if len(frames) != len(later) or frames[0].dtype != later[0].dtype:
        return False
    together = isinstance(frames, torch.Tensor) and isinstance(later, torch.Tensor)
    pairs = [(frames[1:], later[:-1])] if together else zip(frames[1:], later[:-1], strict=True)
    return all(a.shape == b.shape and torch.equal(_bits(a), _bits(b)) for a, b in pairs)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor
