"""Policies by name: the one place that turns what a user typed into an agent.

fledge-nav                shipped with a task                 runs/nav          a run's folder: its newest checkpoint
straight, crank(shot=1)   a scripted policy of the task       policy.fledge     a policy file
runs/duel#3               the third past self of a league     navrl.pt          another project's file
fledge-nav+planner        any of them behind a shield
"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fledge.agents.base import BaseAgent
from fledge.agents.policy_file import is_past_self, load_weights, policy_entries, read_policy
from fledge.core.errors import ConfigError
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.envs.base import TensorEnv
from fledge.tasks.base import Task
from fledge.tasks.loaded_policy import LoadedPolicy as LoadedPolicy
from fledge.tasks.policy_factory import TrainedEnv
from fledge.tasks.registry import find_named_task, find_task, is_code, task_names

EXPORTED = (".onnx", ".ts", ".npz")  # what `fledge export` writes for other programs
PILOT = re.compile(r"([\w.-]+)\s*(?:\((.*)\))?", re.DOTALL)


def find_policy_file(name: str) -> Path | None:
    """Return the file of a shipped policy, or the path itself (or RUN#3) if it exists."""
    for task_name in task_names():
        if name in (shipped := find_named_task(task_name).policy.shipped()):
            return shipped[name]
    return Path(name) if Path(name).exists() or is_past_self(Path(name)) else None


def load_policy(
    name: str | os.PathLike[str] | LoadedPolicy, task: str | Task | type[Task] | None = None
) -> LoadedPolicy:
    """Load a policy by name or path.

    Example:
        >>> policy = fledge.load_policy("fledge-nav")
        >>> action = policy.act({"state": state, "lidar": lidar, ...})

    Args:
        name: A shipped policy (fledge-nav), a run's folder (its newest checkpoint), a policy file, a scripted policy
            (straight, or crank(shot=0.8)), a past self of a league (runs/duel#3), another project's .pt file, or any of
            them behind a shield (fledge-nav+planner).
        task: Task of a scripted policy or .pt file (by default navigation), and of a policy whose task is code.

    Raises:
        ConfigError: There is no such policy, or it belongs to another task.
    """
    if isinstance(name, LoadedPolicy):
        return name
    name, task = os.fspath(name), None if task is None else find_task(task)
    chosen = task or find_task("navigation")
    bare, plus, shield = name.rpartition("+")
    if plus and shield in chosen.policy.shields and not Path(name).exists():
        return add_shield(load_policy(bare, task), shield)
    if (pilot := make_pilot(chosen, name)) is not None:
        return LoadedPolicy(name, pilot, chosen, chosen.policy.default_env_config(pilot))
    path = find_policy_file(name)
    if path is None:
        known = ", ".join([*chosen.pilots(), *chosen.policy.shipped()])
        raise ConfigError(
            f"There is no policy {name!r}: give a run's folder, a .fledge or .pt file"
            + (f", or one of {known}." if known else ".")
        )
    if path.suffix in EXPORTED:
        raise ConfigError(f"{name} is an exported policy, which cannot be flown here: give the run or a .fledge file.")
    if path.suffix == ".pt":
        return load_interop(name, chosen)
    return policy_from_state(read_policy(path), name, task)


def find_agent(task: Task, name: str) -> BaseAgent | None:
    """Return the agent that a name means in a task, for example an opponent; None if there is none."""
    if (pilot := make_pilot(task, name)) is not None:
        return pilot
    path = task.policy.shipped().get(name, Path(name))
    if path.suffix != ".fledge" and not path.is_dir() and not is_past_self(path):
        return None
    entries = read_policy(path)
    if entries["task"] != task.reference:
        raise ConfigError(f"{name} belongs to the task {entries['task']}, not to {task.reference}.")
    return load_weights(task.policy.build(entries["policy"]), entries["model"], name).eval()


def load_interop(name: str, task: Task) -> LoadedPolicy:
    """Load a policy from another project's file, whatever the file is called."""
    agent = task.policy.load_interop(Path(name))
    return LoadedPolicy(name, agent, task, task.policy.default_env_config(agent))


def policy_from_state(state: dict[str, Any], name: str, task: Task | None = None) -> LoadedPolicy:
    """Build the policy in a saved state, with its weights, task and env."""
    entries = policy_entries(state, name)
    if task is None:
        task = find_named_task(entries["task"], asked_by=name)
    elif not may_be(entries["task"], task):
        raise ConfigError(f"{name} belongs to the task {entries['task']}, not to {task.reference}.")
    agent = load_weights(task.policy.build(entries["policy"]), entries["model"], name).eval()
    saved = entries.get("world")
    env = None if saved is None else TrainedEnv(dict(saved["env"]), saved["decision_s"])
    return LoadedPolicy(name, agent, task, env)


def may_be(reference: str, task: Task) -> bool:
    """Return whether a saved reference may mean this task: the same one, or code that may have moved."""
    return reference == task.reference or (is_code(reference) and is_code(task.reference))


def add_shield(policy: LoadedPolicy, shield: str) -> LoadedPolicy:
    """Return the policy behind one of its task's shields."""
    shields = policy.task.policy.shields
    if shield not in shields:
        known = f"choose one of {', '.join(shields)}" if shields else "leave out --shield"
        raise ConfigError(f"Task {policy.task.name!r} has no shield {shield!r}: {known}.")
    return dataclasses.replace(policy, name=f"{policy.name}+{shield}", agent=shields[shield](policy.agent))


# ---- scripted policies -----------------------------------------------------------------------------------------------


def make_pilot(task: Task, name: str) -> BaseAgent | None:
    """Return the scripted policy that a name means, which may have parameters: `crank(shot=0.8)`; None if there is none.

    Raises:
        ConfigError: if a parameter is not known, or its value does not fit.
    """
    found, pilots = PILOT.fullmatch(name.strip()), task.pilots()
    kind = task.policy.pilot_aliases.get(found[1], found[1]) if found else ""
    if found is None or kind not in pilots:
        return None
    options = read_parameters(kind, found[2] or "")
    try:
        return pilots[kind](**options)
    except TypeError as error:
        if not options:
            raise
        raise ConfigError(f"{kind} has no parameter {' or '.join(options)}: {error}.") from None


def read_parameters(name: str, text: str) -> dict[str, Any]:
    """Return the parameters that stand in a scripted policy's brackets: numbers, true or false."""
    options: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        try:
            number = ast.literal_eval(value.capitalize() if value in ("true", "false") else value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            number = None
        if not sign or not key.isidentifier() or not isinstance(number, bool | int | float):
            raise ConfigError(f"{part!r} is not a parameter of {name}: write key=number, key=true or key=false.")
        if key in options:
            raise ConfigError(f"{key} of {name} is given twice: give it once.")
        options[key] = number
    return options


# ---- does it fit? ----------------------------------------------------------------------------------------------------


def check_fit(agent: BaseAgent, env: TensorEnv) -> None:
    """Raise ConfigError unless an agent can act in an env; then let the agent prepare for it."""
    name = agent.get_name()
    missing = [key for key in agent.observes if key not in env.observation_spec]
    if missing:
        raise ConfigError(f"{name} reads {', '.join(missing)}, which this env does not observe.")
    reads: Mapping[str, TensorSpec] = getattr(agent, "reads", {})
    for key, spec in reads.items():
        seen = env.observation_spec[key]
        if (seen.shape, seen.num_values) != (spec.shape, spec.num_values):
            raise ConfigError(
                f"{name} reads {key} of shape {spec.shape}, but this env observes {seen.shape}: it was trained in another env."
            )
    acts: ActionSpec | None = getattr(agent, "acts", None)
    if acts is not None and shapes_of(acts) != shapes_of(env.action_spec):
        raise ConfigError(
            f"{name} acts with {shapes_of(acts)}, but this env takes {shapes_of(env.action_spec)}: it was trained in "
            "another env."
        )
    agent.bind(env)


def shapes_of(spec: ActionSpec) -> dict[str, tuple[Any, ...]]:
    """Return shape and number of values of each action entry: what must agree between a policy and an env."""
    parts = {"action": spec} if isinstance(spec, TensorSpec) else dict(spec)
    return {name: (part.shape, part.num_values) for name, part in parts.items()}
