"""`--help-config`: list every setting with the value it would have, its meaning, its limits and the value's origin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fledge.agents.base import BaseAgent
from fledge.core.config_help import explain_settings
from fledge.core.overrides import value_given
from fledge.evaluation.env_config import eval_env
from fledge.learn.registry import find_learner
from fledge.tasks.policy_loader import LoadedPolicy, load_policy
from fledge.tasks.registry import find_task
from fledge.training.config import make_config, read_run_config


def explain_training(
    tasks: Sequence[str], preset: str | None, overrides: Sequence[str], resume: Path | None = None
) -> Iterator[str]:
    """Yield the lines of `fledge train --help-config`: every setting of the training that these arguments describe."""
    task = find_task(tasks[0]) if tasks else None
    if resume is not None:
        task, saved = read_run_config(resume, [], task, named=overrides)
        layers = [(f"run {resume}", saved), ("given here", read_run_config(resume, overrides, task)[1])]
    else:
        task = task or find_task("navigation")
        algo = value_given(overrides, "algo", task.presets.aliases)
        form = find_learner(algo).policy_form if algo else "ppo"
        chosen = preset if preset is not None else task.presets.default(form)
        origin = f"preset {chosen}" if chosen else f"task {task.name}"
        below = [f"algo={algo}"] if algo else []
        layers = [(origin, make_config(task, preset, below)), ("given here", make_config(task, preset, overrides))]
    yield from explain_settings([("", type(layers[-1][1])()), *layers])


def explain_world(
    policies: Sequence[str], task_name: str | None, env_preset: str | None, overrides: Sequence[str]
) -> Iterator[str]:
    """Yield the lines of `fledge eval --help-config`: every setting of the env in which the policy would be evaluated."""
    task = find_task(task_name) if task_name else None
    if policies:
        policy = load_policy(policies[0], task)
    else:
        policy = LoadedPolicy("", BaseAgent(), task or find_task("navigation"), None)
    layers = [("", policy.task.config())]
    if policies:
        layers.append((f"env of {policy.name}", eval_env(policy, None, ()).cfg))
    if env_preset or not policies:
        layers.append((f"preset {env_preset or 'default'}", eval_env(policy, env_preset, ()).cfg))
    layers.append(("given here", eval_env(policy, env_preset, overrides).cfg))
    yield from explain_settings(layers, "env.")
