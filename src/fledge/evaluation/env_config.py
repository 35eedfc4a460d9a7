"""Build the env config that a policy is evaluated in: its training env, changed by `task.evaluation` and by overrides."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fledge.core.config_help import written
from fledge.core.errors import ConfigError
from fledge.core.overrides import build_config, changes_of, from_plain, leaves, nested
from fledge.core.settings import (
    changed_settings,
    check_settings,
    code_settings,
    flat_settings,
    refuse_code,
    rule_of,
    walk,
)
from fledge.tasks.base import Task
from fledge.tasks.policy_factory import TrainedEnv
from fledge.tasks.policy_loader import LoadedPolicy

NOT_FLOWN = ("num_envs", "reward")  # settings that do not change how an episode goes
TOLD = 6  # settings that a sentence names
Differences = dict[str, dict[str, Any]]  # env.KEY -> {"trained": value, "flown": value}


@dataclass
class EvalEnv:
    """The env config that a policy is evaluated in, and how it differs from the policy's training env."""

    cfg: Any
    changed: Differences  # settings that overrides changed


def tell_differences(label: str, differences: Differences) -> str:
    """Return a sentence about the settings in which a policy's evaluation env differs from its training env."""
    trained = {key: "none" if pair["trained"] == "" else pair["trained"] for key, pair in differences.items()}
    parts = [f"{key}={pair['flown']} (trained with {trained[key]})" for key, pair in differences.items()]
    more = f" and {len(parts) - TOLD} other settings (`--json` lists them)" if len(parts) > TOLD else ""
    return f"{label}: flown with {', '.join(parts[:TOLD])}{more}"


def tell_own_settings(label: str, cfg: Any, first: Any) -> str:
    """Return a sentence about the settings that differ between a policy's env and the first policy's; "" if none differ."""
    own, others = flat_settings(cfg), flat_settings(first)
    parts = [
        f"env.{key}={written(own[key])}" for key in own if own[key] != others[key] and not key.startswith(NOT_FLOWN)
    ]
    return f"{label} keeps its own {', '.join(parts)}" if parts else ""


def eval_env(
    policy: LoadedPolicy,
    preset: str | None = None,
    overrides: Sequence[str] = (),
    home: TrainedEnv | None = None,
    shared: TrainedEnv | None = None,
) -> EvalEnv:
    """Return the env config that a policy is evaluated in: its training env, changed by `task.evaluation` and overrides.

    Args:
        preset: Env preset of the task, whose settings override the policy's training env, except the sensors and the decision
            rate (`own_settings`), which the policy keeps.
        overrides: Settings to change, as `env.key=value`, or a preset of a group of the task, as `perception=poor`.
        home: Env for a policy without a training env, such as a scripted policy.
        shared: Env that several policies are compared in; each policy keeps its own sensors and decision rate.

    Raises:
        ConfigError: An override changes a setting that the policy's weights depend on.
    """
    task, world = policy.task, policy.env or home
    trained = from_plain(task.config, nested(world.settings)) if world is not None else default_env(task)
    flown = trained if shared is None else in_shared_env(task, trained, shared)
    cfg = task.evaluation(flown)
    if preset is not None:
        named = nested(
            {
                key: value
                for key, value in leaves(task.presets.load("env", preset))
                if world is None or not key.startswith(task.policy.own_settings)
            }
        )
        layers = [("the policy's env", changes_of(flown)), (f"preset {preset}", named)]
        cfg = task.evaluation(build_config(task.config, layers, []))
    words = [check_env_override(word, task) for word in overrides]
    below, presets = [("the policy's world", changes_of(cfg))], task.presets
    cfg = build_config(task.config, below, words, presets.aliases, presets.env_groups, "env.")
    check_settings(cfg, "env.")
    refuse_code(cfg, words, "env.")
    changed: Differences = {}
    if policy.env is not None:
        before, plain = flat_settings(trained), flat_settings(task.evaluation(trained))
        kinds = changed_settings(before, cfg, observes=policy.agent.observes)
        if bad := kinds["weights"]:
            wrong = ", ".join(f"env.{key}={flat_settings(cfg)[key]} (trained with {before[key]})" for key in bad)
            raise ConfigError(
                f"{policy.name} cannot fly with {wrong}, as its weights depend on this setting: leave it out, or train "
                "another policy."
            )
        now = flat_settings(cfg)
        asked = [key for key in now if now[key] != plain[key] and key != "num_envs"]
        pairs = {key: {"trained": before[key], "flown": now[key]} for key in asked}
        changed = {f"env.{key}": pair for key, pair in pairs.items() if pair["trained"] != pair["flown"]}
    return EvalEnv(task.policy.enable_observations(cfg, policy.agent), changed)


def without_opponent(policy: LoadedPolicy) -> LoadedPolicy:
    """Return the policy, with `opponent` and `reward` of its env set to their defaults if they are user code."""
    if policy.env is None:
        return policy
    own = code_settings(from_plain(policy.task.config, nested(policy.env.settings)))
    kept = {
        key: value for key, value in policy.env.settings.items() if key not in own or key not in ("opponent", "reward")
    }
    return dataclasses.replace(policy, env=TrainedEnv(kept, policy.env.decision_s))


def default_env(task: Task) -> Any:
    """Return the env config of the task's `default` preset, or the config's defaults if there is no such preset."""
    names = [name for name in task.presets.names("env") if name == "default"]
    return build_config(task.config, [("preset default", task.presets.load("env", name)) for name in names], [])


def in_shared_env(task: Task, trained: Any, shared: TrainedEnv) -> Any:
    """Return the shared env's config, changed so that a policy that was trained in the config `trained` can fly in it.

    Taken from `trained`: the sensors, the decision rate, and all settings that the policy's weights depend on.
    """
    settings, rules = flat_settings(trained), {key: rule_of(field) for key, field, _ in walk(trained)}
    for key, value in flat_settings(from_plain(task.config, nested(shared.settings))).items():
        if rules[key].resume != "weights" and not key.startswith(task.policy.own_settings):
            settings[key] = value
    return from_plain(task.config, nested(settings))


def check_env_override(word: str, task: Task) -> str:
    """Return the override unchanged; raise ConfigError unless it is `key=value` with an env setting, or `group=preset`."""
    key, sign, _ = word.partition("=")
    if not (task.presets.aliases.get(key, key).startswith("env.") or key in task.presets.env_groups) or not sign:
        raise ConfigError(
            f"{word!r} is not an env setting, and only env settings can be changed here: write env.key=value."
        )
    return word
