"""BaseAgent: base class of everything that chooses actions: trained networks, scripted policies, human players.

    agent.reset(mask)              begin new episodes where the mask is true
    action = agent.act(obs)        [B, ...], in the form of the env's action_spec: a tensor, or a dict of tensors

Agents are modules: `to`, `train` and `eval` are torch's own and return the agent.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from fledge.core.errors import ConfigError
from fledge.core.random import Purpose, derive_seed

STATE_IN, STATE_OUT = "state_in", "state_out"  # a recurrent policy's hidden state in exported files
Obs = Mapping[str, Tensor]
Action = Tensor | dict[str, Tensor]


class BaseAgent(nn.Module):
    """Base class of agents.

    Args:
        num_envs: Number of envs that the agent acts for at once; an agent without memory acts for any number. A device is
            accepted here too: `BaseAgent("cpu")`.
        device: Device of an agent without parameters; an agent with parameters is on their device.
    """

    observes: tuple[str, ...] = ()
    """Names of the observations that it reads, in the order of an exported file's inputs."""
    task: str = ""
    """Name of the task that it is written for, if it is loaded by name alone; empty: any task."""
    about: str = ""
    """One sentence about a published policy, which is shown below its results."""
    hidden_size: int = 0
    """Width of a recurrent policy's hidden state (`agents.recurrent`); 0 for all other agents."""

    def __init__(self, num_envs: int | str | torch.device = 1, device: str | torch.device = "cpu") -> None:
        super().__init__()
        self.num_envs, device = (num_envs, device) if isinstance(num_envs, int) else (1, num_envs)
        self._place = torch.empty(0, device=device)

    @property
    def device(self) -> torch.device:
        """Device of the parameters; without parameters, the device that the agent was moved to."""
        return next((p.device for p in self.parameters()), self._place.device)

    @device.setter
    def device(self, device: str | torch.device) -> None:
        self._place = self._place.to(device)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Apply a function to every tensor, as `to`, `cpu` and `cuda` do."""
        self._place = fn(self._place)
        return super()._apply(fn, recurse)

    def act(self, obs: Obs, deterministic: bool = True) -> Action:
        """Return actions for the env from a batch of observations."""
        raise NotImplementedError

    def reset(self, env_mask: Tensor | None = None) -> None:
        """Begin new episodes in all envs, or only where the mask [num_envs] is true. Agents without memory do nothing."""

    def bind(self, env: Any) -> None:
        """Read the settings of an env (a TensorEnv) before its first observation. By default nothing is read."""

    def episode_state(self) -> dict[str, Any]:
        """Return a copy of the agent's memory of the current episodes and of its random streams: plain values and tensors."""
        return {}

    def load_episode_state(self, state: Mapping[str, Any]) -> None:
        """Continue from an `episode_state`."""

    def clone(self) -> Self:
        """Return an independent copy with its own memory and random streams, for matches against itself."""
        other = copy.deepcopy(self)
        for value in vars(other).values():
            if isinstance(value, torch.Generator):
                value.manual_seed(derive_seed(value.initial_seed(), Purpose.OPPONENT))
        return other

    def figures(self) -> dict[str, float]:
        """Return statistics by name since the last call, such as planning times."""
        return {}

    def get_name(self) -> str:
        """Return the agent's name in tables."""
        return type(self).__name__

    # ---- export to other programs ---------------------------------------------------------------------------------

    outputs: tuple[str, ...] = ("action",)
    """Names of an exported file's outputs, without a recurrent policy's state."""

    @property
    def export_inputs(self) -> tuple[str, ...]:
        """Names of an exported file's inputs: the observations, and a recurrent policy's state."""
        return (*self.observes, STATE_IN) if self.hidden_size else self.observes

    @property
    def export_outputs(self) -> tuple[str, ...]:
        """Names of an exported file's outputs: `outputs`, and a recurrent policy's next state."""
        return (*self.outputs, STATE_OUT) if self.hidden_size else self.outputs

    def respond(self, obs: Obs) -> tuple[Tensor, ...]:
        """Return the tensors that an exported file outputs (`export_outputs`) for a batch of its inputs (`export_inputs`).

        Actions are without exploration.
        """
        raise NotImplementedError

    def exported(self) -> nn.Module:
        """Return a module that maps `export_inputs`, in that order, to a tuple of `export_outputs`."""
        if type(self).respond is BaseAgent.respond:
            raise ConfigError(f"{self.get_name()} has no weights to export: choose a trained policy.")
        return Exported(self)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        """Return realistic observations [batch, ...], for tracing and checking an exported file."""
        raise NotImplementedError


class Exported(nn.Module):
    """Default module of `BaseAgent.exported`: passes its inputs, by name, to the agent's `respond`."""

    def __init__(self, agent: Any) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.agent.respond(dict(zip(self.agent.export_inputs, tensors, strict=True)))
