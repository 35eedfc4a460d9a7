"""Figures of evaluations: scores of policies, and the cross-table."""

from __future__ import annotations

from typing import Any

import numpy as np

from fledge.evaluation.tables import score_of

COLOURS = ("#1b9e5a", "#4a6fa5", "#e08e1b", "#d1495b", "#6b4fa0", "#526070")


def draw_scores(rows: list[dict[str, Any]], metric: str | None = None) -> Any:
    """Return a figure of a metric of each policy, a colour for each env config.

    The default metric is the primary one, which is drawn with 95 % intervals.
    """
    from matplotlib.figure import Figure

    names, envs = (list(dict.fromkeys(str(row[key]) for row in rows)) for key in ("policy", "world"))
    figure = Figure(figsize=(6.4, 1.2 + 0.5 * len(rows)), layout="constrained")
    axis, head, height = figure.add_subplot(), metric or rows[0]["headline"], 0.8 / len(envs)
    for number, env in enumerate(envs):
        chosen = [row for row in rows if row["world"] == env]
        score, low, high = np.array(
            [score_of(row, head) if metric is None else [row[head]] * 3 for row in chosen], float
        ).T
        place = [names.index(row["policy"]) + (number - (len(envs) - 1) / 2) * height for row in chosen]
        colour = COLOURS[number % len(COLOURS)]
        axis.barh(
            place, score, height, xerr=[score - low, high - score], capsize=3, label=env, color=colour, alpha=0.85
        )
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    if metric is None and head != "return":
        axis.set_xlim(0, 1)
    axis.set_xlabel(f"{head}, {rows[0]['episodes']} episodes each" + (", 95 % intervals" if metric is None else ""))
    axis.grid(axis="x", alpha=0.25)
    axis.legend(fontsize=8, loc="best")
    return figure


def draw_cross_table(result: dict[str, Any]) -> Any:
    """Return a figure of the share of wins in decided fights, policy (row) against opponent (column)."""
    from matplotlib.figure import Figure

    names, table = result["agents"], result["table"]
    shares = [[None if i == j else row["win_of_decided"] for j, row in enumerate(rows)] for i, rows in enumerate(table)]
    figure = Figure(figsize=(2.6 + 0.8 * len(names), 1.8 + 0.6 * len(names)), layout="constrained")
    axis = figure.add_subplot()
    image = axis.imshow(np.array(shares, float), vmin=0, vmax=1, cmap="RdYlGn", alpha=0.8)
    for i, rows in enumerate(shares):
        for j, share in enumerate(rows):
            axis.text(j, i, "" if i == j else "-" if share is None else f"{100 * share:.0f}", ha="center", va="center")
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("against")
    axis.set_title(f"wins, % of decided fights; {result['episodes']} fights a pair", fontsize=10)
    figure.colorbar(image, ax=axis, shrink=0.8)
    return figure
