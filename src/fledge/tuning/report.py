"""The report of a sweep: one HTML file with the winner, the history, importances, slices and the table of trials."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fledge.core.terminal import duration
from fledge.evaluation.page import cell, heading, html_table, image, note, table_row, write_page
from fledge.tuning.summary import descent

GREEN, BLUE, GREY, RED = "#1b9e5a", "#4a6fa5", "#b6bec8", "#d1495b"
Rows = Sequence[Mapping[str, Any]]


def write_report(folder: Path, summary: Mapping[str, Any]) -> Path:
    """Write `report.html` from a summary, and return its path."""
    rows = summary["trials"]
    done = [row for row in rows if row["state"] == "complete" and row["value"] is not None]
    parts = heading(f"{summary['task']}: {summary['name']}", lead(summary), tiles(summary, done))
    if summary["confirmation"]:
        parts += ["<h2>Confirmed with further seeds</h2>", confirmation_table(summary), note(CONFIRMED)]
    if done:
        parts += ["<h2>History</h2>", image(history_figure(summary, rows), "history of the sweep")]
        if summary["mode"] == "pbt":
            line = descent(rows, summary["best"])
            parts += [
                "<h2>Line of descent of the winner</h2>",
                image(descent_figure(summary, line), "parameters over time"),
            ]
        if len(done) > 1:
            parts += ["<h2>Slices</h2>", image(slice_figure(summary, done), "metric against each parameter")]
            parts += ["<h2>Parallel coordinates</h2>", image(parallel_figure(summary, done), "parallel coordinates")]
    if summary["importance"]:
        parts += ["<h2>Importance</h2>", image(importance_figure(summary), "importance"), note(IMPORTANCE)]
    if summary["pareto"]:
        parts += ["<h2>Metric against minutes</h2>", image(pareto_figure(summary, done), "Pareto front")]
    parts += ["<h2>Trials</h2>", trial_table(summary, rows), "<h2>Go on, or make this page again</h2>"]
    parts += [f"<pre>fledge tune --folder {html.escape(str(folder))}</pre>"]
    own = folder / f".report-{os.getpid()}.html"
    write_page(own, str(summary["name"]), parts)
    own.replace(folder / "report.html")
    return folder / "report.html"


CONFIRMED = (
    "Each configuration was trained again with the same further seeds. Validation chose the winner, the test seed nothing. "
    "Intervals: 95 % of Student's t over the seeds."
)
IMPORTANCE = (
    "PED-ANOVA: the share of each parameter in reaching the best quarter of the trials. Rough for fewer than 20 trials."
)


def lead(summary: Mapping[str, Any]) -> str:
    names = ", ".join(each["name"] for each in summary["ranges"])
    how = "population-based training" if summary["mode"] == "pbt" else f"{summary['sampler']} search"
    return f"A sweep of {names} by {how}; the objective is {summary['metric']} on the validation seed."


def tiles(summary: Mapping[str, Any], done: Rows) -> list[tuple[str, str]]:
    """Return the key figures of a sweep as pairs (value, meaning)."""
    rows = summary["trials"]
    ended = {state: sum(row["state"] == state for row in rows) for state in ("complete", "pruned", "fail")}
    found = [(f"{sum(ended.values())} of {summary['jobs']}", "trials ended")]
    found += [(str(ended[state]), text) for state, text in (("pruned", "pruned"), ("fail", "failed")) if ended[state]]
    best = next((row for row in rows if row["number"] == summary["best"]), None)
    if best is not None:
        found += [(f"{best['value']:.3f}", f"best {summary['metric']}, trial {best['number']}")]
    if (table := summary["confirmation"]) and table[0]["test"]:
        found += [(f"{table[0]['test'][0]:.3f}", f"{summary['metric']} of the winner, test seed, mean")]
    elif best is not None and best.get("test") is not None:
        found += [(f"{best['test']:.3f}", f"{summary['metric']} of the winner, test seed")]
    minutes = sum(row.get("minutes") or 0.0 for row in rows if summary["mode"] == "search" or row in done[-8:])
    return [*found, (duration(60 * minutes), "of training in all trials")] if summary["mode"] == "search" else found


def interval_text(found: Sequence[float | None] | None) -> str:
    """Return a mean with its interval as text."""
    if not found:
        return "-"
    return f"{found[0]:.3f}" + (f" ({found[1]:.3f} to {found[2]:.3f})" if found[1] is not None else "")


def label_of(row: Mapping[str, Any]) -> str:
    """Return the name of a configuration in the confirmation: "trial 7", or "preset"."""
    return f"trial {int(row['name'])}" if row["name"].isdigit() else str(row["name"])


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def confirmation_table(summary: Mapping[str, Any]) -> str:
    names = [each["name"] for each in summary["ranges"]]
    body = []
    for row in summary["confirmation"]:
        cells = [label_of(row), *(shown(row["params"].get(name, "")) for name in names)]
        cells += [interval_text(row["value"]), interval_text(row["test"]), str(len(row["values"]))]
        body.append(table_row(map(cell, cells), row is summary["confirmation"][0]))
    return html_table(["configuration", *names, "validation", "test", "seeds"], body, tight=True)


def trial_table(summary: Mapping[str, Any], rows: Rows) -> str:
    names = [each["name"] for each in summary["ranges"]]
    order = sorted(rows, key=lambda row: (row["state"] != "complete", -(row["value"] or 0.0)))
    body = []
    for row in order:
        value = "-" if row["value"] is None else f"{row['value']:.3f}"
        low, high = row.get("low"), row.get("high")
        span = f"{low:.3f} to {high:.3f}" if low is not None and high is not None else ""
        minutes = "" if row.get("minutes") is None else f"{row['minutes']:.2f}"
        state = row["state"] + (f": {row['error']}" if row.get("error") else "")
        cells = [cell(text) for text in (str(row["number"]), value, span, minutes)]
        cells += [cell(shown(row["params"].get(name, ""))) for name in names]
        body.append(table_row([*cells, f"<td class=text>{html.escape(state)}</td>"], row["number"] == summary["best"]))
    return html_table(["trial", summary["metric"], "95 % (episodes)", "minutes", *names, "state"], body, tight=True)


# ---- figures -----------------------------------------------------------------------------------------------------------


def _figure(width: float, height: float, columns: int = 1) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(-(-columns // 3), min(columns, 3))).flat)
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.tick_params(labelsize=8)
    for ax in axes[columns:]:
        ax.set_visible(False)
    return figure, axes


def history_figure(summary: Mapping[str, Any], rows: Rows) -> Any:
    """Return the metric of every trial in order, with the best so far; of a population, against the generation."""
    figure, (ax, *_) = _figure(10, 3.4)
    x = "generation" if summary["mode"] == "pbt" else "number"
    for state, colour, text in (("complete", BLUE, "complete"), ("pruned", GREY, "pruned, at its last evaluation")):
        found = [(row[x], row["value"]) for row in rows if row["state"] == state and row["value"] is not None]
        if found:
            ax.scatter(*zip(*found, strict=True), s=22, color=colour, label=text)
    best: dict[int, float] = {}
    for row in sorted((row for row in rows if row["state"] == "complete"), key=lambda row: row[x]):
        best[row[x]] = max(row["value"], *best.values()) if best else row["value"]
    ax.step(list(best), list(best.values()), where="post", color=GREEN, label="best so far")
    ax.set_xlabel("generation" if x == "generation" else "trial", fontsize=8)
    ax.set_ylabel(summary["metric"], fontsize=8)
    ax.legend(fontsize=8)
    return figure


def axis_values(each: Mapping[str, Any], rows: Rows) -> tuple[np.ndarray, bool]:
    """Return the values of a parameter as numbers (choices by index), and whether the axis is logarithmic."""
    values = [row["params"][each["name"]] for row in rows]
    if each["choices"]:
        return np.array([each["choices"].index(value) for value in values], float), False
    return np.array(values, float), bool(each["log"])


def slice_figure(summary: Mapping[str, Any], done: Rows) -> Any:
    """Return the metric against each parameter; darker points are later trials."""
    ranges = summary["ranges"]
    figure, axes = _figure(10, 3.0 * -(-len(ranges) // 3), len(ranges))
    y = [row["value"] for row in done]
    for each, ax in zip(ranges, axes, strict=False):
        x, log = axis_values(each, done)
        ax.scatter(x, y, c=[row["number"] for row in done], cmap="Blues", edgecolors="#667", linewidths=0.4, s=26)
        if log:
            ax.set_xscale("log")
        if each["choices"]:
            ax.set_xticks(range(len(each["choices"])), each["choices"], fontsize=8)
        ax.set_xlabel(each["name"], fontsize=8)
    axes[0].set_ylabel(summary["metric"], fontsize=8)
    return figure


def parallel_figure(summary: Mapping[str, Any], done: Rows) -> Any:
    """Return one line for each trial over all parameters, coloured by the metric."""
    figure, (ax, *_) = _figure(10, 3.6)
    columns = []
    for each in summary["ranges"]:
        x, log = axis_values(each, done)
        low, high = (0, max(1, len(each["choices"]) - 1)) if each["choices"] else (each["low"], each["high"])
        ends = np.array([low, high], float)
        x, ends = (np.log(x), np.log(ends)) if log else (x, ends)
        columns.append((x - ends[0]) / (ends[1] - ends[0]))
    value = np.array([row["value"] for row in done], float)
    scale = (value - value.min()) / (np.ptp(value) or 1.0)
    columns.append(scale)
    from matplotlib import colormaps

    for k in np.argsort(value):
        ax.plot([column[k] for column in columns], color=colormaps["viridis"](scale[k]), linewidth=1.2, alpha=0.8)
    labels = [
        f"{each['name']}\n{' | '.join(each['choices'])}" if each["choices"]
        else f"{each['name']}\n{each['low']:g} to {each['high']:g}{' (log)' if each['log'] else ''}"
        for each in summary["ranges"]
    ]  # fmt: skip
    labels.append(f"{summary['metric']}\n{value.min():.3f} to {value.max():.3f}")
    ax.set_xticks(range(len(columns)), labels, fontsize=8)
    ax.set_yticks([])
    ax.set_ylim(-0.03, 1.03)
    return figure


def importance_figure(summary: Mapping[str, Any]) -> Any:
    names = list(summary["importance"])[::-1]
    figure, (ax, *_) = _figure(10, 0.7 + 0.35 * len(names))
    ax.barh(names, [summary["importance"][name] for name in names], color=BLUE)
    ax.set_xlim(left=0)
    return figure


def pareto_figure(summary: Mapping[str, Any], done: Rows) -> Any:
    """Return the metric against minutes of training, with the trials that no other beats in both."""
    figure, (ax, *_) = _figure(10, 3.4)
    timed = [row for row in done if row.get("minutes") is not None]
    ax.scatter([row["minutes"] for row in timed], [row["value"] for row in timed], s=22, color=BLUE)
    front = [row for number in summary["pareto"] for row in timed if row["number"] == number]
    ax.step([r["minutes"] for r in front], [r["value"] for r in front], "o-", where="post", color=GREEN)
    for row in front:
        ax.annotate(f" {row['number']}", (row["minutes"], row["value"]), fontsize=8)
    ax.set_xlabel("minutes of training", fontsize=8)
    ax.set_ylabel(summary["metric"], fontsize=8)
    return figure


def descent_figure(summary: Mapping[str, Any], line: Rows) -> Any:
    """Return the parameters of the winner and its ancestors against the generation: the schedule that won."""
    ranges = summary["ranges"]
    figure, axes = _figure(10, 3.0 * -(-len(ranges) // 3), len(ranges))
    for each, ax in zip(ranges, axes, strict=False):
        y, log = axis_values(each, line)
        ax.step([row["generation"] for row in line], y, "o-", where="mid", color=GREEN, markersize=4)
        for before, row, value in zip(line, line[1:], y[1:], strict=False):
            if before["member"] != row["member"]:
                ax.annotate(f" copied {before['member']}", (row["generation"], value), fontsize=7, color=RED)
        if log:
            ax.set_yscale("log")
        if each["choices"]:
            ax.set_yticks(range(len(each["choices"])), each["choices"], fontsize=8)
        ax.set_title(each["name"], fontsize=9)
        ax.set_xlabel("generation", fontsize=8)
    return figure
