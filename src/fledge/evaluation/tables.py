"""Results of evaluations as tables for terminals of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from fledge.tasks.base import Task


def results_table(rows: list[dict[str, Any]], task: Task) -> Table:
    """The figures as a table that fits 80 columns."""
    view = Table(
        title=f"{rows[0]['episodes']} episodes each in the held-out world, seed {rows[0]['seed']}",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    view.add_column("policy", overflow="fold", max_width=20)
    labels = outcome_labels(rows[0], task)
    others = [name for name in labels if name != task.primary_metric]
    for heading in ("world", task.primary_metric, "95 %", *(labels[name] for name in others)):
        view.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        low, high = row[f"{task.primary_metric}_ci95"]
        if task.primary_metric == "return":
            score, interval = f"{row['mean_return']:.1f}", f"{low:.1f} to {high:.1f}"
        else:
            score, interval = short(row[task.primary_metric]), f"{short(low)}-{short(high)}"
        view.add_row(row["policy"], row["world"], score, interval, *(short(row[name]) for name in others))
    return view


def detail_tables(rows: list[dict[str, Any]], task: Task) -> list[Table]:
    """The headline by class of episode, and the figures of the task's gauge; a table for each kind of world."""
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(tuple(classes_of([row], task)), []).append(row)
    views = [detail_table(group, classes, task) for classes, group in kinds.items()]
    return [view for view in views if len(view.columns) > 1]


def detail_table(rows: list[dict[str, Any]], classes: Sequence[str], task: Task) -> Table:
    """The same of worlds with the same classes, 80 columns wide: names fold, figures do not."""
    figures = [name for name in task.metrics.columns if any(name in row for row in rows)]
    view = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    view.add_column("policy, world", overflow="fold", max_width=22)
    for heading in (*classes, *(task.metrics.columns[name] for name in figures)):
        view.add_column(heading, justify="right", no_wrap=True)
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
    """The headline of one class in a row."""
    found = row.get("by_class", {}).get(name)
    if found is None:
        return ""
    return f"{found['return']:.1f}" if task.primary_metric == "return" else short(found[task.primary_metric])


def outcome_labels(row: dict[str, Any], task: Task) -> dict[str, str]:
    """Headings of the outcomes in a row."""
    known = task.metrics.labels or {name: name.replace("_", " ") for name in ("terminated", "truncated")}
    return {name: label for name, label in known.items() if name in row}


def short(rate: float) -> str:
    return f"{rate:.3f}".removeprefix("0")
