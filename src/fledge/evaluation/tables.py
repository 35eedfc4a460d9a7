"""Results of evaluations as tables for terminals of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from fledge.tasks.base import Task


def results_table(rows: list[dict[str, Any]], task: Task) -> Table:
    """The figures as a table that fits 80 columns."""
    title = f"{rows[0]['episodes']} episodes each in the held-out world, seed {rows[0]['seed']}"
    others = outcome_labels(rows[0], task)
    head = others.pop(task.primary_metric, task.primary_metric)
    view = text_table(title, "policy", ["world", head, "95 %", *others.values()], width=20)
    for row in rows:
        score = score_texts(row, task.primary_metric)
        view.add_row(row["policy"], row["world"], *score, *(short(row[name]) for name in others))
    return view


def text_table(title: str | None, first: str, headings: Sequence[str], width: int | None = None, gap: int = 1) -> Table:
    """Return an empty table whose first column folds, at `width`, and whose others are figures."""
    view = Table(title=title, box=SIMPLE, padding=(0, gap, 0, 0))
    view.add_column(first, overflow="fold", max_width=width)
    for heading in headings:
        view.add_column(heading, justify="right", no_wrap=True)
    return view


def detail_tables(rows: list[dict[str, Any]], task: Task) -> list[Table]:
    """The primary metric by class of episode, and the task's metrics; a table for each kind of world."""
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(tuple(classes_of([row], task)), []).append(row)
    views = [detail_table(group, classes, task) for classes, group in kinds.items()]
    return [view for view in views if len(view.columns) > 1]


def detail_table(rows: list[dict[str, Any]], classes: Sequence[str], task: Task) -> Table:
    """The same of worlds with the same classes, 80 columns wide: names fold, figures do not."""
    figures = [name for name in task.metrics.columns if any(name in row for row in rows)]
    view = text_table(None, "policy, world", [*classes, *(task.metrics.columns[name] for name in figures)], width=22)
    for row in rows:
        cells = [class_score(row, name, task) for name in classes]
        values = [row.get(name) for name in figures]
        cells += ["" if value is None else f"{value:.{1 if value >= 10 else 2}f}" for value in values]
        view.add_row(f"{row['policy']}\n{row['world']}", *cells)
    return view


def classes_of(rows: Sequence[dict[str, Any]], task: Task) -> list[str]:
    """Classes of episodes that any row tells apart, the hardest first."""
    return [name for name in task.metrics.classes if any(name in row.get("by_class", {}) for row in rows)]


def class_score(row: dict[str, Any], name: str, task: Task) -> str:
    """The primary metric of one class in a row."""
    found = row.get("by_class", {}).get(name)
    return "" if found is None else digits(found[task.primary_metric], task.primary_metric)


def score_of(row: dict[str, Any], head: str) -> tuple[float, float, float]:
    """Return the primary metric of a row and its 95 % interval."""
    return (row["mean_return"] if head == "return" else row[head], *row[f"{head}_ci95"])


def score_texts(row: dict[str, Any], head: str) -> tuple[str, str]:
    """Return the same as text: .912 and .893-.928, or 163.2 and 146.0 to 180.1."""
    value, low, high = (digits(x, head) for x in score_of(row, head))
    return value, f"{low} to {high}" if head == "return" else f"{low}-{high}"


def digits(value: float, head: str) -> str:
    return f"{value:.1f}" if head == "return" else short(value)


def outcome_labels(row: dict[str, Any], task: Task) -> dict[str, str]:
    """Headings of the outcomes in a row."""
    known = task.metrics.labels or {name: name.replace("_", " ") for name in ("terminated", "truncated")}
    return {name: label for name, label in known.items() if name in row}


def short(rate: float) -> str:
    return f"{rate:.3f}".removeprefix("0")
