"""The module `base_agent` of midrangeRL: the base class of agents for `TensorEnv`, a placeholder, and `create_agent`.

agent = create_agent("crank", device="cpu", num_envs=32)
agent.act(obs["p2"])                          {"rudder", "throttle", "fire"}, each [num_envs]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fledge.agents import base
from fledge.agents.base import Obs
from fledge.compat.devices import usable_device
from fledge.compat.midrange.config import read_config
from fledge.core.errors import ConfigError
from fledge.tasks.aircombat.env import RUDDERS
from fledge.tasks.aircombat.pilots import OTHER_NAMES, PILOTS
from fledge.tasks.policy_loader import load_policy


class BaseAgent(base.BaseAgent):
    """Base class of agents that control one side of `num_envs` duels: implement `act`, and `reset` if the agent has a memory.

    Args:
        device: Device of the agent; if a CUDA device does not exist, the CPU is used and a warning printed.
    """

    def __init__(self, device: str | torch.device = "auto", num_envs: int = 1) -> None:
        super().__init__(num_envs, usable_device(device))

    def act(self, observation: Obs, deterministic: bool = True) -> dict[str, Tensor]:
        """Return rudder (-1 to 1), throttle (0 to 1) and fire (bool), each a tensor of shape [num_envs]."""
        raise NotImplementedError


class PlaceholderAgent(BaseAgent):
    """Fly straight ahead at full throttle and never fire."""

    def act(self, observation: Obs, deterministic: bool = True) -> dict[str, Tensor]:
        first = next(iter(observation.values()))
        still = torch.zeros(len(first), device=first.device)
        return {"rudder": still, "throttle": still + 1.0, "fire": still.bool()}


class AgentAdapter(BaseAgent):
    """Adapt one of Fledge's agents: read the observations of `TensorEnv`, and return rudder, throttle and fire.

    Args:
        agent: A scripted policy (pilot) or a learned policy.
    """

    def __init__(self, agent: base.BaseAgent, device: str | torch.device = "cpu", num_envs: int = 1) -> None:
        super().__init__(device, num_envs)
        self.agent = agent.to(self.device)

    def act(self, observation: Obs, deterministic: bool = True) -> dict[str, Tensor]:
        if missing := [name for name in self.agent.observes if name not in observation]:
            raise ConfigError(
                f"{self.get_name()} needs the observations {', '.join(missing)}, which this env lacks: "
                "set spacetime=True in the config of TensorEnv, or choose another agent."
            )
        seen = dict(observation)
        if "missile_tokens" in observation:
            seen["missiles"] = observation["missile_tokens"]
        action = self.agent.act(seen, deterministic)
        if isinstance(action, Tensor):  # the discrete form
            rudder = torch.tensor(RUDDERS, device=action.device)[action // 2]
            action = {"rudder": rudder, "throttle": torch.ones_like(rudder), "fire": action % 2}
        return {**action, "fire": action["fire"].bool()}

    def reset(self, env_mask: Tensor | None = None) -> None:
        self.agent.reset(env_mask)

    def episode_state(self) -> dict[str, Any]:
        return self.agent.episode_state()

    def load_episode_state(self, state: Mapping[str, Any]) -> None:
        self.agent.load_episode_state(state)

    def get_name(self) -> str:
        return self.agent.get_name()


def create_agent(
    agent_type: str = "placeholder",
    device: str | torch.device = "cpu",
    num_envs: int = 1,
    args: Any = None,
    *,
    config: Mapping[str, Any] | None = None,
) -> BaseAgent:
    """Create an agent: a scripted policy by name (`crank`, `crank(shot=0.8)`), an untrained network (`ppo`), or a policy file.

    Args:
        agent_type: placeholder, random, pursuit, crank (also rule_based), drag, notch, envelope, ppo, or NAME.fledge.
        args: Ignored; in midrangeRL, the arguments of training. Train with `fledge train aircombat` instead.
        config: Config of the env that the network of `ppo` must fit, in the form that TensorEnv takes.

    Raises:
        ConfigError: If the name is not known, or the policy file does not exist.
    """
    if agent_type == "placeholder":
        return PlaceholderAgent(device, num_envs)
    from fledge.tasks.aircombat.task import AircombatTask

    agent: base.BaseAgent
    if agent_type == "ppo":
        task = AircombatTask()
        cfg = read_config(config, num_envs).cfg
        agent = task.policy.build(task.policy.describe(task, "ppo", cfg, task.policy.config()))
    elif agent_type.endswith(".fledge") and not Path(agent_type).is_file():
        raise ConfigError(f"The policy file {agent_type} does not exist: check the path.")
    elif agent_type.endswith(".fledge") or agent_type.partition("(")[0].strip() in {*PILOTS, *OTHER_NAMES}:
        agent = load_policy(agent_type, AircombatTask()).agent
    else:
        known = ", ".join([*PILOTS, *OTHER_NAMES, "ppo"])
        raise ConfigError(f"{agent_type!r} is not a known agent. Choose one of {known}, or pass a policy file.")
    return AgentAdapter(agent, device, num_envs)
