"""Fledge's tasks as Gymnasium envs.

    import gymnasium
    import fledge.gym

    envs = gymnasium.make_vec("fledge/Navigation-v0", num_envs=64, static_obstacles=100, seed=3)
    env = gymnasium.make("fledge/Navigation-v0")

Importing this module registers one ID for each registered task. Gymnasium imports it by itself where the ID names it:
`gymnasium.make_vec("fledge.gym:fledge/Navigation-v0", num_envs=64)`. (Since its version 1.0 it looks for no plugins.)

Keywords are the settings of the task's env, dotted or nested ({"reward.crash": 5.0}, reward={"crash": 5.0}), enums by name,
and `preset`, `seed`, `device` and `num_threads`. (max_episode_steps of gymnasium.make is its own wrapper's, in decisions.)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium

from fledge.core.errors import ConfigError
from fledge.tasks.registry import find_task, task_names

if TYPE_CHECKING:
    from fledge.envs.adapters.gymnasium import GymnasiumEnv, GymnasiumVectorEnv
    from fledge.envs.base import TensorEnv


def env_id(task: str) -> str:
    """The ID of a registered task: of `air_combat`, fledge/AirCombat-v0."""
    return f"fledge/{''.join(part[:1].upper() + part[1:] for part in task.replace('-', '_').split('_'))}-v0"


def make_vector(task: str, num_envs: int = 1, **settings: Any) -> GymnasiumVectorEnv:
    """Many envs of a task behind Gymnasium's vector interface."""
    from fledge.envs.adapters.gymnasium import GymnasiumVectorEnv

    make_env, seed = env_maker(task, {**settings, "num_envs": num_envs})
    return GymnasiumVectorEnv(make_env(seed), make_env)


def make_single(task: str, **settings: Any) -> GymnasiumEnv:
    """One env of a task."""
    from fledge.envs.adapters.gymnasium import GymnasiumEnv

    if "num_envs" in settings:
        raise ConfigError("num_envs is for gymnasium.make_vec; gymnasium.make makes one env.")
    make_env, seed = env_maker(task, {**settings, "num_envs": 1})
    return GymnasiumEnv(make_env(seed), make_env)


def env_maker(task_name: str, given: Mapping[str, Any]) -> tuple[functools.partial[TensorEnv], int]:
    """What makes a task's env for a seed, and the seed to begin with.

    Raises:
        ConfigError: for a setting that there is not, or a value that does not fit it.
    """
    from fledge.core.overrides import build_config, field_help, nested, unknown_key
    from fledge.core.settings import check_settings

    task = find_task(task_name)
    settings = {key: value for key, value in given.items() if key not in ("preset", "seed", "device", "num_threads")}
    known = list(field_help(task.config))
    for key in settings:
        if key not in known and not any(name.startswith(f"{key}.") for name in known):
            raise ConfigError(unknown_key(key, known).replace("`--help-config`", "`fledge train --help-config`"))
    presets = [(f"preset {given['preset']}", task.preset("env", given["preset"]))] if given.get("preset") else []
    cfg: Any = build_config(task.config, [*presets, (env_id(task_name), nested(settings))], ())
    check_settings(cfg)
    options = {"device": given.get("device", "cpu"), "num_threads": given.get("num_threads")}
    return functools.partial(_make, task, cfg, options), int(given.get("seed", 0))


def _make(task: Any, cfg: Any, options: Mapping[str, Any], seed: int) -> TensorEnv:
    return task.make_env(cfg, seed=seed, **options)


for _name in task_names():
    gymnasium.register(
        id=env_id(_name),
        entry_point="fledge.gym:make_single",
        vector_entry_point="fledge.gym:make_vector",
        kwargs={"task": _name},
    )
