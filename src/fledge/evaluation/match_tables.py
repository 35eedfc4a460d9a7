"""Results of matches as tables: the cross-table, how the agents fight, and where each agent is weak."""

from __future__ import annotations

from typing import Any

from fledge.core.text_table import TextTable
from fledge.evaluation.episodes import wilson
from fledge.evaluation.match_figures import FEWEST
from fledge.tasks.base import Task


def match_table(result: dict[str, Any]) -> list[TextTable]:
    """Return two cross-tables of wins, in % of decided fights and in % of all fights; the first also has the % decided.

    Rows are numbered, and a column is headed by the number of an agent's row, so that six agents fit 80 characters.
    """
    names, table = result["agents"], result["table"]
    facts = f"{result['episodes']:,} held-out fights per pair, starts: {result['world']}, seed {result['seed']}"
    note = (
        "A row's wins against the agent whose number heads the column. Decided: one side won. Elo: from all fights, an "
        "undecided one counts as half a win; the mean is 1000, ± is the 95 % interval."
    )
    elos = [f"{row['rating']:.0f} ±{row['ci95'][1] - row['rating']:.0f}" for row in result["elo"]] or [""] * len(names)
    views = []
    for title, cell, below in (
        (f"{facts}. Wins, % of decided fights / decided, % of all", _of_decided, ""),
        ("Wins, % of all fights", lambda row: f"{100 * row['win']:.0f}", note),
    ):
        rows = []
        for i, (name, elo) in enumerate(zip(names, elos, strict=True)):
            rows.append([f"{i + 1} {name}", *(cell(table[i][j]) if i != j else "" for j in range(len(names))), elo])
        views.append(TextTable(["against:", *numbers(result), "Elo"], rows, title, below))
    return views


def numbers(result: dict[str, Any]) -> list[str]:
    return [str(number) for number in range(1, len(result["agents"]) + 1)]


def _of_decided(row: dict[str, Any]) -> str:
    share = "-" if row["win_of_decided"] is None else f"{100 * row['win_of_decided']:.0f}"
    return f"{share}/{100 * row['decided']:.0f}"


def same_fights(result: dict[str, Any]) -> str:
    """Return a warning if nearly all fights of two agents are identical; else ""."""
    names, table = result["agents"], result["table"]
    pairs = [(i, j) for i in range(len(names)) for j in range(i + 1, len(names)) if "distinct" in table[i][j]]
    i, j = min(pairs, key=lambda pair: table[pair[0]][pair[1]]["distinct"], default=(0, 0))
    row = table[i][j]
    if i == j or row["distinct"] >= min(FEWEST, row["fights"]):
        return ""
    return (
        f"Only {row['distinct']} of {row['fights']} fights of {names[i]} against {names[j]} are distinct: deterministic "
        "agents repeat the same fight from the same start, so the intervals are too narrow. Use random "
        "starts, or sampled actions."
    )


# ---- how they fight, and where they are weak -------------------------------------------------------------------------


def behaviour_tables(result: dict[str, Any], task: Task) -> list[TextTable]:
    """Return how agents fight, which starts they survive, and their weaknesses; empty if the task has no match statistics."""
    if not result.get("behaviour"):
        return []
    return [fighting_table(result, task), survival_table(result), *weakness_tables(result)]


def fighting_table(result: dict[str, Any], task: Task) -> TextTable:
    """Return a table of how each agent fights."""
    rows = []
    for name, row in zip(result["agents"], result["behaviour"], strict=True):
        rows.append([name, *(figure(row[key], heading) for key, heading in task.match.columns.items())])
    title = "How they fight, in all their fights (against the others and themselves)"
    return TextTable(["agent", *task.match.columns.values()], rows, title, task.match.legend)


def figure(value: float | None, heading: str) -> str:
    """Return a value as text; if the heading contains %, the value is a share and shown in percent."""
    if value is None:
        return "-"
    if "%" in heading:
        return f"{100 * value:.1f}"
    return f"{value:.{0 if abs(value) >= 100 else 1}f}"


def kinds_of_starts(result: dict[str, Any]) -> dict[str, list[str]]:
    """Return row headings of a table, each with a list of the starts in that row; all random starts share one row."""
    met = list(dict.fromkeys(name for row in result["behaviour"] for name in row["by_start"]))
    cells = [name for name in met if name in result["random_starts"]]
    return {name: [name] for name in met if name not in cells} | ({"random": cells} if cells else {})


def survival(row: dict[str, Any], starts: list[str]) -> tuple[float, float, float] | None:
    """Return the share of survived fights from these starts, and its 95 % interval; None if there are no such fights.

    The interval counts identical fights once.
    """
    parts = [row["by_start"][name] for name in starts if name in row["by_start"]]
    fights = sum(part["fights"] for part in parts)
    if not fights:
        return None
    share = min(1.0, sum(part["survived"] * part["fights"] for part in parts) / fights)
    distinct = sum(part["distinct"] for part in parts)
    return share, *wilson(share * distinct, distinct)


def survival_table(result: dict[str, Any]) -> TextTable:
    """Return a table of the share of fights that each agent survived, one row per start."""
    title = "Survived, % of the fights from a start, ± 95 %, in all their fights; columns: numbers of the agents above"
    rows = []
    for heading, starts in kinds_of_starts(result).items():
        cells = [survival(row, starts) for row in result["behaviour"]]
        shares = ("-" if c is None else f"{100 * c[0]:.0f} ±{50 * (c[2] - c[1]):.0f}" for c in cells)
        rows.append([heading, *shares])
    return TextTable(["start", *numbers(result)], rows, title)


def weakness_tables(result: dict[str, Any]) -> list[TextTable]:
    """Return a table of each agent's worst opponent and starts; an empty list if too few fights are distinct."""
    rows = []
    for row in result["weak"]:
        for key in ("opponent", "start", "random_start"):
            if (found := row[key]) is not None:
                low, high = found["score_ci95"]
                interval = f"{100 * low:.0f}-{100 * high:.0f}"
                rows.append(
                    [row["agent"], key.replace("_", " "), found["name"], f"{100 * found['score']:.0f}", interval]
                )
    title = "Weakest against: score, %, is wins and half of the undecided fights"
    return [TextTable(["agent", "", "weakest", "score", "95 %"], rows, title, keys=3)] if rows else []
