"""Write the report of a run in a two-player task: the cross-table, how the agents fight, the league, lost fights."""

from __future__ import annotations

import dataclasses
import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fledge.evaluation.comparison import EvalRequest
from fledge.evaluation.league_tree import read_league, tree_figure
from fledge.evaluation.match_agents import fitting_pilots, match_env
from fledge.evaluation.match_comparison import fly_cross_table
from fledge.evaluation.match_tables import figure as shown_figure
from fledge.evaluation.match_tables import kinds_of_starts, survival
from fledge.evaluation.matches import Match
from fledge.evaluation.page import cell, heading, html_table, image, note, table_row, tint, write_page
from fledge.evaluation.report import CURVES_NOTE, command_line, curves_figure, learning_figures, read_curves, trained_in
from fledge.evaluation.run_section import run_section
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import LoadedPolicy
from fledge.tasks.view.trajectory import LossReason, Trajectory

SHOWN_LOSSES, SHOWN_WINS = 6, 2
OURS = "this run"


@dataclass
class Fights:
    """Recorded fights of the run; the page shows some of them."""

    lost: list[tuple[str, Trajectory, LossReason]] = field(default_factory=list)  # (opponent, fight, reason)
    won: list[tuple[str, Trajectory]] = field(default_factory=list)


def report_on_fights(run: Path, ours: LoadedPolicy, request: EvalRequest, path: Path) -> dict[str, Any]:
    """Let a run fight the scripted policies of its task, write the page, and return its path and the results."""
    task = ours.task
    cfg = match_env([ours], request)
    agents = [(OURS, ours.agent), *((policy.name, policy.agent) for policy in fitting_pilots(task, cfg))]
    request, kept = dataclasses.replace(request, episodes=request.episodes + request.episodes % 2), Fights()

    def keep(i: int, j: int, match: Match) -> None:
        if i == 0:  # all lost fights with the reason, and the longest won fight
            reasons = [(episode, task.view.explain(episode, 0)) for episode in match.highlights]
            kept.lost += [(agents[j][0], episode, reason) for episode, reason in reasons if reason is not None]
            won = [episode for episode in match.highlights if episode.outcome == task.primary_metric]
            kept.won += [(agents[j][0], episode) for episode in won[:1]]

    options = {"highlights": request.episodes, "only_first": True, "on_match": keep}
    result = fly_cross_table(agents, task, cfg, request, **options)
    curves = read_curves(run)
    title = f"{task.name}: {run.name}"
    lead = (
        f"A policy for the task {task.name}, trained in {trained_in(ours)} and evaluated in held-out fights against the "
        f"task's scripted policies, starts: {result['world']}."
    )
    parts = [
        *heading(title, lead, tiles(result, curves, task)),
        *results(result),
        *behaviour(result, task),
        *weaknesses(result),
        *learning(run, curves, task),
        *lost_fights(kept, task, result),
        *won_fights(kept, task, result),
        *run_section(run, ours, curves),
        f"<h2>Make this page again</h2><pre>{html.escape(command_line(run, request, path))}</pre>",
    ]
    write_page(path, title, parts)
    kinds = Counter(reason.kind for _, _, reason in kept.lost)
    return {"report": str(path), **result, "lost": {"fights": len(kept.lost), "kinds": dict(kinds.most_common())}}


def tiles(result: dict[str, Any], curves: Sequence[dict[str, float]], task: Task) -> list[tuple[str, str]]:
    """Return the key results at the top of the page, each as a pair of texts (value, meaning)."""
    found = learning_figures(curves)
    others = range(1, len(result["agents"]))
    if result["elo"] and others:
        elo = result["elo"][0]
        found.append((f"{elo['rating']:.0f} ±{elo['ci95'][1] - elo['rating']:.0f}", "Elo (mean of the table: 1000)"))
        best = max(others, key=lambda j: float(result["elo"][j]["rating"]))
        row = result["table"][0][best]
        if row["win_of_decided"] is not None:
            name = result["agents"][best]
            found.append(
                (
                    f"{100 * row['win_of_decided']:.0f} %",
                    f"of decided fights won against {name}, the best scripted policy",
                )
            )
    for name in task.match.key_metrics if "behaviour" in result else ():
        head, value = task.match.columns[name], result["behaviour"][0][name]
        share = " %" if "%" in head and value is not None else ""
        found.append((shown_figure(value, head) + share, head.replace(", %", "")))
    return found


# ---- tables ----------------------------------------------------------------------------------------------------------


