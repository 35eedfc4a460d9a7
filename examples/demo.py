"""`make demo`: train a policy from scratch in minutes, and show it.

    python examples/demo.py --out demo

Trains the `fast` preset, evaluates the result beside a scripted policy that flies straight and NavRL's released policy (its
file if present, else its recorded results), and writes one HTML report. NavRL: https://github.com/Zhefan-Xu/NavRL
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

import fledge
from fledge.core.errors import FledgeError
from fledge.core.terminal import make_console, say
from fledge.evaluation.comparison import EvalRequest, fly_with_progress, row_of
from fledge.evaluation.env_config import eval_env
from fledge.evaluation.report import Report, read_curves, write_report
from fledge.evaluation.tables import detail_tables as details
from fledge.evaluation.tables import results_table as table
from fledge.tasks.policy_loader import load_policy
from fledge.tasks.registry import find_task
from fledge.tasks.view.trajectory import Trajectory
from fledge.training.config import read_run_config

EPISODES = 1024
WORLDS = (("crossing", 0), ("crossing", 80), (None, 0), (None, 80))  # env preset (None: the run's own), movers
SHOWN = ("crossing", 80)
NAVRL_FILES = ("../shared/data/navrl_checkpoint.pt", "navrl_checkpoint.pt")


@click.command()
@click.option("--out", default="demo", type=click.Path(path_type=Path), help="Folder for the run and the report.")
@click.option("--episodes", default=EPISODES, show_default=True, help="Episodes per policy and env.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def main(out: Path, episodes: int, overrides: tuple[str, ...]) -> None:
    """Train the fast preset, evaluate it, and write a report."""
    console = make_console(stderr=True)
    run = out / time.strftime("run-%Y%m%d-%H%M%S")
    console.rule(Text("1 of 2  learning to fly", "bold"))
    settings = dict(word.split("=", 1) for word in overrides)
    result = fledge.train("navigation", "fast", run, **settings).final_metrics
    console.rule(Text("2 of 2  flying on unseen maps", "bold"))
    rows, trajectories = evaluate_all(run, episodes, console)
    task = find_task("navigation")
    make_console().print(table(rows, task), *details(rows, task))
    path = out / "report.html"
    write_report(path, make_report(run, result, rows, trajectories))
    say(console, f"report: {path}")


def evaluate_all(run: Path, episodes: int, console: Console) -> tuple[list[dict[str, Any]], list[Trajectory]]:
    """Return the figures of all policies in all envs, and flights of the trained one."""
    navrl = next((f for f in NAVRL_FILES if Path(f).is_file()), None)
    names = [(str(run), "this run"), *([(navrl, "NavRL")] if navrl else []), ("straight", "straight ahead")]
    rows: list[dict[str, Any]] = []
    trajectories: list[Trajectory] = []
    home = None
    for name, label in names:
        policy = load_policy(name)
        ours = name == str(run)
        home = home or policy.env
        for preset, movers in WORLDS:
            request = EvalRequest([name], episodes=episodes)
            if ours and (preset, movers) == SHOWN:
                request.picture = Path("unused")  # makes the evaluation record paths
            flight = eval_env(policy, preset, [f"env.moving_obstacles={movers}"], home)
            result = fly_with_progress(policy, flight.cfg, request, console, label)
            trajectories = result.trajectories or trajectories
            rows.append({**row_of(policy, flight, result, request, label), "ours": ours})
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    if navrl is None:
        rows += [row for row in find_task("navigation").metrics.reference_rows() if row["world"] in worlds]
    return sorted(rows, key=lambda row: worlds.index(row["world"])), trajectories


def make_report(
    run: Path, result: dict[str, Any], rows: list[dict[str, Any]], trajectories: list[Trajectory]
) -> Report:
    minutes = result["seconds"] / 60
    ours = [row for row in rows if row.get("ours")]
    theirs = [row for row in rows if row["policy"].startswith("NavRL")]
    task, cfg = read_run_config(run)
    lead = (
        f"{cfg.env.num_envs} simulated drones learned to cross a forest of {cfg.env.static_obstacles} columns and "
        f"{cfg.env.moving_obstacles} moving obstacles, on this machine's CPU."
    )
    figures = [(f"{minutes:.1f} min", "of learning, from nothing"), (f"{result['frames'] / 1e6:.1f} M", "decisions")]
    figures.append((f"{result['frames'] / result['seconds']:,.0f}/s", "decisions per second"))
    figures += [(f"{row['success']:.3f}", row["world"]) for row in ours]
    marks = [(f"{row['policy']}, {row['world']}", row["success"]) for row in theirs if row["starts"] == "edges"]
    return Report(
        title="Fledge: learning to fly",
        lead=lead,
        command="make demo\n# or, in parts:\nfledge train navigation --folder runs/mine\nfledge eval runs/mine --movers 0,80",
        figures=figures,
        rows=rows,
        curves=read_curves(run),
        task=task,
        trajectories=[("The new policy crossing, among 80 moving obstacles", trajectories)] if trajectories else [],
        marks=marks,
    )


if __name__ == "__main__":
    try:
        main()
    except FledgeError as error:
        click.echo(f"fledge: {error}", err=True)
        raise SystemExit(error.exit_code) from error
