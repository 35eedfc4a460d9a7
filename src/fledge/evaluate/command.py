"""`fledge eval`: several policies, several worlds, one table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config
from fledge.evaluate.episodes import Evaluation, Policy, evaluate
from fledge.evaluate.policies import load_policy, shipped_policies
from fledge.tasks.navigation import NavigationConfig
from fledge.tasks.navigation.navrl import NavRLPolicy, load_navrl_checkpoint
from fledge.tasks.navigation.picture import save_flights
from fledge.train.config import TrainConfig


@dataclass
class EvalRequest:
    """What the user asked for."""

    policies: list[str]  # names for `load_policy`
    overrides: list[str]
    episodes: int = 1024
    seed: int = 1
    env_preset: str | None = None
    movers: list[int] | None = None
    deterministic: bool = True
    picture: Path | None = None
    threads: int | None = None
    quiet: bool = False
    navrl_checkpoint: str | None = None


def run_evaluations(request: EvalRequest) -> list[dict[str, Any]]:
    """Fly every policy in every world, print a table (unless quiet), and return the figures."""
    loaded: list[tuple[str, Policy]] = [(name, load_policy(name)) for name in request.policies]
    if request.navrl_checkpoint:
        loaded.append((request.navrl_checkpoint, load_navrl_checkpoint(request.navrl_checkpoint)))
    if not loaded:
        known = ", ".join([*shipped_policies(), "straight", "gap"])
        raise ConfigError(f"Name a policy to fly: a run's folder, a policy file, --navrl-checkpoint FILE, or {known}.")
    rows: list[dict[str, Any]] = []
    console = Console(stderr=True)
    for name, policy in loaded:
        cfg = task_for(policy, request)
        for world in worlds(cfg, request.movers):
            result = fly_with_progress(policy, world, request, console, Path(name).name)
            check = {"static_obstacles": world.static_obstacles, "moving_obstacles": world.moving_obstacles}
            check |= {"floating_boxes": world.floating_boxes, "seed": request.seed}
            rows.append({"policy": Path(name).name, **result.as_dict(), **check})
            if request.picture and result.flights:
                path = numbered(request.picture, len(rows), len(loaded) * len(request.movers or [0]))
                title = f"{Path(name).name}: success {result.rate('success'):.3f} of {result.episodes} flights"
                save_flights(path, result.flights, title)
                console.print(f"picture: {path}", highlight=False, soft_wrap=True)
    if not request.quiet:
        Console().print(table(rows))
    return rows


def task_for(policy: Policy, request: EvalRequest) -> NavigationConfig:
    """The world a policy flies in: NavRL's replica for NavRL's policy, else the default task; what it needs; overrides."""
    preset = request.env_preset or ("navrl" if isinstance(policy, NavRLPolicy) else "default")
    needs = [f"env.{key}={value}" for key, value in getattr(policy, "task", {}).items()]
    return build_config(TrainConfig, [("env", preset)], [*needs, *request.overrides]).env


def worlds(cfg: NavigationConfig, movers: list[int] | None) -> list[NavigationConfig]:
    return [dataclasses.replace(cfg, moving_obstacles=m) for m in movers] if movers else [cfg]


def fly_with_progress(
    policy: Policy, cfg: NavigationConfig, request: EvalRequest, console: Console, name: str
) -> Evaluation:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=request.quiet, transient=True) as progress:
        label = f"{name} at {cfg.static_obstacles}/{cfg.moving_obstacles}"
        task = progress.add_task(label, total=request.episodes)
        return evaluate(
            policy,
            cfg,
            request.episodes,
            request.seed,
            num_threads=request.threads,
            deterministic=request.deterministic,
            record=256 if request.picture else 0,
            on_progress=lambda done: progress.update(task, completed=done),
        )


def numbered(path: Path, number: int, total: int) -> Path:
    return path if total == 1 else path.with_stem(f"{path.stem}_{number}")


def table(rows: list[dict[str, Any]]) -> Table:
    """The figures as a table that fits 80 columns."""
    view = Table(
        title=f"{rows[0]['episodes']} episodes each on held-out maps, seed {rows[0]['seed']}",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    view.add_column("policy", no_wrap=True, max_width=20)
    for heading in ("world", "success", "95 %", "column", "mover", "out", "time"):
        view.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        low, high = row["success_ci95"]
        boxes = "" if row["floating_boxes"] else " low"
        view.add_row(
            row["policy"],
            f"{row['static_obstacles']}/{row['moving_obstacles']}{boxes}",
            short(row["success"]),
            f"{low:.3f}-{high:.3f}".replace("0.", "."),
            *(short(row[k]) for k in ("collision_static", "collision_moving", "out_of_bounds", "timeout")),
        )
    return view


def short(rate: float) -> str:
    return f"{rate:.3f}".removeprefix("0")
