"""The class `Evaluation`: results of `fledge.evaluate`."""

from __future__ import annotations

import html
import io
import shutil
from collections.abc import Sequence
from typing import Any

from fledge.core.errors import ConfigError
from fledge.core.table import Table
from fledge.core.terminal import make_console, use_figures
from fledge.evaluation.episodes import PolicyResult
from fledge.evaluation.match_tables import behaviour_tables, match_table, same_fights
from fledge.evaluation.tables import detail_tables, results_table
from fledge.tasks.base import Task
from fledge.tasks.view.trajectory import Trajectory

COLOUR = "#1b9e5a"
LEFT_OUT = ("about", "by_class", "changed", "headline", "recording", "recorded", "recording_bytes")


class Evaluation:
    """Results of policies: one row for each policy and env config, or the cross-table of a two-player task.

    With one policy and one env config, the attributes of its `PolicyResult` can be read here: `result.rate("success")`,
    `result.returns`.

    Example:
        >>> result = fledge.evaluate(["fledge-nav", "straight"], episodes=256)
        >>> result.table()["success"]
        >>> result.plot()

    Attributes:
        rows: Results as `fledge eval --json` prints them.
        results: Results episode by episode, one for each row; empty for a cross-table.
        task: The task; None if an env of the caller was used and its task is unknown.
    """

    def __init__(
        self,
        rows: Sequence[dict[str, Any]],
        task: Task | None,
        results: Sequence[PolicyResult] = (),
        trajectories: Sequence[Trajectory] = (),
    ) -> None:
        self.rows, self.task, self.results = list(rows), task, list(results)
        self._trajectories = list(trajectories)

    @property
    def is_cross_table(self) -> bool:
        """Return whether the policies fought each other, as in air combat."""
        return "agents" in self.rows[0]

    def table(self) -> Table:
        """Return the results as a table.

        One row for each policy and env config: how episodes ended, the 95 % interval of the primary metric as `_low` and
        `_high`, returns and the task's own metrics. For a cross-table, one row for each policy: its Elo rating, and its
        share of wins in decided fights against each opponent.
        """
        if self.is_cross_table:
            return Table.from_rows(_cross_rows(self.rows[0]))
        return Table.from_rows([_flat_row(row) for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """Return all results, JSON-able: the cross-table, or {"task": name, "rows": [...]}."""
        if self.is_cross_table:
            return dict(self.rows[0])
        return {"task": self.task.name if self.task else None, "rows": [dict(row) for row in self.rows]}

    def plot(self, metric: str | None = None) -> Any:
        """Return a matplotlib Figure: the primary metric with 95 % intervals, wins as a matrix, or a curve over training.

        Args:
            metric: Another column of `table()` to draw for each policy, without intervals.
        """
        from fledge.evaluation import curve, plots

        if self.is_cross_table:
            return use_figures(plots.draw_cross_table(self.rows[0]))
        if "minutes" in self.rows[0]:
            return use_figures(curve.draw(self.rows, self.rows[0]["policy"]))
        if metric is not None and not all(isinstance(row.get(metric), int | float) for row in self.rows):
            known = [name for name, value in self.rows[0].items() if isinstance(value, int | float)]
            raise ConfigError(
                f"metric={metric!r} is not a number in every row of table(). Choose one of {', '.join(known)}."
            )
        return use_figures(plots.draw_scores(self.rows, metric))

    def flights(self, policy: int = 0) -> Any:
        """Return a matplotlib Figure of recorded episodes; needs `fledge.evaluate(..., picture=True)`.

        Args:
            policy: Index of the row of `table()` whose episodes to draw; a cross-table draws fights of all policies.
        """
        recorded = self._trajectories or (self.results[policy].trajectories if self.results else [])
        if not recorded or self.task is None:
            raise ConfigError("No episodes were recorded: call fledge.evaluate(..., picture=True).")
        title = "" if self.is_cross_table else f"{self.rows[policy]['policy']}, {self.rows[policy]['world']}"
        return use_figures(self.task.view.draw(recorded, title))

    def flight(self, number: int = 0) -> Any:
        """Return a detailed matplotlib Figure of one recorded episode; for a duel, with the space-time graph.

        Args:
            number: Index of the episode in `trajectories`.
        """
        if self.task is None or not 0 <= number < len(self.trajectories):
            have = len(self.trajectories)
            raise ConfigError(
                f"There is no recorded episode {number}: {have} were recorded, counted from 0. "
                "fledge.evaluate(..., picture=True) records episodes."
            )
        return use_figures(self.task.view.draw_closely(self.trajectories[number]))

    @property
    def trajectories(self) -> list[Trajectory]:
        """Return the recorded episodes of all policies; empty without `picture=True`."""
        return [*self._trajectories, *(each for result in self.results for each in result.trajectories)]

    def render(self) -> list[Any]:
        """Return the tables that the command line prints."""
        assert self.task is not None
        if self.is_cross_table:
            return [*match_table(self.rows[0]), *behaviour_tables(self.rows[0], self.task)]
        if "minutes" in self.rows[0]:
            from fledge.evaluation.curve import table

            return [table(self.rows)]
        return [results_table(self.rows, self.task), *detail_tables(self.rows, self.task)]

    @property
    def note(self) -> str:
        """Return a warning about the results, for example that most fights were the same; "" if there is none."""
        return same_fights(self.rows[0]) if self.is_cross_table else ""

    def __getattr__(self, name: str) -> Any:
        results = self.__dict__.get("results", [])
        if not name.startswith("_") and len(results) == 1:
            return getattr(results[0], name)
        if not name.startswith("_") and results and hasattr(results[0], name):
            raise AttributeError(f"This evaluation has {len(results)} results, so read results[k].{name}, or table().")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __str__(self) -> str:
        """Return the tables that `fledge eval` prints."""
        if self.task is None:
            return str(self.table())
        text = io.StringIO()
        console = make_console(file=text, width=shutil.get_terminal_size((100, 24)).columns)
        for part in self.render():
            console.print(part)
        return text.getvalue().rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        row = self.rows[0]
        facts = f"{row['episodes']} {'fights a pair' if self.is_cross_table else 'episodes each'}"
        facts += f", seed {row['seed']}" if row.get("seed") is not None else ""
        envs = ", ".join(dict.fromkeys(str(each["world"]) for each in self.rows))
        shown = self.table()
        if not self.is_cross_table:
            head = row["headline"]
            score = ["mean_return" if head == "return" else head, f"{head}_low", f"{head}_high"]
            others = [
                name
                for name in shown.columns
                if name not in score and name in ("collision", "timeout", "out_of_bounds")
            ]
            wanted = ["policy", "env", *score, *others, "episodes", "mean_return"]
            shown = Table({name: shown[name] for name in dict.fromkeys(wanted) if name in shown})
        return f"<b>{html.escape(facts)}: {html.escape(envs)}</b>{shown._repr_html_()}"


def _flat_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without its lists and dicts and the keys LEFT_OUT; an interval becomes two values, `_low` and `_high`."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in LEFT_OUT:
            continue
        if name.endswith("_ci95"):
            flat |= {f"{name.removesuffix('_ci95')}_low": value[0], f"{name.removesuffix('_ci95')}_high": value[1]}
        elif not isinstance(value, dict | list):
            flat["env" if name == "world" else name] = value
    return {"policy": flat.pop("policy"), "env": flat.pop("env"), **flat}


def _cross_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a cross-table as rows: each policy's Elo, and its share of wins in decided fights against each opponent."""
    rows: list[dict[str, Any]] = []
    for i, name in enumerate(result["agents"]):
        row: dict[str, Any] = {"policy": name}
        if result["elo"]:
            low, high = result["elo"][i]["ci95"]
            row |= {"elo": result["elo"][i]["rating"], "elo_low": low, "elo_high": high}
        row |= {
            f"against {other}": None if i == j else result["table"][i][j]["win_of_decided"]
            for j, other in enumerate(result["agents"])
        }
        rows.append(row)
    return rows
