"""The cross-table and what stands beside it, for terminals of 80 columns."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from fledge.evaluation.episodes import wilson
from fledge.evaluation.match_figures import FEWEST
from fledge.evaluation.tables import text_table
from fledge.tasks.base import Task


def match_table(result: dict[str, Any]) -> list[Table]:
    """The cross-table as two: wins of decided fights with the share decided, and wins of all fights.

    Columns have the numbers of the rows, so that up to six agents fit 80 columns.
    """
    names, table = result["agents"], result["table"]
    views = []
    facts = f"{result['episodes']} fights each, {result['world']}, seed {result['seed']}"
    elos = [f"{row['rating']:.0f} ±{row['ci95'][1] - row['rating']:.0f}" for row in result["elo"]] or [""] * len(names)
    for title, cell in (
        ("wins, % of decided fights/decided, % of all", _of_decided),
        ("wins, % of all fights", lambda row: f"{100 * row['win']:.0f}"),
    ):
        view = text_table(f"{title}; {facts}", "against:", [*numbers(result), "Elo"], gap=0)
        for i, (name, elo) in enumerate(zip(names, elos, strict=True)):
            view.add_row(f"{i + 1} {name}", *(cell(table[i][j]) if i != j else "" for j in range(len(names))), elo)
        views.append(view)
    return views


def numbers(result: dict[str, Any]) -> list[str]:
    return [str(number) for number in range(1, len(result["agents"]) + 1)]


def _of_decided(row: dict[str, Any]) -> str:
    share = "-" if row["win_of_decided"] is None else f"{100 * row['win_of_decided']:.0f}"
    return f"{share}/{100 * row['decided']:.0f}"


def same_fights(result: dict[str, Any]) -> str:
    """A sentence where the fights of a pair are nearly all the same one; else ""."""
    names, table = result["agents"], result["table"]
    pairs = [(i, j) for i in range(len(names)) for j in range(i + 1, len(names)) if "distinct" in table[i][j]]
    i, j = min(pairs, key=lambda pair: table[pair[0]][pair[1]]["distinct"], default=(0, 0))
    row = table[i][j]
    if i == j or row["distinct"] >= min(FEWEST, row["fights"]):
        return ""
    return (
        f"Of {row['fights']} fights of {names[i]} against {names[j]}, {row['distinct']} differ: agents that leave nothing to "
        "chance fly the same fight again from the same start, and intervals do not know it. Take other starts, or --sampled."
    )


# ---- how they fight, and where they are weak -------------------------------------------------------------------------


def behaviour_tables(result: dict[str, Any], task: Task) -> list[Table]:
    """How agents fight, which starts they survive, and their weaknesses; no tables without notes of the matches."""
    told = result.get("behaviour")
    return [fighting_table(result, task), survival_table(result), weakness_table(result)] if told else []


def fighting_table(result: dict[str, Any], task: Task) -> Table:
    """Figures of each agent's behaviour."""
    headings = [heading.replace(" ", "\n") for heading in task.match.columns.values()]
    view = text_table("how they fight, against all and themselves", "", headings, width=20, gap=0)
    for name, row in zip(result["agents"], result["behaviour"], strict=True):
        view.add_row(name, *(figure(row[key], heading) for key, heading in task.match.columns.items()))
    return view


def figure(value: float | None, heading: str) -> str:
    """A figure of behaviour, with as many digits as it bears; under a heading with %, it is a share."""
    if value is None:
        return "-"
    if "%" in heading:
        return f"{100 * value:.1f}"
    return f"{value:.{0 if abs(value) >= 100 else 1}f}"


def kinds_of_starts(result: dict[str, Any]) -> dict[str, list[str]]:
    """Starts that were met, by heading: cells of random ones are taken together."""
    met = list(dict.fromkeys(name for row in result["behaviour"] for name in row["by_start"]))
    cells = [name for name in met if name in result["random_starts"]]
    return {name: [name] for name in met if name not in cells} | ({"random": cells} if cells else {})


def survival(row: dict[str, Any], starts: list[str]) -> tuple[float, float, float] | None:
    """Share of the fights from some starts that were survived, and its 95 % interval, by how many are distinct."""
    parts = [row["by_start"][name] for name in starts if name in row["by_start"]]
    fights = sum(part["fights"] for part in parts)
    if not fights:
        return None
    share = min(1.0, sum(part["survived"] * part["fights"] for part in parts) / fights)
    distinct = sum(part["distinct"] for part in parts)
    return share, *wilson(share * distinct, distinct)


def survival_table(result: dict[str, Any]) -> Table:
    """Shares of fights survived, a line for each start."""
    title = "survived, % of the fights from a start (±95 %), against all and themselves"
    view = text_table(title, "start", numbers(result))
    for heading, starts in kinds_of_starts(result).items():
        cells = [survival(row, starts) for row in result["behaviour"]]
        view.add_row(heading, *("-" if c is None else f"{100 * c[0]:.0f} ±{50 * (c[2] - c[1]):.0f}" for c in cells))
    return view


def weakness_table(result: dict[str, Any]) -> Table:
    """Of each agent, whom and which starts it does worst against, by score."""
    view = Table(title="worst: score, % (95 %), wins and half of the undecided", box=SIMPLE, padding=(0, 1, 0, 0))
    view.add_column("", overflow="fold", max_width=16)
    for heading in ("opponent", "start", "random start"):
        view.add_column(heading, overflow="fold")
    for row in result["weak"]:
        view.add_row(row["agent"], *(weakness(row[key]) for key in ("opponent", "start", "random_start")))
    return view


def weakness(found: dict[str, Any] | None) -> str:
    if found is None:
        return "too few fights"
    low, high = found["score_ci95"]
    return f"{found['name']} {100 * found['score']:.0f} ({100 * low:.0f}-{100 * high:.0f})"
