"""Results of evaluations as a `TextTable`, which can be printed in a terminal of any width or written as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fledge.core.text_table import TextTable
from fledge.tasks.base import Task


def results_table(rows: Sequence[dict[str, Any]], task: Task) -> TextTable:
    """Return the primary metric and the other outcomes of each evaluation; the title says in which env."""
    others = outcome_labels(rows[0], task)
    head = others.pop(task.primary_metric, task.primary_metric)
    columns = [*key_columns(rows), head, "95 %", *others.values()]
    cells = []
    for row in rows:
        shares = [short(row[name]) if name in row else "" for name in others]
        cells.append([*key_cells(row, rows), *score_texts(row, task.primary_metric), *shares])
    about = dict.fromkeys(row["about"] for row in rows if row.get("about"))
    note = " ".join(
        [task.metrics.outcome_legend, f"95 %: confidence interval of {task.primary_metric}.", *about]
    ).strip()
    return TextTable(columns, cells, episodes_title(rows), note, keys=len(key_columns(rows)))


def episodes_title(rows: Sequence[dict[str, Any]]) -> str:
    """Return the sentence above a table of results: how many episodes, in which env, from which seed."""
    envs = list(dict.fromkeys(row["world"] for row in rows))
    each = "" if len(rows) == 1 else " each"
    where = f"in env {envs[0]}" if len(envs) == 1 else f"in {len(envs)} envs"
    return f"{rows[0]['episodes']:,} held-out episodes{each} {where}, seed {rows[0]['seed']}"


def key_columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the headings that identify a row: the policy, and the env if not all rows have the same."""
    return ["policy", "env"] if len({row["world"] for row in rows}) > 1 else ["policy"]


def key_cells(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    return [row["policy"], row["world"]][: len(key_columns(rows))]


def detail_tables(rows: Sequence[dict[str, Any]], task: Task) -> list[TextTable]:
    """Return the primary metric by class of episode, and the task's own metrics; empty if the rows have neither."""
    tables = [class_table(rows, task), metrics_table(rows, task)]
    return [table for table in tables if table.rows]


def class_table(rows: Sequence[dict[str, Any]], task: Task) -> TextTable:
    """Return the primary metric by class of episode, for rows whose episodes have more than one class."""
    several = [row for row in rows if len(row.get("by_class", {})) > 1]
    classes = classes_of(several, task)
    cells = [[*key_cells(row, rows), *(class_score(row, name, task) for name in classes)] for row in several]
    title = f"{task.primary_metric.capitalize()} by class of episode"
    return TextTable([*key_columns(rows), *classes], cells, title, task.metrics.class_legend, len(key_columns(rows)))


def metrics_table(rows: Sequence[dict[str, Any]], task: Task) -> TextTable:
    """Return the task's own metrics of each evaluation."""
    figures = [name for name in task.metrics.columns if any(row.get(name) is not None for row in rows)]
    cells = [[*key_cells(row, rows), *(metric_text(row.get(name)) for name in figures)] for row in rows]
    columns = [*key_columns(rows), *(task.metrics.columns[name] for name in figures)]
    title = "Metrics of these episodes"
    return TextTable(columns, cells if figures else [], title, task.metrics.legend, len(key_columns(rows)))


def metric_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.{1 if value >= 10 else 2}f}"


def classes_of(rows: Sequence[dict[str, Any]], task: Task) -> list[str]:
    """Return the classes of episodes that occur in any row, the hardest first."""
    return [name for name in task.metrics.classes if any(name in row.get("by_class", {}) for row in rows)]


def class_score(row: dict[str, Any], name: str, task: Task) -> str:
    """Return the primary metric of one class in a row, as text."""
    found = row.get("by_class", {}).get(name)
    return "" if found is None else digits(found[task.primary_metric], task.primary_metric)


def score_of(row: dict[str, Any], head: str) -> tuple[float, float, float]:
    """Return the primary metric of a row, and the low and high end of its 95 % interval; `head` is the metric's name."""
    return (row["mean_return"] if head == "return" else row[head], *row[f"{head}_ci95"])


def score_texts(row: dict[str, Any], head: str) -> tuple[str, str]:
    """Return the primary metric and its interval as text: .912 and .893-.928, or 163.2 and 146.0 to 180.1."""
    value, low, high = (digits(x, head) for x in score_of(row, head))
    return value, f"{low} to {high}" if head == "return" else f"{low}-{high}"


def digits(value: float, head: str) -> str:
    return f"{value:.1f}" if head == "return" else short(value)


def outcome_labels(row: dict[str, Any], task: Task) -> dict[str, str]:
    """Return outcome -> table heading, for the outcomes that a row of results has."""
    known = task.metrics.labels or {name: name.replace("_", " ") for name in ("terminated", "truncated")}
    return {name: label for name, label in known.items() if name in row}


def short(rate: float) -> str:
    return f"{rate:.3f}".removeprefix("0")
