"""`init_from`: start a run from the weights of another policy, with the shape of its network."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from fledge.agents.policy_file import load_weights, read_policy
from fledge.core.errors import ConfigError
from fledge.tasks.base import Task
from fledge.tasks.policy_loader import find_policy_file
from fledge.training.config import TrainConfig


def read_initial_policy(name: str) -> dict[str, Any]:
    """Read the policy that `init_from` names."""
    path = find_policy_file(name)
    if path is None:
        raise ConfigError(f"init_from is {name!r}, but there is no such run, policy file or shipped policy.")
    return read_policy(path)


def take_network(task: Task, cfg: TrainConfig, words: Sequence[str] = ()) -> list[str]:
    """Set `policy.*` to the network that `init_from` holds; return what that changed, as key=value.

    Raise ConfigError if the user's own `words` contradict it, or this algorithm needs another network in this env.
    """
    entries = read_initial_policy(cfg.init_from)
    found, asked, taken = entries["policy"], {word.partition("=")[0].strip() for word in words}, []
    for key, value in network_settings(cfg.policy, found).items():
        if value == getattr(cfg.policy, key):
            continue
        shown = value.name if isinstance(value, enum.Enum) else value
        if f"policy.{key}" in asked:
            raise ConfigError(f"init_from={cfg.init_from} has policy.{key}={shown}: leave policy.{key} out.")
        setattr(cfg.policy, key, value)
        taken.append(f"policy.{key}={shown}")
    wanted = task.policy.describe(task, cfg.learner.policy_form, cfg.env, cfg.policy)
    if odd := [key for key in wanted if key in found and found[key] != wanted[key]]:
        parts = ", ".join(f"{key} {found[key]} (this run: {wanted[key]})" for key in odd)
        raise ConfigError(
            f"init_from={cfg.init_from} does not fit: its network has {parts}. Train with the algorithm and the env that "
            "it is from."
        )
    load_weights(task.policy.build(wanted), entries["model"], cfg.init_from)
    return taken


def network_settings(policy: Any, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `policy.*` that a description holds."""
    told = {field.name: description[field.name] for field in dataclasses.fields(policy) if field.name in description}
    for name, value in list(told.items()):
        kind = type(getattr(policy, name))
        if issubclass(kind, enum.Enum):
            del told[name]
            told |= (
                {name: kind(value)} if value in [member.value for member in kind] else {}
            )  # others: an algorithm's own
    return told
