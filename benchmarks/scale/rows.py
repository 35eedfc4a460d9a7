"""Rows of the scale benchmark's tables as text, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.scale.section import CPU, costs_of
from benchmarks.tables import three_digits

Rows = list[list[str]]


def number(value: float) -> str:
    """Format a number with three significant digits, also a small one."""
    return f"{value:.2g}" if 0 < value < 0.1 else three_digits(value)


def cells_of(found: Mapping[str, Any]) -> tuple[list[str], Rows]:
    """Return the headings and the cells of a section's table; a cost in CPU time follows in brackets."""
    figures = found["figures"]
    heads = [found["items"], *(f"{figure['label']}{figure['unit'] and ', ' + figure['unit']}" for figure in figures)]
    rows = []
    for row in found["rows"]:
        cells = [f"{row['size']:,}"]
        for figure in figures:
            cpu = f" ({number(row[figure['key'] + CPU])})" if figure["cpu"] else ""
            cells.append(number(row[figure["key"]]) + cpu)
        rows.append(cells)
    return heads, rows


def lines_of(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each size that was skipped or failed."""
    for kind in ("skipped", "failed"):
        for row in found[kind]:
            size = "" if row["size"] is None else f", {row['size']:,} {found['items']}"
            yield f"{found['title']}{size}: {kind}: {row['why']}"


def bends_of(result: Mapping[str, Any]) -> tuple[list[str], Rows]:
    """Return the headings and the cells of the table of bends; `+` says that there is none up to the largest size."""
    heads = ["cost per item", "best", "flat from", "to", "at largest"]
    rows = []
    for name, found in result["sections"].items():
        units = {figure["key"]: figure["unit"] for figure in found["figures"]}
        for key, label in costs_of(found["figures"]).items():
            if (bend := found["bends"][key]) is None:
                continue
            best = f"{number(bend['best'])} {units[key.removesuffix(CPU)]}"
            bends = "" if bend["to"] < bend["largest"] else "+"
            flat = [f"{bend['start']:,}", f"{bend['to']:,}{bends}"]
            rows.append([f"{name}: {label}", best, *flat, f"{bend['at_largest']:.2f} x"])
    return heads, rows
