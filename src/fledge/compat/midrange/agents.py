"""Agents for MidrangeEnv's observations: the placeholder, and any of ours by name.

agent = create_agent("crank", device="cpu", num_envs=32)
agent.act(obs["p2"])                          {"rudder", "throttle", "fire"}, each [num_envs]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fledge.agents.base import BaseAgent, Obs
from fledge.compat.midrange.config import read_config
from fledge.core.errors import ConfigError
from fledge.tasks.aircombat.env import RUDDERS
from fledge.tasks.aircombat.pilots import OTHER_NAMES, PILOTS, make_pilot


class PlaceholderAgent(BaseAgent):
    """Flies straight ahead at full throttle, and never shoots."""

    def act(self, obs: Obs, deterministic: bool = True) -> dict[str, Tensor]:
        some = next(iter(obs.values()))
        still = torch.zeros(len(some), device=some.device)
        return {"rudder": still, "throttle": still + 1.0, "fire": still.bool()}


class SeatedAgent(BaseAgent):
    """One of our agents in a seat of MidrangeEnv: reads our part of what is observed there, acts by those names.

    Args:
        agent: A pilot, or a learned policy.
    """

    def __init__(self, agent: BaseAgent, device: str | torch.device = "cpu", num_envs: int = 1) -> None:
        super().__init__(num_envs, device)
        self.agent = agent.to(self.device)

    def act(self, obs: Obs, deterministic: bool = True) -> dict[str, Tensor]:
        if missing := [name for name in self.agent.observes if name not in obs]:
            raise ConfigError(f"{self.get_name()} reads {', '.join(missing)}, which this env does not observe.")
        seen = {**obs, "missiles": obs["missile_tokens"]} if "missile_tokens" in obs else obs
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
    """An agent by name: a pilot (`crank`, `crank(shot=0.8)`), `ppo` for a network that has learned nothing yet, or a file.

    Args:
        agent_type: placeholder, random, pursuit, crank (also rule_based), drag, notch, envelope, ppo, or NAME.fledge.
        args: Taken and not used: how to learn is a learner's business (`fledge train aircombat`).
        config: Of the env that a network is for, as MidrangeEnv takes it.

    Raises:
        ConfigError: when there is none of that name.
    """
    if agent_type == "placeholder":
        return PlaceholderAgent(num_envs, device)
    from fledge.tasks.aircombat.task import AircombatTask

    agent: BaseAgent
    if agent_type == "ppo":
        task = AircombatTask()
        cfg = read_config(config, num_envs).cfg
        agent = task.build_policy(task.describe_policy("ppo", cfg, task.policy_config()))
    elif agent_type.endswith(".fledge"):
        if not Path(agent_type).is_file():
            raise ConfigError(f"There is no policy file {agent_type}.")
        agent = AircombatTask().make_opponent(agent_type, num_envs)
    elif agent_type.partition("(")[0].strip() in {*PILOTS, *OTHER_NAMES}:
        agent = make_pilot(agent_type, num_envs)
    else:
        known = ", ".join([*PILOTS, *OTHER_NAMES, "ppo"])
        raise ConfigError(f"There is no agent {agent_type!r}; there are {known}, or a policy's file.")
    return SeatedAgent(agent, device, num_envs)