def names_of(result: dict[str, Any]) -> list[str]:
    return [f"{number} {name}" for number, name in enumerate(result["agents"], 1)]


def results(result: dict[str, Any]) -> list[str]:
    """Return the section with the cross-table, as HTML parts."""
    body = []
    for i, name in enumerate(names_of(result)):
        elo = result["elo"][i] if result["elo"] else None
        cells = [cell(name)]
        cells.append(cell(f"{elo['rating']:.0f}", f"±{elo['ci95'][1] - elo['rating']:.0f}") if elo else cell(""))
        for j, row in enumerate(result["table"][i]):
            if i == j:
                cells.append(cell(""))
                continue
            share, (low, high) = row["win_of_decided"], row["ci95"]
            small = f"{100 * low:.0f}-{100 * high:.0f}\ndecided {100 * row['decided']:.0f}"
            score = row["win"] + 0.5 * row["draw"]
            cells.append(cell("-" if share is None else f"{100 * share:.0f}", small, tint(score)))
        body.append(table_row(cells, i == 0))
    heads = ["wins, % of decided", "Elo", *(f"against {n}" for n in range(1, len(result["agents"]) + 1))]
    return [
        "<h2>Wins against each other, in held-out fights</h2>",
        html_table(heads, body, tight=True),
        note(
            f"{result['episodes']} fights per pair, seed {result['seed']}: every start is flown twice, with sides swapped; "
            "deterministic. Below each: the 95 % interval, and the share of decided fights, %. Undecided fights count as half "
            "a win in Elo and in the colours."
        ),
    ]


def behaviour(result: dict[str, Any], task: Task) -> list[str]:
    """Return the sections on how all agents fight and which starts they survive, as HTML parts."""
    if "behaviour" not in result:
        return []
    body, names = list[str](), names_of(result)
    for name, row in zip(names, result["behaviour"], strict=True):
        figures = [cell(shown_figure(row[key], head)) for key, head in task.match.columns.items()]
        body.append(table_row([cell(name), *figures], not body))
    starts = kinds_of_starts(result)
    shares = [[survival(row, cells) for cells in starts.values()] for row in result["behaviour"]]
    best = [max((found[0] for found in column if found), default=0.0) for column in zip(*shares, strict=True)]
    survived = []
    for i, row in enumerate(shares):
        cells = [cell(names[i])]
        for k, found in enumerate(row):
            if found is None:
                cells.append(cell("-"))
            else:
                share, low, high = found
                cells.append(cell(f"{100 * share:.0f} %", f"{100 * low:.0f}-{100 * high:.0f}", best=share >= best[k]))
        survived.append(table_row(cells, i == 0))
    return [
        "<h2>How they fight</h2>",
        html_table(["against all, itself included", *task.match.columns.values()], body),
        note(task.match.legend),
        "<h2>Which starts they survive</h2>",
        html_table(["survived", *starts], survived),
        note(
            "All had the same opponents: every agent of the table, itself included. The highest share of a column is bold. "
            "Intervals count identical fights once."
        ),
    ]


def weaknesses(result: dict[str, Any]) -> list[str]:
    """Return the section on weaknesses: each agent's worst opponent and start, and the run's score by random start."""
    if not result.get("weak"):
        return []
    body = []
    for i, row in enumerate(result["weak"]):
        cells = [cell(names_of(result)[i])]
        for key in ("opponent", "start", "random_start"):
            found = row[key]
            if found is None:
                cells.append(cell("too few fights"))
                continue
            score, low, high = (100 * x for x in (found["score"], *found["score_ci95"]))
            cells.append(cell(found["name"], f"score {score:.0f} ({low:.0f}-{high:.0f}), {found['fights']} fights"))
        body.append(table_row(cells, i == 0))
    parts = [
        "<h2>Where they are weak</h2>",
        html_table(["lowest score", "opponent", "start", "of random starts"], body),
        note("Score: wins and half of the undecided fights, in %. Named only where at least 20 fights are distinct."),
    ]
    return parts + random_starts(result)


