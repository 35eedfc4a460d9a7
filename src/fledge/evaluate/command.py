"""`fledge eval`: several policies, several worlds, one table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fledge.core.errors import ConfigError
from fledge.core.settings import flat_settings
from fledge.core.terminal import counting, make_console, say
from fledge.evaluate.entrants import fitting_pilots, match_world, named_agents, tell_differences, trained_elsewhere
from fledge.evaluate.env_config import EvalEnv, eval_env
from fledge.evaluate.episodes import TEST_SEED, Evaluation, evaluate
from fledge.evaluate.judging import explain_losses
from fledge.evaluate.match_tables import behaviour_tables, match_table, same_fights
from fledge.evaluate.matches import Match, cross_table
from fledge.evaluate.recordings import save_recording
from fledge.tasks.base import Task
from fledge.tasks.labels import env_label
from fledge.tasks.policies import LoadedPolicy, add_shield, find_policy_file, load_interop, load_policy, make_pilot
from fledge.tasks.policy import TrainedEnv
from fledge.tasks.registry import find_task, task_names

RECORDED = 256  # envs whose first episodes a picture shows


@dataclass
class EvalRequest:
    """What the user asked for."""

    policies: list[str]  # names for `load_policy`
    overrides: list[str] = field(default_factory=list)
    episodes: int = 1024
    seed: int = TEST_SEED
    task: str | None = None
    env_preset: str | None = None
    vary: tuple[str, list[str]] | None = None  # a setting, and the values to try one after the other
    deterministic: bool = True
    picture: Path | None = None
    record: Path | None = None
    record_episodes: int = 16
    threads: int | None = None
    quiet: bool = False
    foreign: str | None = None  # another project's file
    shield: str | None = None  # between each policy and its drones

    def words(self) -> Iterator[list[str]]:
        """Overrides of each world in turn."""
        if self.vary is None:
            yield self.overrides
            return
        key, values = self.vary
        for value in values:
            yield [*self.overrides, f"{key}={value}"]


def run_evaluations(request: EvalRequest) -> list[dict[str, Any]]:
    """Fly every policy in every world, print a table (unless quiet), and return the figures."""
    policies = load_policies(request)
    if policies[0].task.match.sides == 2:
        return [run_matches(policies, request)]
    rows: list[dict[str, Any]] = []
    console = make_console(stderr=True)
    home = home_of(policies)
    total = len(policies) * len(list(request.words()))
    for policy in policies:
        label = Path(policy.name).name
        for words in request.words():
            flight = eval_env(policy, request.env_preset, words, home)
            if (notice := flight.notice()) and not request.quiet:
                say(console, f"{label}: {notice}")
            result = fly_with_progress(policy, flight.cfg, request, console, label)
            rows.append(row_of(policy, flight, result, request, label))
            if request.record:
                path = numbered(request.record, len(rows), total)
                rows[-1] |= record(path, policy, flight, result, request, label)
                say(console, f"recording: {path}, {rows[-1]['recorded']} episodes")
            if request.picture and result.tracks:
                path = numbered(request.picture, len(rows), total)
                save_picture(path, policy.task, result, label, env_label(policy.task, flight.cfg))
                say(console, f"picture: {path}")
    if not request.quiet:
        make_console().print(table(rows, policies[0].task), *details(rows, policies[0].task))
    return rows


def run_matches(policies: list[LoadedPolicy], request: EvalRequest) -> dict[str, Any]:
    """Let every policy meet every other one, print the cross-table (unless quiet), and return the figures."""
    task = policies[0].task
    cfg = match_world(policies, request)
    if len(policies) == 1:  # against the ladder
        policies = policies + fitting_pilots(task, cfg, but=policies[0].name)
    agents = named_agents(policies)
    changed = trained_elsewhere(policies, [name for name, _ in agents], cfg)
    for name, differences in {} if request.quiet else changed.items():
        say(make_console(stderr=True), tell_differences(name, differences))
    fights = request.episodes * len(agents) * (len(agents) + 1) // 2
    pairs, files, losses = len(agents) * (len(agents) - 1) // 2, list[str](), list[dict[str, Any]]()

    def keep(i: int, j: int, match: Match) -> None:
        """Leave a recording and a picture of two agents' most interesting fights, and tell why they were lost."""
        who = [agents[i][0], agents[j][0]]
        facts = {"agents": who, "seed": request.seed, "world": env_label(task, task.match.match_config(cfg, 1))}
        number = sum(range(len(agents) - i, len(agents))) + j - i
        told = explain_losses(task, match.highlights, who)
        if request.record:
            path = numbered(request.record, number, pairs)
            save_recording(path, task, match.highlights, match.decision_s, facts)
            files.append(str(path))
            losses.extend({**row, "recording": str(path)} for row in told)
        if request.picture:
            path = numbered(request.picture, number, pairs)
            task.view.draw(match.highlights, f"{who[0]} (blue) against {who[1]} (red)").savefig(path)
            files.append(str(path))

    shown = request.record_episodes if request.record else 6 if request.picture else 0
    with counting(make_console(stderr=True), f"{len(agents)} agents", fights, request.quiet) as on_progress:
        result = cross_table(
            agents,
            task,
            cfg,
            request.episodes,
            request.seed,
            num_threads=request.threads,
            deterministic=request.deterministic,
            highlights=shown,
            on_match=keep if shown else None,
            on_progress=on_progress,
        )
    result |= {"seed": request.seed, "world": env_label(task, task.match.match_config(cfg, 1))}
    result |= {"files": files} if files else {}
    result |= {"losses": losses} if request.record else {}
    result |= {"changed": changed} if changed else {}
    if not request.quiet:
        make_console().print(*match_table(result), *behaviour_tables(result, task))
        if few := same_fights(result):
            say(make_console(stderr=True), few)
    return result


