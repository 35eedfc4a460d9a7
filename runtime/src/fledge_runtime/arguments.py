"""Readers of the arguments of the command line."""

from __future__ import annotations

import argparse
import math
from typing import Any, Callable


def numbers(count: int) -> Any:
    """Return a reader of `count` numbers with commas between."""

    def read(text: str) -> tuple[float, ...]:
        try:
            values = tuple(float(part) for part in text.split(","))
        except ValueError:
            values = ()
        if len(values) != count or not all(map(math.isfinite, values)):
            raise argparse.ArgumentTypeError(f"{text!r} is not {count} numbers with commas between")
        return values

    return read


def number(
    least: float = -math.inf, most: float = math.inf, above: float = -math.inf, infinite: bool = False
) -> Callable[[str], float]:
    """Return a reader of a number within bounds."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least <= value <= most and value > above) or (math.isinf(value) and not infinite):
            bound = f"above {above:g}" if math.isfinite(above) else f"of at least {least:g}"
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number {bound}{f' and at most {most:g}' if math.isfinite(most) else ''}"
            )
        return value

    return read


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a reader of a whole number within bounds."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            bound = f"from {least} to {most}" if most is not None else f"of at least {least}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {bound}")
        return value

    return read


def read_fence(text: str) -> Any:
    """Return a geofence from `box:` and two corners, or `radius:`, a centre, the radius and two heights."""
    from fledge_runtime.limits import Box, Cylinder

    kind, _, rest = text.partition(":")
    if kind == "box":
        values = numbers(6)(rest)
        if not all(low < high for low, high in zip(values[:3], values[3:])):
            raise argparse.ArgumentTypeError(f"{text!r} must give the lowest corner first, then the highest")
        return Box(values[:3], values[3:])
    if kind == "radius":
        x, y, radius, low, high = numbers(5)(rest)
        if not (radius > 0 and low < high):
            raise argparse.ArgumentTypeError(f"{text!r} must have a radius above 0 and the lower height first")
        return Cylinder((x, y), radius, low, high)
    raise argparse.ArgumentTypeError(f"{text!r} is neither box:X,Y,Z,X,Y,Z nor radius:X,Y,R,LOW,HIGH")
