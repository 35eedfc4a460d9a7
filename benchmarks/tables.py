"""Tables of figures that fit 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.table import Table


def table(title: str, first: str, *columns: str, wrap: bool = False) -> Table:
    """Return a narrow table: names on the left (in one line unless `wrap`), figures on the right."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, padding=(0, 1, 0, 0))
    made.add_column(first, no_wrap=not wrap)
    for column in columns:
        made.add_column(column, justify="right")
    return made


def three_digits(value: float) -> str:
    """Format a number with three significant digits: 0.89, 12.3, 588."""
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def shown(figures: dict[str, Any]) -> str:
    """Format a spread as `median (low-high)`."""
    median, low, high = (three_digits(figures[name]) for name in ("median", "low", "high"))
    return f"{median} ({low}-{high})"


def machine_line(machine: Mapping[str, Any], when: str) -> str:
    """Format `machine_info()`, whose load was measured at the "start" or the "end"."""
    return f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_average']} at the {when}"
