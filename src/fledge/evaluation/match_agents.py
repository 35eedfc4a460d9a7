"""Choose the agents of a cross-table, their labels, and their env config."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError
from fledge.core.overrides import from_plain, nested
from fledge.core.settings import flat_settings
from fledge.envs.placement import EnvPlacement
from fledge.evaluation.env_config import Differences, eval_env, without_opponent
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import LoadedPolicy, check_fit, load_policy

if TYPE_CHECKING:
    from fledge.evaluation.comparison import EvalRequest

NOT_PHYSICS = ("num_envs", "opponent", "reward", "nan_guard", "nan_dump_dir")  # settings that do not affect a fight


def match_env(policies: Sequence[LoadedPolicy], request: EvalRequest) -> Any:
    """Return the env config of a cross-table: the training env of the first policy that has one, with overrides.

    Raises:
        ConfigError: The request varies a setting, or overrides one that has no effect in a cross-table.
    """
    task, words = policies[0].task, request.overrides
    if request.vary is not None:
        raise ConfigError(
            f"{task.name} is evaluated as a cross-table in one env config: leave out `vary` "
            "(on the command line --vary or --movers)."
        )
    home = without_opponent(next((policy for policy in policies if policy.env is not None), policies[0]))
    cfg = eval_env(home, request.env_preset, words, home.env).cfg
    asked, flown = flat_settings(cfg), flat_settings(task.match.match_config(cfg, 1))
    for word in words:
        key = word.partition("=")[0].strip()
        key = task.presets.aliases.get(key, key).partition(" ")[0].removeprefix("env.")
        if key != "num_envs" and asked.get(key) != flown.get(key):
            raise ConfigError(
                f"{word} has no effect in a cross-table, where all named policies fight each other: leave it out, and add "
                f"{asked[key]} to the policies."
            )
    return cfg


def fitting_pilots(task: Task, cfg: Any, but: str = "") -> list[LoadedPolicy]:
    """Return the task's scripted policies that can act in this env, except the one named `but`."""
    policies = [load_policy(name, task) for name in task.pilots() if name != but]
    errors = fit_errors([policy.agent for policy in policies], task, cfg)
    return [policy for policy, error in zip(policies, errors, strict=True) if error is None]


def fit_errors(agents: Sequence[BaseAgent], task: Task, cfg: Any) -> list[ConfigError | None]:
    """Return for each agent the reason why it cannot act in matches with these settings; None if it can."""
    errors: list[ConfigError | None] = []
    with contextlib.closing(task.make_env(task.match.match_config(cfg, 1), EnvPlacement(num_threads=1))) as env:
        for agent in agents:
            errors.append(None)
            try:
                check_fit(agent, env)
            except ConfigError as error:
                errors[-1] = error
    return errors


def check_agents(agents: Sequence[tuple[str, BaseAgent]], task: Task, cfg: Any) -> None:
    """Raise ConfigError unless all agents can act in matches with these settings."""
    for (name, _), error in zip(agents, fit_errors([agent for _, agent in agents], task, cfg), strict=True):
        if error is not None:
            raise ConfigError(f"{name} does not fit this env: {error}") from error


def named_agents(policies: Sequence[LoadedPolicy]) -> list[tuple[str, BaseAgent]]:
    """Return a label and the agent of each policy; labels are unique, and a policy listed twice is cloned."""
    names = [policy.name for policy in policies]
    short = [Path(name).name for name in names]
    told = [
        label if short.count(label) == names.count(name) else name for label, name in zip(short, names, strict=True)
    ]
    agents = []
    for k, (label, policy) in enumerate(zip(told, policies, strict=True)):
        before = told[:k].count(label)
        agents.append((f"{label} ({before + 1})", policy.agent.clone()) if before else (label, policy.agent))
    return agents


def trained_elsewhere(policies: Sequence[LoadedPolicy], labels: Sequence[str], cfg: Any) -> dict[str, Differences]:
    """Return, by label of the policy, the env settings that differ from the policy's training env."""
    found: dict[str, Differences] = {}
    for label, policy in zip(labels, policies, strict=True):
        if policy.env is None:
            continue
        trained = flat_settings(from_plain(policy.task.config, nested(policy.env.settings)))
        flown = flat_settings(cfg)
        other = [key for key in flown if key not in NOT_PHYSICS and flown[key] != trained[key]]
        if other:
            found[label] = {f"env.{key}": {"trained": trained[key], "flown": flown[key]} for key in other}
    return found
