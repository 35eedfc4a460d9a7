"""`fledge eval RUN --checkpoints`: success against wall-clock and decisions, with intervals, on held-out maps.

Every checkpoint that the run has kept (older ones as bare weights) flies the same episodes.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fledge.core.errors import ConfigError
from fledge.evaluate.command import EvalRequest, fly_with_progress, task_for, worlds
from fledge.evaluate.policies import build_policy
from fledge.storage import CheckpointHistory

COLOURS = ("#1b9e5a", "#e08e1b", "#4a6fa5", "#d1495b", "#6b4fa0", "#526070")


def run_curve(request: EvalRequest) -> list[dict[str, Any]]:
    """Fly every kept checkpoint of one run in every world; print a table (unless quiet), draw it, return the figures."""
    if len(request.policies) != 1 or not (Path(request.policies[0]) / "checkpoints").is_dir():
        raise ConfigError("--checkpoints takes one run's folder, as `fledge train` printed it.")
    run, console = Path(request.policies[0]), Console(stderr=True)
    history = CheckpointHistory(run / "checkpoints")
    flown = dataclasses.replace(request, picture=None)
    rows: list[dict[str, Any]] = []
    for entry in history.entries():
        state = history.load(entry, keys=("model", "policy", "task", "frames", "seconds"))
        policy = build_policy(state, str(entry.path))
        for world in worlds(task_for(policy, flown), flown.movers):
            label = f"{run.name} at {state['frames'] / 1e6:.1f} M decisions"
            result = fly_with_progress(policy, world, flown, console, label)
            where = {"minutes": round(state["seconds"] / 60, 2), "frames": int(state["frames"])}
            world_is = {"static_obstacles": world.static_obstacles, "moving_obstacles": world.moving_obstacles}
            rows.append({**where, **world_is, **result.as_dict(), "seed": request.seed})
    if not rows:
        raise ConfigError(f"{run} holds no checkpoint yet.")
    if request.picture:
        draw(rows, request.picture, run.name)
        console.print(f"picture: {request.picture}", highlight=False, soft_wrap=True)
    if not request.quiet:
        Console().print(table(rows))
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    """The figures, one row a checkpoint."""
    moving = list(dict.fromkeys(row["moving_obstacles"] for row in rows))
    view = Table(title=f"{rows[0]['episodes']} episodes each on held-out maps, seed {rows[0]['seed']}", box=SIMPLE)
    for heading in ("minutes", "M decisions", *(f"{rows[0]['static_obstacles']}/{m}" for m in moving)):
        view.add_column(heading, justify="right", no_wrap=True)
    for first in range(0, len(rows), len(moving)):
        group = rows[first : first + len(moving)]
        cells = ["{:.3f} ({:.3f}-{:.3f})".format(r["success"], *r["success_ci95"]).replace("0.", ".") for r in group]
        view.add_row(f"{group[0]['minutes']:.1f}", f"{group[0]['frames'] / 1e6:.1f}", *cells)
    return view


def draw(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """Success against minutes and against decisions, one line a world, with 95 % intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    moving = list(dict.fromkeys(row["moving_obstacles"] for row in rows))
    for axis, key, scale, label in ((left, "minutes", 1.0, "minutes"), (right, "frames", 1e-6, "million decisions")):
        for colour, movers in zip(COLOURS, moving, strict=False):
            line = [row for row in rows if row["moving_obstacles"] == movers]
            x, y = [row[key] * scale for row in line], [row["success"] for row in line]
            low, high = ([row["success_ci95"][k] for row in line] for k in (0, 1))
            name = f"{line[0]['static_obstacles']} columns, {movers} movers"
            axis.plot(x, y, "o-", color=colour, markersize=3, linewidth=1.5, label=name)
            axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_xlabel(label)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("success on held-out maps")
    left.set_ylim(0, 1)
    left.legend(frameon=False, loc="lower right")
    figure.suptitle(f"{title}: {rows[0]['episodes']} flights a point, 95 % intervals", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