def load_policies(request: EvalRequest) -> list[LoadedPolicy]:
    """The policies asked for, all of one task."""
    task = find_task(request.task) if request.task else task_of(request.policies)
    loaded = [load_policy(name, task) for name in request.policies]
    if request.foreign:
        loaded.append(load_interop(request.foreign, task or find_task("navigation")))
    if not loaded:
        chosen = task or find_task("navigation")
        known = ", ".join([*chosen.policy.shipped(), *chosen.pilots()])
        raise ConfigError(f"Name a policy to fly: a run's folder, a policy file, or one of {known}.")
    others = [policy.name for policy in loaded if policy.task.reference != loaded[0].task.reference]
    if others:
        raise ConfigError(f"{loaded[0].name} and {others[0]} belong to different tasks: compare them in two calls.")
    return [add_shield(policy, request.shield) for policy in loaded] if request.shield else loaded


def task_of(names: Sequence[str]) -> Task | None:
    """The task of the first policy among them that is a file, else of the first pilot: others beside it are of the same."""
    navigation = find_task("navigation")
    files = [name for name in names if make_pilot(navigation, name) is None and find_policy_file(name) is not None]
    if files:
        return load_policy(files[0]).task
    tasks = [navigation, *(find_task(name) for name in task_names())]
    return next((task for name in names for task in tasks if make_pilot(task, name) is not None), None)


def home_of(policies: Sequence[LoadedPolicy]) -> TrainedEnv | None:
    """Where those fly that are at home anywhere: with the first one that is not."""
    return next((policy.env for policy in policies if policy.env is not None), None)


def row_of(
    policy: LoadedPolicy, flight: EvalEnv, result: Evaluation, request: EvalRequest, label: str
) -> dict[str, Any]:
    """The figures of one evaluation, JSON-able."""
    facts = {**policy.task.metrics.env_facts(flight.cfg), "seed": request.seed}
    facts |= {"world": env_label(policy.task, flight.cfg), "headline": result.primary_metric}
    changed = {f"env.{key}": {"trained": old, "flown": new} for key, (old, new) in flight.changed.items()}
    return {"policy": label, **result.as_dict(), **facts, **({"changed": changed} if changed else {})}


def fly_with_progress(policy: LoadedPolicy, cfg: Any, request: EvalRequest, console: Console, name: str) -> Evaluation:
    label = f"{name} at {env_label(policy.task, cfg)}"
    with counting(console, label, request.episodes, request.quiet) as on_progress:
        return evaluate(
            policy.agent,
            policy.task,
            cfg,
            request.episodes,
            request.seed,
            num_threads=request.threads,
            deterministic=request.deterministic,
            record=RECORDED if request.picture else 0,
            highlights=request.record_episodes if request.record else 0,
            on_progress=on_progress,
        )


