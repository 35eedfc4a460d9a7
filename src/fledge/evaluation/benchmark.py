"""`fledge benchmark`: evaluate reference agents and your policies by a published protocol; one table, one picture."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fledge.core.errors import ConfigError
from fledge.core.extras import installed
from fledge.core.table import Table
from fledge.core.terminal import make_console, say, use_figures
from fledge.core.text_table import TextTable
from fledge.evaluation.comparison import EvalRequest, as_policy, fly_with_progress, home_of, loaded_policy, row_of
from fledge.evaluation.env_config import eval_env
from fledge.evaluation.tables import score_of, score_texts, short
from fledge.tasks.base import Task
from fledge.tasks.metrics import Benchmark
from fledge.tasks.policy_loader import LoadedPolicy, load_interop

COLOURS = ("#526070", "#9aa5b1", "#e08e1b", "#d1495b", "#1b9e5a", "#4a6fa5", "#6b4fa0", "#222222")

MARKERS = "x^sv+D"  # plot markers of published figures
MANY = 8  # with more envs than these, a table has a line for each env


def run_benchmark(
    task: Task, name: str, request: EvalRequest, only: bool = False, columns: Sequence[str] = ()
) -> BenchmarkResult:
    """Evaluate a benchmark's reference agents and the requested policies, and return the results.

    If `request.picture` is set, also write the figure to that file.

    Args:
        only: Leave out the reference agents.
        columns: Headings of the env configs to fly in; empty for all whose packages are installed.
    """
    if name not in task.metrics.benchmarks:
        known = ", ".join(task.metrics.benchmarks) or "none"
        raise ConfigError(f"{task.name} has no benchmark {name!r}; available: {known}.")
    benchmark, console = task.metrics.benchmarks[name], make_console(stderr=True)
    worlds = chosen_worlds(benchmark, columns, console)
    named = [*([] if only else benchmark.policies), *request.policies]
    listed = [each for k, each in enumerate(named) if not isinstance(each, str) or each not in named[:k]]
    policies = [loaded_policy(each) or as_policy(each, task) for each in listed]
    policies += [load_interop(request.foreign, task)] if request.foreign else []
    if not policies:
        raise ConfigError("There is no policy to evaluate: name one, or leave out `only`.")
    asked = dataclasses.replace(request, picture=None)
    rows: list[dict[str, Any]] = []
    for policy, label in zip(policies, labels(policies), strict=True):
        for column, words in worlds.items():
            words = [*benchmark.rules, *words, *request.overrides]
            flight = eval_env(policy, benchmark.preset, words, home_of(policies))
            result = fly_with_progress(policy, flight.cfg, asked, console, f"{label}, {column}")
            row = row_of(policy, flight, result, asked, label)
            rows.append({**row, "column": column, "drones": min(flight.cfg.num_envs, request.episodes)})
    figures = {
        "benchmark": name,
        "title": benchmark.title,
        "episodes": request.episodes,
        "seed": request.seed,
        "rows": rows,
        "published": {who: dict(rates) for who, rates in benchmark.published.items()},
        "source": benchmark.source,
        "reported": dict(benchmark.reported),
        "endings": list(benchmark.endings),
    }
    done = BenchmarkResult(figures, task, list(worlds))
    if request.picture:
        done.plot().savefig(request.picture)
        say(console, f"picture: {request.picture}")
    return done


def chosen_worlds(benchmark: Benchmark, columns: Sequence[str], console: Console) -> dict[str, Sequence[str]]:
    """Return the env configs with these headings, or else all whose packages are installed, and name the others."""
    if unknown := [each for each in columns if each not in benchmark.worlds]:
        known = ", ".join(benchmark.worlds)
        raise ConfigError(f"{unknown[0]!r} is not a column of this benchmark; available: {known}.")
    if columns:
        return {name: benchmark.worlds[name] for name in columns}
    missing = {name: package for name, package in benchmark.needs.items() if not installed(package)}
    for package in dict.fromkeys(missing.values()):
        names = ", ".join(name for name, needed in missing.items() if needed == package)
        say(console, f"left out, as {package} is not installed: {names}")
    return {name: words for name, words in benchmark.worlds.items() if name not in missing}


@dataclasses.dataclass
class BenchmarkResult:
    """Results of `fledge.benchmark`.

    Attributes:
        figures: All results, as JSON-able values.
        task: The task that defines the benchmark.
        columns: Names of the benchmark's env configs.
    """

    figures: dict[str, Any]
    task: Task
    columns: list[str]

    def table(self) -> Table:
        """Return the primary metric of each policy (and of published results) in each env config."""
        by_policy: dict[str, dict[str, Any]] = {}
        for row in self.figures["rows"]:
            cells = by_policy.setdefault(row["policy"], {"policy": row["policy"]})
            cells[row["column"]] = score_of(row, self.task.primary_metric)[0]
        published = [{"policy": f"{name} (published)", **rates} for name, rates in self.figures["published"].items()]
        return Table.from_rows([*by_policy.values(), *published])

    def plot(self) -> Any:
        """Return a matplotlib Figure of the table, with 95 % intervals."""
        return use_figures(draw(self.figures, self.columns, self.task.primary_metric))

    def to_dict(self) -> dict[str, Any]:
        """Return all results, as JSON-able values."""
        return self.figures

    def render(self) -> list[Any]:
        """Return the tables that the command line prints."""
        return tables(self.figures, self.columns, self.task.primary_metric)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        facts = f"{self.figures['title']}. {self.task.primary_metric}, {self.figures['episodes']} episodes each"
        return f"<b>{html.escape(facts)}, seed {self.figures['seed']}</b>{self.table()._repr_html_()}"


def labels(policies: Sequence[LoadedPolicy]) -> list[str]:
    """Return the name of each policy in the table: its file's name, or the whole path if two files have the same name."""
    names = [Path(policy.name).name for policy in policies]
    return [policy.name if names.count(name) > 1 else name for policy, name in zip(policies, names, strict=True)]


