"""The report of a training run: one HTML file with results, curves and pictures of flights, readable offline."""

from __future__ import annotations

import dataclasses
import html
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fledge.core.overrides import from_plain, nested
from fledge.core.terminal import duration, make_console
from fledge.evaluation.comparison import EvalRequest, fly_with_progress, load_policies, row_of
from fledge.evaluation.env_config import eval_env
from fledge.evaluation.episodes import TEST_SEED
from fledge.evaluation.page import cell, heading, html_table, image, note, table_row, write_page
from fledge.evaluation.run_section import run_section
from fledge.evaluation.tables import class_score, classes_of, outcome_labels, score_of
from fledge.monitor.metrics_file import is_number, read_metrics
from fledge.tasks.base import Task
from fledge.tasks.metrics import env_label
from fledge.tasks.policy_loader import LoadedPolicy, load_policy
from fledge.tasks.registry import is_code
from fledge.tasks.view.trajectory import Trajectory

REPORT_EPISODES = 256  # default of `fledge report`
WINDOW = 9  # iterations that a curve is averaged over
CURVES_NOTE = f"Each point is the mean of {WINDOW} iterations around it; the speed is as measured."


@dataclass
class Report:
    """Contents of a report page."""

    title: str
    lead: str
    command: str
    task: Task
    figures: list[tuple[str, str]] = field(default_factory=list)  # (value, meaning)
    rows: list[dict[str, Any]] = field(default_factory=list)  # evaluations: policy, world, success, ...
    curves: list[dict[str, float]] = field(default_factory=list)  # rows of metrics.jsonl
    trajectories: list[tuple[str, list[Trajectory]]] = field(default_factory=list)  # (title, recorded episodes)
    marks: list[tuple[str, float]] = field(default_factory=list)  # horizontal lines in the curve of the primary metric
    envs: dict[str, str] = field(
        default_factory=dict
    )  # label of an env -> a note, such as "the env that it was trained in"
    made: list[str] = field(default_factory=list)  # HTML parts about how the run was made


def write_report(path: Path, report: Report) -> None:
    """Write a report as an HTML page."""
    task = report.task
    parts = heading(report.title, report.lead, report.figures)
    for world in dict.fromkeys(row["world"] for row in report.rows):
        title = f"{task.primary_metric.capitalize()} in {world}" + (
            f", {what}" if (what := report.envs.get(world)) else ""
        )
        rows = [row for row in report.rows if row["world"] == world]
        parts += [f"<h2>{html.escape(title)}</h2>", results_table(rows, task), *abouts(rows)]
    parts.append(
        note(
            f"Held-out episodes: their maps and seeds occur in no training. Deterministic actions, 95 % intervals, the same "
            f"episodes for all. {task.metrics.outcome_legend}"
        )
    )
    if details := details_table(report.rows, task):
        legend = f"{task.metrics.class_legend} {task.metrics.legend}".strip()
        parts += ["<h2>Where it is weak, and how it flies</h2>", details, note(legend)]
    if report.curves:
        figure = curves_figure(report.curves, report.task, report.marks)
        parts += ["<h2>How it learned</h2>", image(figure, "training curves"), note(CURVES_NOTE)]
    for title, trajectories in report.trajectories:
        parts += [f"<h2>{html.escape(title)}</h2>", image(report.task.view.draw(trajectories), title)]
    parts += [*report.made, "<h2>Make this page again</h2>", f"<pre>{html.escape(report.command)}</pre>"]
    write_page(path, report.title, parts)


def abouts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a note about each published policy in the rows."""
    return [note(text) for text in dict.fromkeys(row["about"] for row in rows if row.get("about"))]


def results_table(rows: Sequence[dict[str, Any]], task: Task) -> str:
    """Return evaluations in one env as an HTML table; rows marked `ours` stand out."""
    head = task.primary_metric
    labels = outcome_labels(rows[0], task) if rows else {}
    others = [name for name in labels if name != head]
    names = ["policy", labels.get(head, head), "95 % interval", *(labels[name] for name in others), "episodes"]
    body = []
    for row in rows:
        score, low, high = score_of(row, head)
        cells = [row["policy"], f"{score:.3f}", f"{low:.3f} to {high:.3f}"]
        cells += [*(f"{row[k]:.3f}" for k in others), str(row["episodes"])]
        body.append(table_row(map(cell, cells), bool(row.get("ours"))))
    return html_table(names, body)


def details_table(rows: Sequence[dict[str, Any]], task: Task) -> str:
    """Return the primary metric by class of episode and the task's metrics as an HTML table; "" if there are none."""
    classes = classes_of(rows, task)
    figures = [name for name in task.metrics.columns if any(name in row for row in rows)]
    if not classes and not figures:
        return ""
    body = []
    for row in rows:
        cells = [row["policy"], row["world"], *(class_score(row, name, task) for name in classes)]
        cells += [f"{row[name]:.2f}" if row.get(name) is not None else "" for name in figures]
        body.append(table_row(map(cell, cells), bool(row.get("ours"))))
    return html_table(["policy", "env", *classes, *(task.metrics.columns[name] for name in figures)], body)


