"""The report of a training run: one HTML file with figures, curves and pictures of flights, readable offline."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fledge.evaluate.episodes import Flights
from fledge.tasks.navigation.picture import flights_figure

STYLE = """
body{font:16px/1.55 system-ui,sans-serif;color:#1d2733;max-width:1000px;margin:2.5rem auto;padding:0 1.2rem}
h1{font-size:1.7rem;margin-bottom:.2rem} h2{font-size:1.15rem;margin-top:2.2rem}
p.lead{color:#526070;margin-top:0} table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.45rem .6rem;border-bottom:1px solid #e3e8ee;text-align:right} th:first-child,td:first-child{text-align:left}
th{font-weight:600;color:#526070;font-size:.88rem} tr.ours td{font-weight:650;background:#f1f8f3}
td{white-space:nowrap} img{max-width:100%;height:auto} .note{color:#6b7885;font-size:.88rem}
.figures{display:flex;gap:1rem;flex-wrap:wrap} .figure{flex:1 1 9rem;background:#f5f7fa;border-radius:10px;padding:.8rem 1rem}
.figure b{display:block;font-size:1.5rem} .figure span{color:#526070;font-size:.86rem}
pre{background:#f5f7fa;padding:.8rem 1rem;border-radius:8px;overflow:auto}
"""


@dataclass
class Report:
    """What goes into the page."""

    title: str
    lead: str
    command: str
    figures: list[tuple[str, str]] = field(default_factory=list)  # (value, meaning)
    rows: list[dict[str, Any]] = field(default_factory=list)  # evaluations: policy, world, success, ...
    curves: list[dict[str, float]] = field(default_factory=list)  # rows of metrics.jsonl
    flights: list[tuple[str, Flights]] = field(default_factory=list)  # (title, flights)
    marks: list[tuple[str, float]] = field(default_factory=list)  # horizontal lines in the success curve


def write_report(path: Path, report: Report) -> None:
    """Write the page."""
    parts = [
        f"<h1>{html.escape(report.title)}</h1><p class='lead'>{html.escape(report.lead)}</p>",
        "<div class='figures'>",
        *(f"<div class='figure'><b>{html.escape(v)}</b><span>{html.escape(m)}</span></div>" for v, m in report.figures),
        "</div>",
        "<h2>Success on maps none of these policies has seen</h2>",
        results_table(report.rows),
        "<p class='note'>Deterministic flights; 95 % Wilson intervals. Same seed, so same maps, starts, goals.</p>",
    ]
    if report.curves:
        parts += ["<h2>How it learned</h2>", image(curves_figure(report.curves, report.marks), "training curves")]
    for title, flights in report.flights:
        parts += [f"<h2>{html.escape(title)}</h2>", image(flights_figure(flights), title)]
    parts += ["<h2>Again</h2>", f"<pre>{html.escape(report.command)}</pre>"]
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(report.title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)


def results_table(rows: Sequence[dict[str, Any]]) -> str:
    """Evaluations as an HTML table; rows marked `ours` stand out."""
    heads = (
        "policy",
        "static / moving",
        "success",
        "95 % interval",
        "hit column",
        "hit mover",
        "timeout",
        "m/s",
        "flights",
    )
    body = []
    for row in rows:
        low, high = row["success_ci95"]
        cells = [
            row["policy"],
            f"{row['static_obstacles']} / {row['moving_obstacles']}",
            f"{row['success']:.3f}",
            f"{low:.3f} to {high:.3f}",
            *(f"{row[k]:.3f}" for k in ("collision_static", "collision_moving", "timeout")),
            f"{row['mean_speed']:.2f}",
            str(row["episodes"]),
        ]
        mark = " class='ours'" if row.get("ours") else ""
        body.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in cells) + "</tr>")
    head = "".join(f"<th>{h}</th>" for h in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def read_curves(run: Path) -> list[dict[str, float]]:
    """Rows of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def curves_figure(rows: Sequence[dict[str, float]], marks: Sequence[tuple[str, float]] = ()) -> Any:
    """Success, endings, return and speed against decisions."""
    from matplotlib.figure import Figure

    x = np.array([row["frames"] for row in rows]) / 1e6
    figure = Figure(figsize=(10, 6.4), dpi=110, layout="constrained")
    axes = figure.subplots(2, 2)
    success = axes[0, 0]
    success.plot(x, [r["success_recent"] for r in rows], color="#1b9e5a", label="while learning, sampled actions")
    for name, value in marks:
        success.axhline(value, color="#888", linestyle="--", linewidth=1)
        success.annotate(name, (x[-1], value), ha="right", va="bottom", fontsize=8, color="#555")
    success.set_ylim(0, 1)
    success.set_title("success in training (last 20 iterations)", fontsize=10)
    endings = axes[0, 1]
    names = {"collision_static": "#d1495b", "collision_moving": "#e08e1b", "timeout": "#4a6fa5"}
    for name, colour in names.items():
        endings.plot(x, smooth([r[name] for r in rows]), color=colour, label=name.replace("_", " "))
    endings.set_title("other endings", fontsize=10)
    endings.legend(fontsize=8)
    axes[1, 0].plot(x, smooth([r["return"] for r in rows]), color="#334e68")
    axes[1, 0].set_title("return per episode", fontsize=10)
    axes[1, 1].plot(x, np.array([r["frames_per_second"] for r in rows]) / 1e3, color="#334e68", linewidth=0.8)
    axes[1, 1].set_ylim(bottom=0)
    axes[1, 1].set_title("thousand decisions per second", fontsize=10)
    for ax in axes.flat:
        ax.set_xlabel("million decisions", fontsize=8)
        ax.grid(alpha=0.25)
        ax.tick_params(labelsize=8)
    return figure


def smooth(values: Sequence[float], window: int = 9) -> np.ndarray:
    """Running mean, shorter at the ends."""
    data = np.asarray(values, dtype=float)
    kernel = np.ones(min(window, len(data)))
    return np.convolve(data, kernel, "same") / np.convolve(np.ones_like(data), kernel, "same")


def image(figure: Any, text: str) -> str:
    """A matplotlib figure as an <img> with its data inside."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"<img alt='{html.escape(text)}' src='data:image/png;base64,{data}'>"
