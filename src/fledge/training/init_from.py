"""`init_from`: start a run from the weights of another policy, with the same network."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fledge.agents.policy_file import build_policy
from fledge.core.config_help import written
from fledge.core.errors import ConfigError, FledgeError
from fledge.core.overrides import from_plain, nested
from fledge.core.paths import path_hint
from fledge.core.settings import flat_settings
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import read_entries
from fledge.training.config import TrainConfig, make_config


def read_initial_policy(name: str, task: Task) -> dict[str, Any]:
    """Return the weights, description and env settings of the policy that `init_from` names, as in a policy file.

    Args:
        name: A run's folder, a policy file, the name of a shipped policy, or a file of another project's weights.
    """
    entries = read_entries(name, task)
    if entries is None:
        raise ConfigError(
            f"init_from={name} does not exist: pass a run's folder, a policy file, or the name of a shipped policy."
            f"{path_hint(Path(name))}"
        )
    return entries


def take_network(task: Task, cfg: TrainConfig, overrides: Sequence[str] = ()) -> list[str]:
    """Set `policy.*` to the network of the policy that `init_from` names; return the changed settings as key=value.

    Raises:
        ConfigError: The user's own `overrides` contradict that network, or the algorithm needs another one in this env.
    """
    entries = read_initial_policy(cfg.init_from, task)
    found, asked, taken = entries["policy"], {word.partition("=")[0].strip() for word in overrides}, []
    for key, value in network_settings(cfg.policy, found).items():
        if value == getattr(cfg.policy, key):
            continue
        shown = value.name if isinstance(value, enum.Enum) else value
        if f"policy.{key}" in asked:
            given = getattr(cfg.policy, key)
            raise ConfigError(
                f"policy.{key} is {given.name if isinstance(given, enum.Enum) else given}, but the policy of "
                f"init_from={cfg.init_from} has {shown}: leave policy.{key} out to take over its value."
            )
        setattr(cfg.policy, key, value)
        taken.append(f"policy.{key}={shown}")
    size = getattr(cfg.policy, "gru_size", 0)
    if size and "gru_size" not in found:
        raise ConfigError(
            f"policy.gru_size is {size}, but the policy of init_from={cfg.init_from} has no memory: set policy.gru_size=0, "
            "or leave init_from out."
        )
    try:
        wanted = task.policy.describe(task, cfg.learner.policy_form, cfg.env, cfg.policy)
    except ConfigError as error:
        raise ConfigError(f"init_from={cfg.init_from} does not fit: {error} {how_to_fit(task, found)}") from error
    if odd := [key for key in wanted if key in found and found[key] != wanted[key]]:
        parts = ", ".join(f"{key} {found[key]} (this run needs {wanted[key]})" for key in odd)
        raise ConfigError(f"init_from={cfg.init_from} does not fit: its network has {parts}. {how_to_fit(task, found)}")
    build_policy(task.policy.build, {**entries, "policy": wanted}, cfg.init_from)
    return taken


def other_env(task: Task, cfg: TrainConfig) -> str:
    """Return a sentence on how the run's env differs from the env in which the policy of `init_from` was trained.

    Return "" if there is no difference. Only settings that a policy adapts to are compared: sensors, decision rate,
    start positions and kind of reward.
    """
    entries = read_initial_policy(cfg.init_from, task)
    if not isinstance(saved := (entries.get("world") or {}).get("env"), Mapping):
        return ""
    now, before = flat_settings(cfg.env), flat_settings(from_plain(task.config, nested(saved)))
    told = (*task.policy.own_settings, "reward.kind", "starts")
    odd = [
        key for key in now if key.startswith(told) and now[key] != before.get(key) and not key.startswith("planner.")
    ]
    parts = ", ".join(f"env.{key}={written(before[key])} (this run: {written(now[key])})" for key in odd)
    return f"{cfg.init_from} was trained with {parts}. {how_to_fit(task, entries['policy'])}" if parts else ""


def how_to_fit(task: Task, description: Mapping[str, Any]) -> str:
    """Return a sentence that names a training preset, or else the settings, with which a run can start from a policy."""
    for taken in (False, True):  # a preset with this very network, else one that can take it over
        for name in task.presets.names("train"):
            cfg = make_config(task, name)
            for key, value in network_settings(cfg.policy, description).items() if taken else ():
                setattr(cfg.policy, key, value)
            with contextlib.suppress(FledgeError):
                if task.policy.describe(task, cfg.learner.policy_form, cfg.env, cfg.policy) == description:
                    return f"To continue from it, use preset {name}."
    return "To continue from it, use the algorithm and the env settings that it was trained with."


def network_settings(policy: Any, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return those fields of `policy`, the config section, that a policy's description contains, with its values."""
    told = {field.name: description[field.name] for field in dataclasses.fields(policy) if field.name in description}
    for name, value in list(told.items()):
        kind = type(getattr(policy, name))
        if issubclass(kind, enum.Enum):
            del told[name]
            told |= (
                {name: kind(value)} if value in [member.value for member in kind] else {}
            )  # others: an algorithm's own
    return told
