"""Fledge's tasks with several agents as PettingZoo parallel envs.

    from fledge.pettingzoo import parallel_env

    env = parallel_env(scenario="random", seed=3)       # one duel, agents "p1" and "p2"
    observations, infos = env.reset()
    env = parallel_env("navigation", preset="swarm")    # one world of eight drones, agents "p1" to "p8"

Keywords are the settings of the task's env, as `fledge.gym` takes them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fledge.core.errors import ConfigError
from fledge.gym import env_maker
from fledge.tasks.registry import find_task

if TYPE_CHECKING:
    from fledge.envs.adapters.pettingzoo import PettingZooEnv


def parallel_env(task: str = "aircombat", **settings: Any) -> PettingZooEnv:
    """Return a PettingZoo parallel env of one episode at a time, in which the caller controls all agents.

    Args:
        task: Name of a task with several agents in an episode: two sides, or the drones of one world.
        settings: Settings of the task's env, and `preset`, `seed`, `device` and `num_threads`.
    """
    from fledge.envs.adapters.pettingzoo import PettingZooEnv

    found = find_task(task)
    for name in ("num_envs", "opponent"):
        if name in settings:
            raise ConfigError(
                f"{name}={settings[name]!r} cannot be set: a parallel env is one match in which the caller controls all "
                f"sides. Leave {name} out, or use fledge.gym."
            )
    maker = env_maker(found, settings, one_episode=True)
    if found.match.rows(maker.cfg) < 2:
        raise ConfigError(
            f"Task {task!r} has one agent per episode, but a parallel env needs at least two: use fledge.gym, or a task "
            'such as aircombat, or navigation with preset="swarm".'
        )
    maker = dataclasses.replace(maker, cfg=found.match.match_config(maker.cfg, 1))
    return PettingZooEnv(maker(), maker)
