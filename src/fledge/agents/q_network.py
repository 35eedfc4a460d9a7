"""Q-networks of DQN: the value of every discrete action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fledge.agents.base import BaseAgent, Obs
from fledge.agents.distributions import FORBIDDEN
from fledge.agents.mlp import mlp
from fledge.agents.observations import Flattener
from fledge.core.errors import ConfigError
from fledge.core.specs import ActionSpec, TensorSpec


class QNetwork(BaseAgent):
    """Base class of Q-networks; `forward` maps a batch of observations to values [B, num_actions]."""

    num_actions: int
    outputs = ("value",)

    def forward(self, obs: Obs) -> Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Return the action with the largest value in each env, [B], whether `deterministic` or not."""
        return self(obs).argmax(-1)

    def allowed(self, obs: Obs) -> Tensor | None:
        """Return the allowed actions, [B, num_actions] bool; None if there is no mask."""
        return None

    def respond(self, obs: Obs) -> tuple[Tensor, ...]:
        """Return the value of every action."""
        return (self(obs),)


class MLPQNetwork(QNetwork):
    """An MLP on all observations of an env. Actions that the mask forbids get the lowest values."""

    def __init__(self, observation: Mapping[str, TensorSpec], action: ActionSpec, hidden: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(action, TensorSpec) or action.num_values is None or action.shape:
            raise ConfigError(
                "algo=dqn needs one discrete action, which this env does not have: use algo=ppo, which supports any action."
            )
        self.flattener = Flattener(observation, action)
        self.observes, self.num_actions = self.flattener.keys, action.num_values
        self.reads, self.acts = self.flattener.specs, action
        self.layers = nn.Sequential(mlp(self.flattener.inputs, hidden), nn.Linear(hidden[-1], self.num_actions))

    def forward(self, obs: Obs) -> Tensor:
        x = self.flattener(obs)
        values, mask = self.layers(x), self.flattener.split(x)
        return values if mask is None else values.masked_fill(mask < 0.5, FORBIDDEN)

    def allowed(self, obs: Obs) -> Tensor | None:
        mask = self.flattener.split(self.flattener(obs))
        return None if mask is None else mask > 0.5

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        return self.flattener.examples(batch, seed)
