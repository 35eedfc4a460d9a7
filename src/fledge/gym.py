"""Fledge's tasks as Gymnasium envs.

    import gymnasium
    import fledge.gym

    envs = gymnasium.make_vec("fledge/Navigation-v0", num_envs=64, static_obstacles=100, seed=3)
    env = gymnasium.make("fledge/Navigation-v0")

Importing this module registers one ID for each registered task. Gymnasium imports the module itself if the ID begins with
its name: `gymnasium.make_vec("fledge.gym:fledge/Navigation-v0", num_envs=64)`.

Keywords are the settings of the task's env, dotted or nested ({"reward.crash": 5.0}, reward={"crash": 5.0}), enums by name,
and `preset`, `seed`, `device` and `num_threads`. If the task has a setting max_episode_steps, this keyword sets it, also in
gymnasium.make; for other tasks, gymnasium.make takes it for a time limit of its own, in decisions.
A task that trains against an opponent has one here too: `gymnasium.make("fledge/Aircombat-v0", opponent="crank")`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs import registration

from fledge.core.config_help import field_help
from fledge.core.errors import ConfigError
from fledge.envs.placement import EnvPlacement
from fledge.tasks.registry import find_task, task_names

if TYPE_CHECKING:
    from fledge.envs.adapters.gymnasium import GymnasiumEnv, GymnasiumVectorEnv
    from fledge.envs.base import TensorEnv
    from fledge.tasks.base import Task


def env_id(task: str) -> str:
    """Return the Gymnasium ID of a registered task, for example fledge/AirCombat-v0 for `air_combat`."""
    return f"fledge/{''.join(part[:1].upper() + part[1:] for part in task.replace('-', '_').split('_'))}-v0"


def make_vector(task: str, num_envs: int = 1, **settings: Any) -> GymnasiumVectorEnv:
    """Return `num_envs` envs of a task as one Gymnasium vector env."""
    from fledge.envs.adapters.gymnasium import GymnasiumVectorEnv

    make_env = env_maker(find_task(task), {**settings, "num_envs": num_envs})
    return GymnasiumVectorEnv(make_env(), make_env)


def make_single(task: str, **settings: Any) -> GymnasiumEnv:
    """Return one env of a task as a Gymnasium env."""
    from fledge.envs.adapters.gymnasium import GymnasiumEnv

    if "num_envs" in settings:
        raise ConfigError(
            f"gymnasium.make makes one env, but num_envs={settings['num_envs']} was given: leave num_envs out, or use "
            "gymnasium.make_vec."
        )
    caller, found = sys._getframe(1), find_task(task)
    # gymnasium.make does not pass max_episode_steps on: it adds a wrapper that counts decisions and reports no outcome. With
    # the task's own limit, which counts physics steps, an episode ends before that wrapper would end it.
    if caller.f_code is registration.make.__code__ and "max_episode_steps" in field_help(found.config):
        spec = caller.f_locals.get("env_spec")
        limit = caller.f_locals.get("max_episode_steps") or getattr(spec, "max_episode_steps", None)
        if limit is not None and limit != -1:  # -1: no wrapper
            settings["max_episode_steps"] = limit
    make_env = env_maker(found, {**settings, "num_envs": 1})
    return GymnasiumEnv(make_env(), make_env)


@dataclass(frozen=True)
class EnvMaker:
    """A callable that makes the env of a task. Call it with a seed, or without one to use the field `seed`."""

    task: Task
    cfg: Any
    seed: int
    device: str
    num_threads: int | None

    def __call__(self, seed: int | None = None) -> TensorEnv:
        seed = self.seed if seed is None else seed
        return self.task.make_env(self.cfg, EnvPlacement(seed=seed, device=self.device, num_threads=self.num_threads))


def env_maker(task: Task, given: Mapping[str, Any], one_episode: bool = False) -> EnvMaker:
    """Return a callable that makes a task's env; `given` holds the keywords that the user passed.

    With `one_episode`, the env has the rows of one episode.

    Raises:
        ConfigError: A setting is unknown, or a value does not fit.
    """
    from fledge.core.config_help import unknown_key
    from fledge.core.overrides import build_config, nested
    from fledge.core.settings import check_settings

    settings = {key: value for key, value in given.items() if key not in ("preset", "seed", "device", "num_threads")}
    known = list(field_help(task.config))
    for key in settings:
        named = key in task.presets.env_groups and isinstance(settings[key], str)
        if not named and key not in known and not any(name.startswith(f"{key}.") for name in known):
            raise ConfigError(unknown_key(key, known))
    layers = [(f"training of task {task.name}", task.presets.defaults.get("env", {}))]
    if given.get("preset"):
        layers.append((f"preset {given['preset']}", task.presets.load("env", given["preset"])))
    for group in [key for key in settings if key in task.presets.env_groups and isinstance(settings[key], str)]:
        layers.append((f"preset {settings[group]}", task.presets.load(group, settings.pop(group))))
    cfg: Any = build_config(task.config, [*layers, (env_id(task.name), nested(settings))], ())
    if one_episode:
        cfg = replace(cfg, num_envs=task.match.rows(cfg))
    check_settings(cfg)
    return EnvMaker(task, cfg, int(given.get("seed", 0)), given.get("device", "cpu"), given.get("num_threads"))


for _name in task_names():
    gymnasium.register(
        id=env_id(_name),
        entry_point="fledge.gym:make_single",
        vector_entry_point="fledge.gym:make_vector",
        kwargs={"task": _name},
    )
