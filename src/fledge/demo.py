"""`make demo`: learn to fly from nothing, in minutes, and show it.

Trains the `fast` preset, evaluates the result beside a straight-flying pilot and NavRL's released policy (the file when it
is there, else its results recorded with `fledge eval`), and writes one HTML report.
"""

from __future__ import annotations

import importlib.resources
import json
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fledge.core.errors import FledgeError
from fledge.core.overrides import build_config
from fledge.evaluate.command import EvalRequest, fly_with_progress, table, task_for
from fledge.evaluate.policies import load_policy
from fledge.evaluate.report import Report, read_curves, write_report
from fledge.train.command import run_training
from fledge.train.config import TrainConfig

EPISODES = 1024
WORLDS = (0, 80)
NAVRL_FILES = ("../shared/data/navrl_checkpoint.pt", "navrl_checkpoint.pt")


@click.command()
@click.option("--out", default="demo", type=click.Path(path_type=Path), help="Folder for the run and the report.")
@click.option("--episodes", default=EPISODES, show_default=True, help="Episodes per policy and world.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def main(out: Path, episodes: int, overrides: tuple[str, ...]) -> None:
    """Train the fast preset, evaluate it, and write a report."""
    console = Console(stderr=True)
    run = out / time.strftime("run-%Y%m%d-%H%M%S")
    console.rule("[bold]1 of 2  learning to fly")
    result = run_training(["navigation"], "fast", list(overrides), run, None)
    assert result is not None
    console.rule("[bold]2 of 2  flying on unseen maps")
    rows, flights = evaluate_all(run, episodes, console)
    Console().print(table(rows))
    path = out / "report.html"
    write_report(path, make_report(run, result, rows, flights))
    console.print(f"report: {path}", highlight=False)


def evaluate_all(run: Path, episodes: int, console: Console) -> tuple[list[dict[str, Any]], Any]:
    """Figures of all policies in all worlds, and flights of the one just trained."""
    navrl = next((f for f in NAVRL_FILES if Path(f).is_file()), None)
    names = [(str(run), "this run"), *([(navrl, "NavRL")] if navrl else []), ("straight", "straight ahead")]
    rows: list[dict[str, Any]] = []
    flights = None
    for name, label in names:
        policy = load_policy(name)
        ours = name == str(run)
        for movers in WORLDS:
            request = EvalRequest([name], [f"env.moving_obstacles={movers}"], episodes)
            if ours and movers == WORLDS[-1]:
                request.picture = Path("unused")  # asks for paths to be recorded
            cfg = task_for(policy, request)
            evaluation = fly_with_progress(policy, cfg, request, console, label)
            flights = evaluation.flights or flights
            world = {"static_obstacles": cfg.static_obstacles, "moving_obstacles": movers, "seed": request.seed}
            rows.append({"policy": label, "ours": ours, **evaluation.as_dict(), **world, "floating_boxes": True})
    if navrl is None:
        rows[len(WORLDS) : len(WORLDS)] = recorded_navrl()
    return rows, flights


def recorded_navrl() -> list[dict[str, Any]]:
    """What `fledge eval --navrl-checkpoint FILE --movers 0,80 --episodes 1024 --json` printed when we ran it."""
    path = importlib.resources.files("fledge.tasks.navigation") / "recorded" / "navrl_released.json"
    rows = json.loads(path.read_text())
    return [{**row, "policy": "NavRL (recorded)"} for row in rows]


def make_report(run: Path, result: dict[str, Any], rows: list[dict[str, Any]], flights: Any) -> Report:
    minutes = result["seconds"] / 60
    ours = [row for row in rows if row.get("ours")]
    theirs = [row for row in rows if row["policy"].startswith("NavRL")]
    cfg = build_config(TrainConfig, [("train", "fast")], [])
    lead = (
        f"{cfg.env.num_envs} simulated drones learned to cross a forest of {cfg.env.static_obstacles} columns and "
        f"{cfg.env.moving_obstacles} moving obstacles, on this machine's CPU."
    )
    figures = [(f"{minutes:.1f} min", "of learning, from nothing"), (f"{result['frames'] / 1e6:.1f} M", "decisions")]
    figures.append((f"{result['frames'] / result['seconds']:,.0f}/s", "decisions per second"))
    figures += [(f"{row['success']:.3f}", f"success at 350/{row['moving_obstacles']}") for row in ours]
    marks = [(f"NavRL's policy at 350/{row['moving_obstacles']}", row["success"]) for row in theirs]
    return Report(
        title="Fledge: learning to fly",
        lead=lead,
        command="make demo\n# or, in parts:\nfledge train navigation --folder runs/mine\nfledge eval runs/mine --movers 0,80",
        figures=figures,
        rows=rows,
        curves=read_curves(run),
        flights=[("Flights of the new policy among 80 moving obstacles", flights)] if flights else [],
        marks=marks,
    )


if __name__ == "__main__":
    try:
        main()
    except FledgeError as error:
        click.echo(f"fledge: {error}", err=True)
        raise SystemExit(error.exit_code) from error
