"""Specs: what a tensor at an env's border looks like, without its leading `num_envs` axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TensorSpec:
    """Shape, type and bounds of one tensor.

    `num_values` is set for discrete tensors, which hold integers in [0, num_values).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: float = float("-inf")
    high: float = float("inf")
    num_values: int | None = None
    doc: str = ""

    @property
    def bounded(self) -> bool:
        return self.low > float("-inf") and self.high < float("inf")
