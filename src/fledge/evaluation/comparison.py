"""Evaluate several policies in several env configs, and collect the results in one table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError
from fledge.core.machine import pick_device
from fledge.core.paths import check_output
from fledge.core.settings import flat_settings
from fledge.core.terminal import counting, make_console, say
from fledge.evaluation.env_config import EvalEnv, eval_env, tell_differences, tell_own_settings
from fledge.evaluation.episodes import TEST_SEED, PolicyResult, evaluate, on_device
from fledge.evaluation.recordings import labelled_paths, save_recording
from fledge.evaluation.results import Evaluation
from fledge.tasks.base import Task
from fledge.tasks.metrics import env_label
from fledge.tasks.policy_factory import TrainedEnv
from fledge.tasks.policy_loader import LoadedPolicy, add_shield, find_policy_file, load_interop, load_policy, make_pilot
from fledge.tasks.registry import find_task, registered_tasks

RECORDED = 256  # number of envs whose first episodes a picture shows


@dataclass
class EvalRequest:
    """Arguments of an evaluation."""

    policies: Any  # names or paths, loaded policies, runs, or agents: a list, or a single one
    overrides: list[str] = field(default_factory=list)
    episodes: int = 1024
    seed: int = TEST_SEED
    task: Any = None  # a name, a task, or its class
    env_preset: str | None = None
    vary: tuple[str, Sequence[Any]] | None = None  # a setting, and the values to try one after the other
    deterministic: bool = True
    picture: Any = None  # a path
    keep_episodes: bool = False  # keep episodes for a picture that is drawn later
    record: Any = None  # a path
    record_episodes: int = 16
    threads: int | None = None
    device: str = "cpu"  # or cuda, cuda:N, auto
    quiet: bool = False
    foreign: Any = None  # policy file of another project
    shield: str | None = None  # name of the safety filter between each policy and its env

    def __post_init__(self) -> None:
        """Convert the arguments: one policy to a list, file names to paths, and the values of `vary` to text."""
        self.policies = list(self.policies) if isinstance(self.policies, list | tuple) else [self.policies]
        self.vary = None if self.vary is None else (self.vary[0], [str(value) for value in self.vary[1]])
        self.picture, self.record = (path and check_output(path) for path in (self.picture, self.record))
        self.foreign = self.foreign and os.fspath(self.foreign)

    @property
    def place(self) -> str:
        """Device that envs and agents are on: "cpu" or "cuda:N"; raise ConfigError if it does not exist."""
        return pick_device(self.device, torch.cuda.device_count())

    def env_overrides(self) -> list[list[str]]:
        """Return the overrides of each env config to fly in: one list for each value of `vary`.

        If `vary` is None, there is a single list.
        """
        varied = [[f"{self.vary[0]}={value}"] for value in self.vary[1]] if self.vary else [[]]
        return [[*self.overrides, *words] for words in varied]


def run_evaluations(request: EvalRequest) -> Evaluation:
    """Fly every policy in every env config and return the results.

    If no env preset is given, several policies fly in the training env of the first policy that has one.
    """
    policies = load_policies(request)
    if policies[0].task.match.sides == 2:
        from fledge.evaluation.match_comparison import run_matches  # imported here, as it imports this module

        return run_matches(policies, request)
    rows: list[dict[str, Any]] = []
    results: list[PolicyResult] = []
    console = make_console(stderr=True)
    flights = plan_flights(policies, request)
    for line in [] if request.quiet else tell_flights(policies, flights, request):
        say(console, line)
    values = request.vary[1] if request.vary else [""]
    files = [f"{Path(policy.name).name}{value and f'_{value}'}" for policy in policies for value in values]
    for policy, own in zip(policies, flights, strict=True):
        label = Path(policy.name).name
        for flight in own:
            result = fly_with_progress(policy, flight.cfg, request, console, label)
            results.append(result)
            rows.append(row_of(policy, flight, result, request, label))
            if request.record:
                path = labelled_paths(request.record, files)[len(rows) - 1]
                rows[-1] |= record(path, policy, flight, result, request, label)
                say(console, f"recording: {path}, {rows[-1]['recorded']} episodes")
            if request.picture and result.trajectories:
                path = labelled_paths(request.picture, files)[len(rows) - 1]
                save_picture(path, policy.task, result, label, env_label(policy.task, flight.cfg))
                say(console, f"picture: {path}")
    return Evaluation(rows, policies[0].task, results)


def plan_flights(policies: Sequence[LoadedPolicy], request: EvalRequest) -> list[list[EvalEnv]]:
    """Return for each policy the list of env configs that it flies in."""
    home = home_of(policies)
    shared = home if len(policies) > 1 and request.env_preset is None else None
    return [
        [eval_env(policy, request.env_preset, words, home, shared) for words in request.env_overrides()]
        for policy in policies
    ]


def tell_flights(
    policies: Sequence[LoadedPolicy], flights: Sequence[Sequence[EvalEnv]], request: EvalRequest
) -> Iterator[str]:
    """Yield messages for the console: which env all policies fly in, and which settings are different for some policies.

    For each policy: the settings that differ from its training env, and those that differ from the first policy's env.
    """
    names = [Path(policy.name).name for policy in policies]
    if len(policies) > 1 and request.env_preset is None:
        owner = next((name for name, policy in zip(names, policies, strict=True) if policy.env is not None), None)
        whose = f"the env of {owner}" if owner else "the task's default env"
        yield f"All fly in {whose}: {env_label(policies[0].task, flights[0][0].cfg)}."
    for name, own in zip(names, flights, strict=True):
        for flight in own:
            if flight.changed:
                yield tell_differences(name, flight.changed)
        if text := tell_own_settings(name, own[0].cfg, flights[0][0].cfg):
            yield text


def load_policies(request: EvalRequest) -> list[LoadedPolicy]:
    """Load the requested policies; raise ConfigError if there is none, or if they belong to different tasks."""
    names = [str(each) for each in request.policies if isinstance(each, str | Path)]
    ready = [each for each in map(loaded_policy, request.policies) if each is not None]
    task = find_task(request.task) if request.task is not None else ready[0].task if ready else task_of(names)
    loaded = [loaded_policy(each) or as_policy(each, task) for each in request.policies]
    if request.foreign:
        loaded.append(load_interop(request.foreign, task or find_task("navigation")))
    if not loaded:
        chosen = task or find_task("navigation")
        known = ", ".join([*chosen.policy.shipped(), *chosen.pilots()])
        raise ConfigError(f"Name a policy to fly: a run's folder, a policy file, or one of {known}.")
    if others := [policy.name for policy in loaded if policy.task.reference != loaded[0].task.reference]:
        raise ConfigError(
            f"{loaded[0].name} and {others[0]} belong to different tasks: pass only policies of one task."
        )
    return [add_shield(policy, request.shield) for policy in loaded] if request.shield else loaded


def loaded_policy(given: Any) -> LoadedPolicy | None:
    """Return the policy of a Run, or `given` itself if it is a LoadedPolicy; None for a name or an agent."""
    found = given if isinstance(given, LoadedPolicy) else getattr(given, "policy", None)
    return found if isinstance(found, LoadedPolicy) else None


def as_policy(given: Any, task: Task | None) -> LoadedPolicy:
    """Load a policy by name or path, or wrap an agent as a policy."""
    if isinstance(given, BaseAgent):
        return LoadedPolicy(given.get_name(), given, task or find_task("navigation"), None)
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(
            f"{given!r} is not a policy: give a name, a run's folder, a policy file, a Run, a LoadedPolicy or an agent."
        )
    return load_policy(given, task)


def task_of(names: Sequence[str]) -> Task | None:
    """Return the task of the first name that is a policy file, else of the first scripted policy; None if neither exists."""
    navigation = find_task("navigation")
    files = [name for name in names if make_pilot(navigation, name) is None and find_policy_file(name) is not None]
    if files:
        return load_policy(files[0]).task
    tasks = [navigation, *registered_tasks()]
    return next((task for name in names for task in tasks if make_pilot(task, name) is not None), None)


def home_of(policies: Sequence[LoadedPolicy]) -> TrainedEnv | None:
    """Return the training env of the first policy that has one; policies without a training env fly in it too."""
    return next((policy.env for policy in policies if policy.env is not None), None)


def row_of(
    policy: LoadedPolicy, flight: EvalEnv, result: PolicyResult, request: EvalRequest, label: str
) -> dict[str, Any]:
    """Return the results of one policy in one env as a dict of JSON-able values; `label` is the policy's name in tables."""
    facts = {**policy.task.metrics.env_facts(flight.cfg), "seed": request.seed}
    facts |= {"world": env_label(policy.task, flight.cfg), "headline": result.primary_metric}
    facts |= {"about": policy.agent.about} if policy.agent.about else {}
    return {"policy": label, **result.as_dict(), **facts, **({"changed": flight.changed} if flight.changed else {})}


