"""The `policy` part of a task: networks by description, shipped policies, other projects' files, shields."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.agents import build
from fledge.agents.base import BaseAgent
from fledge.agents.build import LearnedPolicy
from fledge.agents.recurrent import RecurrentConfig
from fledge.core.errors import ConfigError
from fledge.core.settings import setting
from fledge.core.specs import ActionSpec, TensorSpec
from fledge.tasks.robot import RobotSide

if TYPE_CHECKING:
    from fledge.tasks.base import Task


@dataclass
class PolicyConfig(RecurrentConfig):
    """Settings of the general networks."""

    hidden: list[int] = setting([64, 64], at_least=1, items=(1, None), resume="weights")
    """Widths of the hidden layers."""
    normalize: bool = setting(True, resume="weights")
    """Normalise observations by their running mean and standard deviation (ppo only)."""
    beta: bool = setting(False, resume="weights")
    """Use Beta instead of normal distributions for bounded actions (ppo only)."""


@dataclass
class TrainedEnv:
    """The env that a policy was trained in: its settings by dotted key, without "env.", and seconds per decision."""

    settings: dict[str, Any] = field(default_factory=dict)
    decision_s: float | None = None


def env_specs(task: Task, cfg: Any) -> tuple[dict[str, TensorSpec], ActionSpec]:
    """Return the observation and action specs of a task's envs with these settings."""
    with contextlib.closing(task.make_env(dataclasses.replace(cfg, num_envs=task.match.rows(cfg)))) as env:
        return env.observation_spec, env.action_spec


class PolicyFactory:
    """Describes and builds the policies of a task. Every default works for any env."""

    config: type = PolicyConfig
    """Dataclass of the network's settings (`policy.*`)."""
    folder: Path | None = None
    """Folder of the shipped policies, NAME.fledge."""
    shields: Mapping[str, Callable[[BaseAgent], BaseAgent]] = {}
    """Wrappers that check and correct an agent's actions, by name."""
    own_settings: tuple[str, ...] = ()
    """Prefixes of the env settings that belong to a policy (its sensors, its decision rate), not to the env it flies in."""
    pilot_aliases: Mapping[str, str] = {}
    """Another project's name of a scripted policy -> its name here."""
    robot: RobotSide = RobotSide()
    """Readings from which a robot flies deployed policies."""

    def describe(self, task: Task, algo: str, env: Any, policy: Any) -> dict[str, Any]:
        """Return a description, as plain values, of the network that an algorithm ("ppo", "sac", "td3", "dqn") trains.

        Raises:
            ConfigError: if algorithm, network and env do not fit together.
        """
        observation, action = env_specs(task, env)
        memory = getattr(policy, "gru_size", 0)
        return build.describe(algo, observation, action, policy.hidden, policy.normalize, policy.beta, memory)

    def build(self, description: Mapping[str, Any]) -> LearnedPolicy:
        """Build a new policy from its description."""
        return build.build_from_description(description)

    def shipped(self) -> dict[str, Path]:
        """Return the files of the shipped policies by name."""
        return {} if self.folder is None else {p.stem: p for p in sorted(self.folder.glob("*.fledge"))}

    def load_interop(self, path: Path) -> BaseAgent:
        """Load a policy from another project's `.pt` file, or from the file that `fledge convert` made of it."""
        raise ConfigError(
            f"{path} is another project's file, which this task cannot read: give a run or its policy file."
        )

    def to_trainable(self, agent: BaseAgent) -> tuple[dict[str, Any], LearnedPolicy]:
        """Prepare an agent from `load_interop` for further training, and return its description and its network."""
        raise ConfigError(f"{agent.get_name()} has no network that this task can train: give a run or a .fledge file.")

    def default_env_config(self, agent: BaseAgent) -> TrainedEnv | None:
        """Return the env that a scripted or converted agent is made for; None if it fits any env."""
        return None

    def enable_observations(self, cfg: Any, agent: BaseAgent) -> Any:
        """Return the env config with the observations enabled that an agent reads, as far as the task can enable them."""
        return cfg