def read_curves(run: Path) -> list[dict[str, float]]:
    """Return the rows of a run's metrics.jsonl that have frames and seconds; empty if there is no such file."""
    rows = read_metrics(run / "metrics.jsonl")
    return [row for row in rows if is_number(row.get("frames")) and is_number(row.get("seconds"))]


def learning_figures(curves: Sequence[dict[str, float]]) -> list[tuple[str, str]]:
    """Return the duration and the number of decisions of a training run, each as a pair of texts (value, meaning).

    The list is empty if `curves` is empty.
    """
    if not curves:
        return []
    last = curves[-1]
    return [(duration(last["seconds"]), "of training"), (f"{last['frames'] / 1e6:.2f} M", "decisions")]


def curves_figure(rows: Sequence[dict[str, float]], task: Task, marks: Sequence[tuple[str, float]] = ()) -> Any:
    """Return a figure of primary metric, outcomes, return and speed against decisions.

    Args:
        marks: Levels of the primary metric to draw as dashed lines, as (label, value).
    """
    from matplotlib.figure import Figure

    x = np.array([row["frames"] for row in rows]) / 1e6
    head, rate = task.primary_metric, task.primary_metric != "return"
    figure = Figure(figsize=(10, 6.4 if rate else 3.4), dpi=110, layout="constrained")
    panels = list(figure.subplots(*((2, 2) if rate else (1, 3))).flat)
    primary_metric, endings, speed = panels[0], panels[1], panels[-1]
    episodes = [row.get("episodes", 1.0) for row in rows]
    learning = smooth([row.get(head, np.nan) for row in rows], episodes if rate else None)
    primary_metric.plot(x, learning, color="#1b9e5a", label="while learning, sampled actions")
    held_out = [(row["frames"] / 1e6, row[f"eval/{head}"]) for row in rows if f"eval/{head}" in row]
    if held_out:
        primary_metric.plot(*zip(*held_out, strict=True), "o--", color="#4a6fa5", markersize=3, label="held out")
        primary_metric.legend(fontsize=8)
    for name, value in marks:
        primary_metric.axhline(value, color="#888", linestyle="--", linewidth=1)
        primary_metric.annotate(name, (x[-1], value), ha="right", va="bottom", fontsize=8, color="#555")
    if rate:
        primary_metric.set_ylim(0, 1)
    primary_metric.set_title(f"{head} in training" if rate else f"{head} per episode", fontsize=10)
    ended_in = {name: 0.0 for row in rows for name in row}
    others = [name for name in outcome_labels(ended_in, task) if name != head]
    for name, colour in zip(others, ("#d1495b", "#e08e1b", "#6b4fa0", "#4a6fa5", "#526070"), strict=False):
        share = smooth([r.get(name, np.nan) for r in rows], episodes)
        endings.plot(x, share, color=colour, label=name.replace("_", " "))
    endings.set_title(f"other endings: with {head} they add up to 1" if rate else "how episodes end", fontsize=10)
    if others:
        endings.legend(fontsize=8)
    if rate:
        panels[2].plot(x, smooth([r.get("return", np.nan) for r in rows]), color="#334e68")
        panels[2].set_title("return per episode", fontsize=10)
    speed.plot(x, np.array([r["frames_per_second"] for r in rows]) / 1e3, color="#334e68", linewidth=0.8)
    speed.set_ylim(bottom=0)
    speed.set_title("thousand decisions per second", fontsize=10)
    for ax in panels:
        ax.set_xlabel("million decisions", fontsize=8)
        ax.grid(alpha=0.25)
        ax.tick_params(labelsize=8)
    return figure