def fly_with_progress(
    policy: LoadedPolicy, cfg: Any, request: EvalRequest, console: Console, name: str
) -> PolicyResult:
    label = f"{name} at {env_label(policy.task, cfg)}"
    with (
        counting(console, label, request.episodes, request.quiet) as on_progress,
        on_device([policy.agent], request.place),
    ):
        return evaluate(
            policy.agent,
            policy.task,
            cfg,
            request.episodes,
            request.seed,
            device=request.place,
            num_threads=request.threads,
            deterministic=request.deterministic,
            record=RECORDED if request.picture or request.keep_episodes else 0,
            highlights=request.record_episodes if request.record else 0,
            on_progress=on_progress,
        )


def record(
    path: Path, policy: LoadedPolicy, flight: EvalEnv, result: PolicyResult, request: EvalRequest, label: str
) -> dict[str, Any]:
    """Write a recording of the most interesting episodes.

    Return the file's path, its number of episodes and its size in bytes, under the keys that they have in a row of results.
    """
    facts = {"policy": label, "world": env_label(policy.task, flight.cfg), "seed": request.seed}
    facts["settings"] = json.loads(json.dumps(flat_settings(flight.cfg), default=str))
    done = save_recording(path, policy.task, result.highlights, result.decision_s, facts)
    return {"recording": str(path), "recorded": done["episodes"], "recording_bytes": done["file_bytes"]}


def save_picture(path: Path, task: Task, result: PolicyResult, name: str, world: str) -> None:
    """Write a picture of recorded episodes; the extension of `path` determines the format."""
    title = f"{name}, {world}: {task.primary_metric} {result.score:.3f} of {result.episodes} episodes"
    path.parent.mkdir(parents=True, exist_ok=True)
    task.view.draw(result.trajectories, title).savefig(path)
