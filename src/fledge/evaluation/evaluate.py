"""`fledge.evaluate`: evaluate policies on held-out episodes, or in an env that the caller made."""

from __future__ import annotations

import dataclasses
import inspect
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError
from fledge.core.terminal import counting, make_console, say
from fledge.envs.base import TensorEnv
from fledge.evaluation import episodes as held_out
from fledge.evaluation.comparison import EvalRequest, load_policies, loaded_policy, run_evaluations
from fledge.evaluation.curve import run_curve
from fledge.evaluation.episodes import TEST_SEED, PolicyResult, fly_wave
from fledge.evaluation.results import Evaluation
from fledge.tasks.base import Task
from fledge.tasks.envs import env_overrides
from fledge.tasks.metrics import EpisodeMetrics, TaskMetrics, env_label
from fledge.tasks.policy_loader import LoadedPolicy, check_fit
from fledge.tasks.registry import find_task

EPISODES = 1024


@overload
def evaluate(
    policies: Any,
    env: str | TensorEnv | None = None,
    episodes: int | None = None,
    seed: int = TEST_SEED,
    *,
    task: str | Task | type[Task] | None = None,
    deterministic: bool = True,
    shield: str | None = None,
    progress: bool | None = None,
    vary: tuple[str, Sequence[Any]] | None = None,
    checkpoints: bool = False,
    picture: str | os.PathLike[str] | bool = False,
    record: str | os.PathLike[str] | None = None,
    record_episodes: int = 16,
    threads: int | None = None,
    device: str = "cpu",
    interop: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Evaluation: ...
@overload
def evaluate(env: TensorEnv, policy: Any, episodes: int | None = None, *, deterministic: bool = True) -> Evaluation: ...
@overload
def evaluate(
    agent: BaseAgent, task: Task, cfg: Any, episodes: int, seed: int = TEST_SEED, **options: Any
) -> Evaluation: ...
def evaluate(*args: Any, **options: Any) -> Evaluation:
    """Evaluate policies on held-out episodes, which no training uses, and return the results.

    Every policy flies the same episodes. Several policies fly in one env, with its map, obstacles and starts: the
    training env of the first policy that has one. Each policy keeps the sensors and the decision rate that it needs. In a
    two-player task, every policy fights every other policy, and the result is a cross-table.

    Example:
        >>> result = fledge.evaluate(["fledge-nav", "straight"], episodes=256, moving_obstacles=40)
        >>> result.table()["success"]
        >>> result.plot()

    Two older forms work as well: `evaluate(env, policy)` with a TensorEnv first, and `evaluate(agent, task, cfg, episodes)`.

    Args:
        policies: One policy or a list of them: names, paths, runs, loaded policies or agents (BaseAgent).
        env: An env preset of the task (crossing, static, ...), or a TensorEnv that you made: its episodes are not
            held out, and its state is restored afterwards. By default the env that the first policy was trained in.
        episodes: Episodes per policy. By default 1024; in a TensorEnv, one for each of its parallel envs.
        seed: Seed of the episodes; the same seed gives every policy the same episodes.
        task: Task of scripted policies and agents, and of policies whose task is a class of your own.
        deterministic: Take the mean action instead of sampling.
        shield: Safety filter between policy and env: orca or planner (navigation).
        progress: False prints nothing. By default progress is shown in terminals and notebooks.
        vary: A setting and the values to try one after the other: ("env.moving_obstacles", [0, 40, 80]).
        checkpoints: Evaluate every checkpoint that a run kept, instead of the newest. Choose a checkpoint with
            one seed, and report its results with another.
        picture: True keeps episodes for `result.flights()`; a path also writes a picture of them.
        record: Write a recording (.frec) of the most interesting episodes.
        record_episodes: Number of episodes to record.
        threads: CPU threads of the envs. By default all cores.
        device: Where envs and policies run: "cpu", "cuda", "cuda:N", or "auto" (a GPU if there is one).
        interop: Another project's policy file to evaluate as well, for example NavRL's checkpoint.
        settings: Settings of the env, as `fledge.make_env` takes them: moving_obstacles=40.

    Returns:
        The results: `table()`, `plot()`, `flights()`, `to_dict()`.

    Raises:
        ConfigError: A policy, preset or setting does not exist, or does not fit.
    """
    if len(args) > 2 and not isinstance(args[2], int | None):  # (agent, task, cfg, episodes)
        return _evaluate_agent(*args, **options)
    if args and isinstance(args[0], TensorEnv):  # (env, policy)
        env, *rest = args
        policies = rest.pop(0) if rest else options.pop("policy", options.pop("policies", None))
        return _evaluate_policies(policies, env, *rest, **options)
    if "policy" in options and not args:
        options["policies"] = options.pop("policy")
    return _evaluate_policies(*args, **options)


def _evaluate_policies(
    policies: Any,
    env: str | TensorEnv | None = None,
    episodes: int | None = None,
    seed: int = TEST_SEED,
    *,
    task: str | Task | type[Task] | None = None,
    deterministic: bool = True,
    shield: str | None = None,
    progress: bool | None = None,
    vary: tuple[str, Sequence[Any]] | None = None,
    checkpoints: bool = False,
    picture: str | os.PathLike[str] | bool = False,
    record: str | os.PathLike[str] | None = None,
    record_episodes: int = 16,
    threads: int | None = None,
    device: str = "cpu",
    interop: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Evaluation:
    if episodes is not None and (isinstance(episodes, bool) or not isinstance(episodes, int)):
        raise ConfigError(f"episodes={episodes!r} must be a whole number.")
    request = EvalRequest(
        policies,
        seed=seed,
        task=task,
        deterministic=deterministic,
        shield=shield,
        vary=vary,
        picture=None if isinstance(picture, bool) else picture,
        keep_episodes=bool(picture),
        record=record,
        record_episodes=record_episodes,
        threads=threads,
        device=device,
        foreign=interop,
        quiet=progress is False,
    )
    if isinstance(env, TensorEnv):
        if settings or vary or checkpoints or record:
            wrong = [*settings, *(["vary"] if vary else []), *(["checkpoints"] if checkpoints else [])]
            names = ", ".join(wrong) or "record"
            raise ConfigError(
                f"{names} cannot be used with a TensorEnv: leave it out, or pass the name of an env preset."
            )
        return _evaluate_in(env, request, episodes)
    request.episodes, request.env_preset = EPISODES if episodes is None else episodes, env
    if not checkpoints:
        request.policies, request.foreign = list(load_policies(dataclasses.replace(request, shield=None))), None
    known = find_task(task) if task is not None else getattr(request.policies[0], "task", None)
    request.overrides = env_overrides(known or find_task("navigation"), settings)
    return run_curve(request) if checkpoints else run_evaluations(request)


evaluate.__signature__ = inspect.signature(_evaluate_policies)  # type: ignore[attr-defined]


def _evaluate_agent(
    agent: BaseAgent, task: Task, cfg: Any, episodes: int, seed: int = TEST_SEED, **options: Any
) -> Evaluation:
    """Evaluate one agent in exactly this env config."""
    result = held_out.evaluate(getattr(agent, "agent", agent), task, cfg, episodes, seed, **options)
    return Evaluation([_row(agent, result, env_label(task, cfg), seed)], task, [result])


def _evaluate_in(env: TensorEnv, request: EvalRequest, episodes: int | None) -> Evaluation:
    """Evaluate policies in an env that the caller made, then restore the env's state."""
    known = [each for each in request.policies if isinstance(each, str | os.PathLike) or loaded_policy(each)]
    count = env.num_envs if episodes is None else episodes
    if count < 1:
        raise ConfigError(f"episodes is {episodes}, but an evaluation needs at least 1.")
    task = load_policies(dataclasses.replace(request, policies=known, shield=None))[0].task if known else None
    request = dataclasses.replace(request, episodes=count, task=request.task or task)
    if request.task is not None:
        request.policies = list(load_policies(request))
    rows, results = [], []
    for policy in request.policies:
        if isinstance(policy, LoadedPolicy) and policy.env is not None and not request.quiet:
            rate = policy.env.decision_s
            if rate and abs(rate - env.decision_s) > 1e-6:
                text = f"decides every {env.decision_s:g} s here (trained with {rate:g} s)"
                fix = "make the env with policy.make_env() to keep the rate."
                say(make_console(stderr=True), f"{Path(policy.name).name} {text}: {fix}")
        results.append(_fly_in(env, policy, request))
        cfg = getattr(env.unwrapped, "cfg", None)
        label = (
            env_label(request.task, cfg) if isinstance(request.task, Task) and cfg is not None else type(env).__name__
        )
        rows.append(_row(policy, results[-1], label, None))
    return Evaluation(rows, request.task if isinstance(request.task, Task) else None, results)


def _fly_in(env: TensorEnv, policy: Any, request: EvalRequest) -> PolicyResult:
    agent = policy.agent if isinstance(policy, LoadedPolicy) else policy
    if isinstance(agent, BaseAgent):
        check_fit(agent, env)
    names = set(env.outcomes.values())
    head = policy.task.primary_metric if isinstance(policy, LoadedPolicy) else "success"
    result = PolicyResult(request.episodes, head if head in names else "success" if "success" in names else "return")
    before, begun = env.state_dict(), time.perf_counter()
    name = policy.name if isinstance(policy, LoadedPolicy) else type(agent).__name__
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            counting(make_console(stderr=True), name, request.episodes, request.quiet) as on_progress,
        ):
            for first in range(0, request.episodes, env.num_envs):
                part = (result, first, request.deterministic, TaskMetrics(), EpisodeMetrics(), None, on_progress)
                fly_wave(agent, env, *part)
    finally:
        env.load_state_dict(before)
    result.wall_seconds = time.perf_counter() - begun
    return result


def _row(policy: Any, result: PolicyResult, env: str, seed: int | None) -> dict[str, Any]:
    name = Path(policy.name).name if isinstance(policy, LoadedPolicy) else type(policy).__name__
    facts = {"seed": seed, "world": env, "headline": result.primary_metric, "decision_s": result.decision_s}
    return {"policy": name, **result.as_dict(), **facts}