def smooth(values: Sequence[float], weights: Sequence[float] | None = None) -> np.ndarray:
    """Return the running mean over WINDOW values (fewer at the ends), ignoring NaN.

    Args:
        weights: Weight of each value; for rates, the number of episodes.
    """
    data = np.asarray(values, dtype=float)
    known = np.where(np.isnan(data), 0.0, 1.0 if weights is None else np.asarray(weights, dtype=float))
    kernel = np.ones(min(WINDOW, len(data)))
    count = np.convolve(known, kernel, "same")
    total = np.convolve(known * np.nan_to_num(data), kernel, "same")
    return np.divide(total, count, out=np.full(len(data), np.nan), where=count > 0)


# ---- fledge report ---------------------------------------------------------------------------------------------------


def command_line(run: Path, request: EvalRequest, path: Path) -> str:
    """Return the command that writes this page; options with their defaults are left out."""
    words = ["fledge", "report", str(run), *request.overrides]
    task = getattr(request.task, "reference", request.task)
    words += ["--task", task] if task and is_code(task) else []
    words += ["--out", str(path)] if path != run / "report.html" else []
    words += [f"device={request.device}"] if request.device != "cpu" else []
    words += ["--episodes", str(request.episodes)] if request.episodes != REPORT_EPISODES else []
    words += ["--seed", str(request.seed)] if request.seed != TEST_SEED else []
    words += ["--vary", f"{request.vary[0]}={','.join(request.vary[1])}"] if request.vary else []
    return shlex.join(words)


def report_on_run(run: Path, request: EvalRequest, path: Path) -> dict[str, Any]:
    """Evaluate a run beside the task's scripted policies, in the env that it was trained in and in the task's benchmark env.

    Write the page, and return its path and the results.
    """
    console = make_console(stderr=True)
    policies = load_policies(dataclasses.replace(request, policies=[str(run)]))
    task, ours = policies[0].task, policies[0]
    if task.match.sides == 2:
        from fledge.evaluation.match_report import report_on_fights  # imported here, as it imports this module

        return report_on_fights(run, ours, request, path)
    policies += [load_policy(name, task) for name in task.pilots()]
    rows: list[dict[str, Any]] = []
    trajectories: list[tuple[str, list[Trajectory]]] = []
    for preset in dict.fromkeys([None, task.metrics.eval_preset]):
        for policy in policies:
            label = "this run" if policy is ours else policy.name
            for words in request.env_overrides():
                flight = eval_env(policy, preset, words, ours.env)
                if (label, env_label(task, flight.cfg)) in [(r["policy"], r["world"]) for r in rows]:
                    continue  # it was trained in the benchmark env
                shown = dataclasses.replace(request, picture=path if policy is ours else None)
                result = fly_with_progress(policy, flight.cfg, shown, console, label)
                row = {**row_of(policy, flight, result, request, label), "ours": policy is ours}
                rows.append(row)
                if result.trajectories and result.trajectories[0].frames:
                    trajectories.append((f"Episodes of this run: {row['world']}", result.trajectories))
    curves = read_curves(run)
    own = {row["world"]: score_of(row, task.primary_metric)[0] for row in rows if row["ours"]}
    figures = [*learning_figures(curves), *((f"{x:.3f}", f"{task.primary_metric} in {env}") for env, x in own.items())]
    envs = env_notes(list(own), request, ours)
    lead = f"A policy for the task {task.name}, trained in {trained_in(ours)} and evaluated in {' and '.join(own)}."
    report = Report(f"{task.name}: {run.name}", lead, command_line(run, request, path), task, figures, rows, curves)
    report.trajectories, report.envs, report.made = trajectories[:1], envs, run_section(run, ours, curves)
    write_report(path, report)
    return {"report": str(path), "rows": rows}


def env_notes(envs: Sequence[str], request: EvalRequest, ours: LoadedPolicy) -> dict[str, str]:
    """Return, by label of the env, a note that says whether it is the training env or the benchmark env.

    `envs` has the labels: first those of the training env, one for each `--vary` value, then that of the benchmark env.
    """
    count = len(request.env_overrides())
    how = "" if trained_in(ours) in envs[:count] else ", as the task evaluates it"
    how += ", with your settings" if request.overrides or count > 1 else ""
    notes = dict.fromkeys(envs[:count], f"the env that it was trained in{how}")
    return notes | dict.fromkeys(envs[count:], f"the benchmark env of {ours.task.name}")


def trained_in(policy: LoadedPolicy) -> str:
    """Return the label of the env that a policy was trained in."""
    if policy.env is None:
        return "any env"
    return env_label(policy.task, from_plain(policy.task.config, nested(policy.env.settings)))