def tables(figures: dict[str, Any], columns: Sequence[str], primary_metric: str) -> list[Any]:
    """Return a list of one table for the console: each policy's scores with intervals, and published scores, by env.

    It has a line for each policy, or for each env if there are many. A note below says how long each policy takes for a
    decision.
    """
    title = f"{figures['title']}. {primary_metric.capitalize()}, {figures['episodes']} episodes each, seed {figures['seed']}"
    by_policy: dict[str, dict[str, dict[str, Any]]] = {}
    for row in figures["rows"]:
        by_policy.setdefault(row["policy"], {})[row["column"]] = row
    lines = []
    endings = figures.get("endings", ())
    for name, row in by_policy.items():
        lines.append([name, *(cell(row[column], primary_metric, endings) for column in columns)])
    published = [
        [f"{who} (published)", *(short(rates[c]) if c in rates else "" for c in columns)]
        for who, rates in figures["published"].items()
    ]
    heads, cells, dim = ["policy", *columns], [*lines, *published], range(len(lines), len(lines) + len(published))
    if len(columns) > MANY:
        (_, *names), *turned = zip(heads, *cells, strict=True)
        heads, cells, dim = ["env", *names], [list(line) for line in turned], range(0)
    costs = [f"{name} {max(r['act_ms'] for r in row.values()):.1f} ms" for name, row in by_policy.items()]
    drones = max(row["drones"] for row in figures["rows"])
    told = f", and the shares of {', '.join(endings).replace('_', ' ')}" if endings else ""
    notes = [f"Below each figure: its 95 % interval{told}.", *([figures["source"]] if published else [])]
    for metric, words in figures["reported"].items():
        shares = (f"{name} {' / '.join(short(row[c][metric]) for c in columns)}" for name, row in by_policy.items())
        notes.append(f"{words}: {', '.join(shares)}.")
    notes.append(f"Time of a decision for {drones} drones at once: {', '.join(costs)}.")
    return [TextTable(heads, cells, title, " ".join(notes), dim=dim)]


def cell(row: dict[str, Any], primary_metric: str, endings: Sequence[str]) -> str:
    """Return the primary metric of a row of results, its interval, and the shares of these outcomes, a line each."""
    shares = [" ".join(short(row[name]) for name in endings)] if endings else []
    return "\n".join([*score_texts(row, primary_metric), *shares])


def draw(figures: dict[str, Any], columns: Sequence[str], primary_metric: str) -> Any:
    """Return a figure of all policies' primary metric in each env with 95 % intervals; published results are dashed."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8.0, 4.5), layout="constrained")
    axis = picture.add_subplot()
    by_policy: dict[str, list[dict[str, Any]]] = {}
    for row in figures["rows"]:
        by_policy.setdefault(row["policy"], []).append(row)
    for number, (name, rows) in enumerate(by_policy.items()):
        x = [columns.index(row["column"]) for row in rows]
        y, low, high = np.array([score_of(row, primary_metric) for row in rows]).T
        axis.errorbar(
            x, y, [y - low, high - y], marker="o", capsize=3, label=name, color=COLOURS[number % len(COLOURS)]
        )
    for number, (who, rates) in enumerate(figures["published"].items()):
        x, marker = [columns.index(c) for c in rates], MARKERS[number % len(MARKERS)]
        axis.plot(x, list(rates.values()), "k--", marker=marker, markersize=8, alpha=0.5, label=f"{who} (published)")
    many = len(columns) > MANY
    axis.set_xticks(range(len(columns)), columns, rotation=60 if many else 0, ha="right" if many else "center")
    axis.set_ylabel(primary_metric)
    axis.set_ylim(0, 1.02)
    axis.set_title(figures["title"], fontsize=9, wrap=True)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    return picture
