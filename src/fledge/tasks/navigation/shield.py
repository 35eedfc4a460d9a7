"""Shields: safety filters that replace a policy's command if it would lead to a collision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fledge.agents.base import BaseAgent, Obs
from fledge.core.errors import ConfigError
from fledge.tasks.navigation.config import ActionForm, NavigationConfig
from fledge.tasks.navigation.orca.pilot import OrcaPilot
from fledge.tasks.navigation.planner.pilot import PlannerPilot
from fledge.tasks.navigation.steering import Steering

CHANGED = 1.0e-3  # m/s; smaller differences do not count as a change
SHIELDS: dict[str, Callable[[], Steering]] = {"orca": OrcaPilot, "planner": lambda: PlannerPilot(shield=True)}


class Shielded(BaseAgent):
    """A policy with a shield between its commands and the drones.

    Args:
        agent: Any agent that acts with velocities.
        shield: "orca" takes the nearest command outside all velocity obstacles. "planner" keeps the command unless it
            leads into an obstacle on the local map or a mover; then it takes the nearest safe candidate.
    """

    def __init__(self, agent: BaseAgent, shield: str) -> None:
        super().__init__()
        if shield not in SHIELDS:
            raise ConfigError(f"{shield!r} is not a known shield. Choose one of {', '.join(SHIELDS)}.")
        self.agent, self.kind, self.shield = agent, shield, SHIELDS[shield]()
        self.about = agent.about
        self.observes = tuple(dict.fromkeys((*agent.observes, *self.shield.observes)))
        self.reads, self.acts = getattr(agent, "reads", {}), getattr(agent, "acts", None)
        self._sums: Tensor | None = None  # number of decisions, of changed decisions, and the sum of changes in m/s

    def get_name(self) -> str:
        return f"{self.agent.get_name()}+{self.kind}"

    def bind(self, env: Any) -> None:
        self.configure(env.unwrapped.cfg)

    def configure(self, env_cfg: NavigationConfig) -> None:
        """Set the config of the env that the policy flies in; raise ConfigError unless its actions are velocities."""
        if env_cfg.action_form is not ActionForm.velocity:
            raise ConfigError("A shield needs velocity actions: set env.action_form=velocity, or leave out the shield.")
        self.shield.configure(env_cfg)
        if isinstance(self.agent, Steering | Shielded):
            self.agent.configure(env_cfg)

    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Return the agent's actions after the shield's corrections, [B, 3]."""
        action = self.agent.act(obs, deterministic)
        assert isinstance(action, Tensor)
        limit = self.shield.env_cfg.speed_limit
        wanted = limit * (2.0 * action.detach().clamp(0.0, 1.0) - 1.0)
        command = self.shield.command(obs, wanted).clamp(-limit, limit)
        change = (command - wanted).norm(dim=-1)
        changed = change > CHANGED
        sums = torch.stack([torch.ones_like(change), changed.to(change.dtype), change]).double().sum(dim=1)
        self._sums = sums if self._sums is None else self._sums + sums
        return torch.where(changed[:, None], self.shield.as_action(command), action)

    def figures(self) -> dict[str, float]:
        """Return the share of commands that the shield changed since the last call, and the mean of these changes, m/s."""
        if self._sums is None:
            return {}
        decisions, changed, change = self._sums.tolist()
        self._sums = None
        return {"shield_share": changed / decisions, "shield_change": change / max(changed, 1.0)}

    def reset(self, env_mask: Tensor | None = None) -> None:
        self.agent.reset(env_mask)
        self.shield.reset(env_mask)

    def episode_state(self) -> dict[str, Any]:
        return {"agent": self.agent.episode_state(), "shield": self.shield.episode_state()}

    def load_episode_state(self, state: Mapping[str, Any]) -> None:
        self.agent.load_episode_state(state["agent"])
        self.shield.load_episode_state(state["shield"])