def random_starts(result: dict[str, Any]) -> list[str]:
    """Return a heading and a grid of the run's score by random start, as HTML; empty if there are no random starts.

    The name of a random start, "ROW, COLUMN", determines its cell.
    """
    told = result["behaviour"][0]["by_start"]
    pairs = [tuple(name.split(", ", 1)) for name in result["random_starts"] if name in told and ", " in name]
    if not pairs:
        return []
    rows, columns = list(dict.fromkeys(p[0] for p in pairs)), list(dict.fromkeys(p[1] for p in pairs))
    body = []
    for row in rows:
        cells = [cell(row)]
        for column in columns:
            found = told.get(f"{row}, {column}")
            if found is None:
                cells.append(cell("-"))
                continue
            lost = f"lost {100 * found['loss']:.0f} %, {found['fights']} fights"
            cells.append(cell(f"{100 * found['score']:.0f}", lost, tint(found["score"])))
        body.append(table_row(cells))
    return ["<h3>Score of this run over random starts, against all opponents</h3>", html_table(["", *columns], body)]


# ---- pictures --------------------------------------------------------------------------------------------------------


def learning(run: Path, curves: Sequence[dict[str, float]], task: Task) -> list[str]:
    """Return the sections with the training curves and the picture of the league, as HTML parts."""
    if not curves:
        return []
    parts = ["<h2>How it learned</h2>", image(curves_figure(curves, task), "training curves"), note(CURVES_NOTE)]
    league = read_league(run)
    if league and any("league/elo" in row for row in curves):
        parts += ["<h2>The league</h2>", image(tree_figure(league, curves), "the league's tree")]
        text = (
            "Green: the learner's rating during training. A dot marks an opponent that joined, with the learner's rating at "
            "that time; the line from it leads to its present rating. Red: scripted policies; blue: copies of the learner. "
            "These ratings come from fights with exploration, so they differ from those of the table above."
        )
        parts.append(note(text))
    return parts


def lost_fights(kept: Fights, task: Task, result: dict[str, Any]) -> list[str]:
    """Return the section on why the run lost fights, with pictures of some, as HTML parts."""
    flown = result["episodes"] * (len(result["agents"]) - 1)
    parts = ["<h2>The fights it lost, and why</h2>"]
    if not kept.lost:
        return [*parts, f"<p>None of {flown}.</p>"]
    kinds = Counter(reason.kind for _, _, reason in kept.lost).most_common()
    foes = [name for name in result["agents"] if any(name == against for against, _, _ in kept.lost)]
    met = Counter((reason.kind, against) for against, _, reason in kept.lost)
    body = []
    for kind, count in kinds:
        texts = [
            kind,
            f"{count}",
            f"{100 * count / len(kept.lost):.0f} %",
            *(str(met[kind, foe] or "") for foe in foes),
        ]
        body.append(table_row(map(cell, texts)))
    parts.append(f"<p>{len(kept.lost)} of {flown} fights against others were lost, or ended with both dead.</p>")
    parts.append(html_table(["", "fights", "share", *(f"against {foe}" for foe in foes)], body))
    parts.append(note("In the pictures, this run is the first side: blue, where sides have colours."))
    for against, trajectory, reason in chosen_losses(kept, [kind for kind, _ in kinds]):
        parts.append(picture(task, trajectory, f"Against {against}", reason.why))
    return parts


def chosen_losses(kept: Fights, kinds: Sequence[str]) -> list[tuple[str, Trajectory, LossReason]]:
    """Return up to SHOWN_LOSSES lost fights: one of each kind of loss in turn, against different opponents if possible."""
    queues = {kind: [row for row in kept.lost if row[2].kind == kind] for kind in kinds}
    found: list[tuple[str, Trajectory, LossReason]] = []
    while len(found) < SHOWN_LOSSES and any(queues.values()):
        for queue in queues.values():
            if queue and len(found) < SHOWN_LOSSES:
                shown = Counter(row[0] for row in found)
                found.append(queue.pop(min(range(len(queue)), key=lambda k: (shown[queue[k][0]], k))))
    return found


def won_fights(kept: Fights, task: Task, result: dict[str, Any]) -> list[str]:
    """Return the section with fights that the run won against the best opponents, as HTML parts."""
    strength = {name: row["rating"] for name, row in zip(result["agents"], result["elo"], strict=True)}
    best = sorted(kept.won, key=lambda row: -strength[row[0]])[:SHOWN_WINS]
    shown = [picture(task, trajectory, f"Against {foe}", "") for foe, trajectory in best]
    return ["<h2>Fights it won</h2>", *shown] if shown else []


def picture(task: Task, trajectory: Trajectory, title: str, text: str) -> str:
    """Return a picture of one fight with its caption, as HTML."""
    said = f"<b>{html.escape(title)}.</b> {html.escape(text)}"
    return f"<figure><figcaption>{said}</figcaption>{image(task.view.draw_closely(trajectory), title)}</figure>"
