"""Learning algorithms by name: `algo=ppo`, or your own as `algo=module:Class` or `algo=file.py:Class`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from pathlib import Path
from typing import Any

from fledge.agents.actor_critic import ActorCritic
from fledge.agents.q_network import QNetwork
from fledge.agents.squashed import SquashedActor
from fledge.core.code import absolute, find_object, is_reference
from fledge.core.config_help import check_config_class
from fledge.core.errors import ConfigError
from fledge.learn.base import Learner
from fledge.learn.off_policy import OffPolicy

ALGORITHMS = {
    "ppo": "fledge.learn.ppo:PPO",
    "sac": "fledge.learn.sac:SAC",
    "td3": "fledge.learn.td3:TD3",
    "dqn": "fledge.learn.dqn:DQN",
}
POLICY_CLASSES: dict[str, type] = {"ppo": ActorCritic, "sac": SquashedActor, "td3": SquashedActor, "dqn": QNetwork}


def find_learner(algo: str) -> type[Learner]:
    """Return the class of an algorithm; raise ConfigError if it is unknown or does not implement `Learner` correctly.

    A reference such as file.py:Class runs that code: pass only references that the user gave.
    """
    reference = absolute(ALGORITHMS.get(algo, algo))
    if not is_reference(reference):
        raise ConfigError(
            f"algo={algo} is not a known algorithm. Choose one of {', '.join(ALGORITHMS)}, or name your own as "
            "module:Class or file.py:Class."
        )
    file = Path(reference.rpartition(":")[0])
    return _load(reference, file.stat().st_mtime_ns if file.is_file() else 0)


@functools.cache
def _load(reference: str, changed_ns: int) -> type[Learner]:
    """Load and check a learner's class; cached by the file's time of change, so that each version is loaded once."""
    found: Any = find_object(reference)
    if not (isinstance(found, type) and issubclass(found, Learner)) or inspect.isabstract(found):
        raise ConfigError(f"algo={reference} must be a subclass of Learner (or OffPolicy) that defines update().")
    config = getattr(found, "config", None)
    if not isinstance(config, type) or not dataclasses.is_dataclass(config):
        raise ConfigError(f"algo={reference} has no valid attribute `config`: set it to the dataclass of the settings.")
    check_config_class(config, f"The config of algo={reference}")
    off_policy = issubclass(found, OffPolicy)
    if found.policy_form not in POLICY_CLASSES or (found.policy_form == "ppo") is off_policy:
        forms = "sac, td3 or dqn" if off_policy else "ppo"
        raise ConfigError(f"algo={reference} has policy_form={found.policy_form!r}, but it must be {forms}.")
    needed = "gamma" if off_policy else "rollout_steps"
    if needed not in config.__dataclass_fields__:
        raise ConfigError(f"The config of algo={reference} has no field {needed}: add it.")
    return found
