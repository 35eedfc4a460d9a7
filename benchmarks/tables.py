"""Tables of figures that fit 80 columns."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.table import Table


def table(title: str, first: str, *columns: str, wrap: bool = False) -> Table:
    """A narrow table: what on the left (in one line unless `wrap`), figures on the right."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, padding=(0, 1, 0, 0))
    made.add_column(first, no_wrap=not wrap)
    for column in columns:
        made.add_column(column, justify="right")
    return made


def three_digits(value: float) -> str:
    """0.89, 12.3, 588: as much as a measured figure is worth."""
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def shown(figures: dict[str, Any]) -> str:
    """A spread as `median (low-high)`."""
    median, low, high = (three_digits(figures[name]) for name in ("median", "low", "high"))
    return f"{median} ({low}-{high})"
