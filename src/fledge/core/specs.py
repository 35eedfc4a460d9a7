"""Specs of observations and actions, without the leading `num_envs` axis.

An observation is a dict of tensors, so its spec is a dict. An action is one tensor or a dict of tensors, and so is its spec.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fledge.core.errors import FormatError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TensorSpec:
    """Shape, type and bounds of one tensor.

    Attributes:
        num_values: Set for discrete tensors, which hold integers in [0, num_values).
        mask: For a discrete action, the name of the observation that marks the allowed values, [*shape, num_values] bool.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: float = float("-inf")
    high: float = float("inf")
    num_values: int | None = None
    doc: str = ""
    mask: str | None = None

    @property
    def bounded(self) -> bool:
        return self.low > float("-inf") and self.high < float("inf")


ActionSpec = TensorSpec | Mapping[str, TensorSpec]


def parts_of(spec: ActionSpec) -> Mapping[str, TensorSpec]:
    """Return specs by name: the entries of a dict of specs, or a single spec under the name ""."""
    return {"": spec} if isinstance(spec, TensorSpec) else spec


PLAIN = ("low", "high", "num_values", "mask")


def describe_spec(spec: ActionSpec) -> dict[str, Any]:
    """Return a spec as plain values for a file, from which `spec_from` builds it again."""
    if not isinstance(spec, TensorSpec):
        return {"entries": {name: describe_spec(part) for name, part in spec.items()}}
    kept = {name: getattr(spec, name) for name in PLAIN}
    return {"shape": list(spec.shape), "dtype": str(spec.dtype).removeprefix("torch."), **kept}


def tell_spec(spec: TensorSpec) -> dict[str, Any]:
    """Return a spec as values of strict JSON, for other programs; an infinite bound is None."""
    plain = describe_spec(spec)
    bounds = {name: plain[name] if math.isfinite(plain[name]) else None for name in ("low", "high")}
    count = {} if spec.num_values is None else {"num_values": spec.num_values}
    return {"shape": plain["shape"], "dtype": plain["dtype"], **bounds, **count, "doc": spec.doc}


def spec_from(plain: Mapping[str, Any]) -> ActionSpec:
    """Build the spec that `describe_spec` described; raise FormatError if `plain` is not such a description."""
    import torch

    try:
        if "entries" in plain:
            parts = {str(name): spec_from(part) for name, part in plain["entries"].items()}
            return {name: part for name, part in parts.items() if isinstance(part, TensorSpec)}
        dtype = getattr(torch, str(plain["dtype"]))
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"{plain['dtype']} is not a dtype")
        count, mask = plain["num_values"], plain["mask"]
        return TensorSpec(
            tuple(int(n) for n in plain["shape"]),
            dtype,
            float(plain["low"]),
            float(plain["high"]),
            None if count is None else int(count),
            mask=None if mask is None else str(mask),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(
            f"{plain!r} is not a valid description of a tensor spec ({error}): the file is damaged."
        ) from error