def record(
    path: Path, policy: LoadedPolicy, flight: EvalEnv, result: Evaluation, request: EvalRequest, label: str
) -> dict[str, Any]:
    """Leave a recording of the most interesting episodes; what a row says about it."""
    facts = {"policy": label, "world": env_label(policy.task, flight.cfg), "seed": request.seed}
    facts["settings"] = json.loads(json.dumps(flat_settings(flight.cfg), default=str))
    done = save_recording(path, policy.task, result.highlights, result.decision_s, facts)
    return {"recording": str(path), "recorded": done["episodes"], "recording_bytes": done["file_bytes"]}


def save_picture(path: Path, task: Task, result: Evaluation, name: str, world: str) -> None:
    """Write a PNG of recorded episodes."""
    title = f"{name}, {world}: {task.primary_metric} {result.score:.3f} of {result.episodes} episodes"
    path.parent.mkdir(parents=True, exist_ok=True)
    task.view.draw(result.tracks, title).savefig(path)


def numbered(path: Path, number: int, total: int) -> Path:
    return path if total == 1 else path.with_stem(f"{path.stem}_{number}")


def table(rows: list[dict[str, Any]], task: Task) -> Table:
    """The figures as a table that fits 80 columns."""
    view = Table(
        title=f"{rows[0]['episodes']} episodes each in the held-out world, seed {rows[0]['seed']}",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    view.add_column("policy", overflow="fold", max_width=20)
    labels = outcome_labels(rows[0], task)
    others = [name for name in labels if name != task.primary_metric]
    for heading in ("world", task.primary_metric, "95 %", *(labels[name] for name in others)):
        view.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        low, high = row[f"{task.primary_metric}_ci95"]
        if task.primary_metric == "return":
            score, interval = f"{row['mean_return']:.1f}", f"{low:.1f} to {high:.1f}"
        else:
            score, interval = short(row[task.primary_metric]), f"{short(low)}-{short(high)}"
        view.add_row(row["policy"], row["world"], score, interval, *(short(row[name]) for name in others))
    return view


def details(rows: list[dict[str, Any]], task: Task) -> list[Table]:
    """The headline by class of episode, and the figures of the task's gauge; a table for each kind of world."""
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(tuple(classes_of([row], task)), []).append(row)
    views = [details_of(group, classes, task) for classes, group in kinds.items()]
    return [view for view in views if len(view.columns) > 1]


def details_of(rows: list[dict[str, Any]], classes: Sequence[str], task: Task) -> Table:
    """The same of worlds with the same classes, 80 columns wide: names fold, figures do not."""
    figures = [name for name in task.metrics.columns if any(name in row for row in rows)]
    view = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    view.add_column("policy, world", overflow="fold", max_width=22)
    for heading in (*classes, *(task.metrics.columns[name] for name in figures)):
        view.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = [class_score(row, name, task) for name in classes]
        values = [row.get(name) for name in figures]
        cells += ["" if value is None else f"{value:.{1 if value >= 10 else 2}f}" for value in values]
        view.add_row(f"{row['policy']}\n{row['world']}", *cells)
    return view


def classes_of(rows: Sequence[dict[str, Any]], task: Task) -> list[str]:
    """Classes of episodes that any row tells apart, the hardest first."""
    return [name for name in task.metrics.classes if any(name in row.get("by_class", {}) for row in rows)]


def class_score(row: dict[str, Any], name: str, task: Task) -> str:
    """The headline of one class in a row."""
    found = row.get("by_class", {}).get(name)
    if found is None:
        return ""
    return f"{found['return']:.1f}" if task.primary_metric == "return" else short(found[task.primary_metric])


def outcome_labels(row: dict[str, Any], task: Task) -> dict[str, str]:
    """Headings of the outcomes in a row."""
    known = task.metrics.labels or {name: name.replace("_", " ") for name in ("terminated", "truncated")}
    return {name: label for name, label in known.items() if name in row}


def short(rate: float) -> str:
    return f"{rate:.3f}".removeprefix("0")
