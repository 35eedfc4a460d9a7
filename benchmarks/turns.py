"""Figures of candidates that are timed in turns, so that other load on the machine affects all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def spread(values: Sequence[float], digits: int = 4) -> dict[str, Any]:
    """Return median and quartiles of one value per turn, and the values."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    figures = {"median": median, "low": low, "high": high}
    return {name: round(value, digits) for name, value in figures.items()} | {
        "turns": [round(value, digits) for value in values]
    }


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Return the spread of `ours` / `theirs`, turn by turn."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])
