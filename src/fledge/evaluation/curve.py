"""`fledge eval RUN --checkpoints`: the primary metric in held-out episodes over training time and decisions.

Every checkpoint that the run has kept, also those with weights only, flies the same episodes.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fledge.agents.policy_file import STORED
from fledge.core.errors import ConfigError
from fledge.core.terminal import make_console, say
from fledge.core.text_table import TextTable
from fledge.evaluation.comparison import EvalRequest, fly_with_progress, row_of
from fledge.evaluation.env_config import eval_env
from fledge.evaluation.episodes import PolicyResult
from fledge.evaluation.results import Evaluation
from fledge.evaluation.tables import episodes_title, score_of, score_texts
from fledge.storage import CheckpointHistory
from fledge.tasks.policy_loader import LoadedPolicy, add_shield, policy_from_state
from fledge.tasks.registry import find_task

COLOURS = ("#1b9e5a", "#e08e1b", "#4a6fa5", "#d1495b", "#6b4fa0", "#526070")


def run_curve(request: EvalRequest) -> Evaluation:
    """Evaluate every kept checkpoint of a run in every env config, draw the picture if requested, and return the results."""
    folders = [Path(getattr(each, "folder", each)) for each in request.policies if not isinstance(each, LoadedPolicy)]
    if len(request.policies) != 1 or not folders or not (folders[0] / "checkpoints").is_dir():
        raise ConfigError("`checkpoints` evaluates a single run: pass one run's folder, as `fledge train` printed it.")
    run, console = folders[0], make_console(stderr=True)
    chosen = request.task if request.task is not None else getattr(request.policies[0], "task", None)
    task = None if chosen is None else find_task(chosen)
    history = CheckpointHistory(run / "checkpoints")
    flown = dataclasses.replace(request, picture=None)
    rows: list[dict[str, Any]] = []
    results: list[PolicyResult] = []
    for entry in history.entries():
        state = history.load(entry, keys=(*STORED, "frames", "seconds"))
        policy = policy_from_state(state, str(entry.path), task)
        policy = add_shield(policy, request.shield) if request.shield else policy
        for words in request.env_overrides():
            flight = eval_env(policy, request.env_preset, words)
            label = f"{run.name} at {state['frames'] / 1e6:.1f} M decisions"
            result = fly_with_progress(policy, flight.cfg, flown, console, label)
            results.append(result)
            where = {"minutes": round(state["seconds"] / 60, 2), "frames": int(state["frames"])}
            rows.append({**where, **row_of(policy, flight, result, request, run.name)})
    if not rows:
        raise ConfigError(f"{run} has no checkpoint yet: wait until its training has saved one.")
    if request.picture:
        request.picture.parent.mkdir(parents=True, exist_ok=True)
        draw(rows, run.name).savefig(request.picture, dpi=130)
        say(console, f"picture: {request.picture}")
    return Evaluation(rows, policy.task, results)


def table(rows: list[dict[str, Any]]) -> TextTable:
    """Return a table of the primary metric in each env, one row per checkpoint; `rows` are the results."""
    worlds, head = list(dict.fromkeys(row["world"] for row in rows)), rows[0]["headline"]
    lines = []
    for first in range(0, len(rows), len(worlds)):
        group = rows[first : first + len(worlds)]
        cells = ["{} ({})".format(*score_texts(row, head)) for row in group]
        lines.append([f"{group[0]['minutes']:.1f}", f"{group[0]['frames'] / 1e6:.1f}", *cells])
    columns = ["minutes", "M decisions", *(f"{head} {world}" for world in worlds)]
    return TextTable(columns, lines, episodes_title(rows), "In brackets: 95 % confidence intervals.", keys=2)


def draw(rows: list[dict[str, Any]], title: str) -> Any:
    """Return a figure of the primary metric against minutes and decisions, one line per env, with 95 % intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    worlds, head = list(dict.fromkeys(row["world"] for row in rows)), rows[0]["headline"]
    for axis, key, scale, label in ((left, "minutes", 1.0, "minutes"), (right, "frames", 1e-6, "million decisions")):
        for colour, world in zip(COLOURS, worlds, strict=False):
            line = [row for row in rows if row["world"] == world]
            x = [row[key] * scale for row in line]
            y, low, high = zip(*(score_of(row, head) for row in line), strict=True)
            axis.plot(x, y, "o-", color=colour, markersize=3, linewidth=1.5, label=world)
            axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_xlabel(label)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    left.set_ylabel(f"{head}, held out")
    if head != "return":
        left.set_ylim(0, 1)
    left.legend(frameon=False, loc="lower right")
    figure.suptitle(f"{title}: {rows[0]['episodes']} episodes a point, 95 % intervals", fontsize=11)
    return figure
