"""BaseAgent: base of trained networks, scripted policies, past selves, and a person at a keyboard.

    agent.reset(mask)              new episodes begin where the mask is true: forget the old ones
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

Obs = Mapping[str, Tensor]
Action = Tensor | dict[str, Tensor]


class BaseAgent(nn.Module):
    """Chooses actions.

    Args:
        num_envs: For how many envs it acts at once; an agent without memory takes any number. A device may stand here
            too: `BaseAgent("cpu")`.
        device: Where it acts, as long as it has no parameters, which then say.
    """

    observes: tuple[str, ...] = ()
    """Observations that it reads, in the order in which an exported file takes them."""
    task: str = ""
    """Name of the task it is written for, where it is loaded by name alone; empty: any."""
    about: str = ""
    """One sentence about a published policy, which is shown below its results."""

    def __init__(self, num_envs: int | str | torch.device = 1, device: str | torch.device = "cpu") -> None:
        super().__init__()
        self.num_envs, device = (num_envs, device) if isinstance(num_envs, int) else (1, num_envs)
        self._place = torch.empty(0, device=device)

    @property
    def device(self) -> torch.device:
        """Device of its parameters; without any, the one it was moved to."""
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
        """Begin new episodes, everywhere or where the mask [num_envs] is true. Agents without memory do nothing."""

    def bind(self, env: Any) -> None:
        """Prepare to act in an env (a TensorEnv), before its first observation. Agents that need no settings ignore it."""

    def episode_state(self) -> dict[str, Any]:
        """Return a copy of what it remembers of the present episodes, random streams included: plain values and tensors."""
        return {}

    def load_episode_state(self, state: Mapping[str, Any]) -> None:
        """Continue from an `episode_state`."""

    def clone(self) -> Self:
        """Return a copy with an episode state and random streams of its own, for matches against itself."""
        other = copy.deepcopy(self)
        for value in vars(other).values():
            if isinstance(value, torch.Generator):
                value.manual_seed(derive_seed(value.initial_seed(), Purpose.OPPONENT))
        return other

    def figures(self) -> dict[str, float]:
        """Return statistics of its own work since the last call, by name."""
        return {}

    def get_name(self) -> str:
        """Return its name in tables."""
        return type(self).__name__

    # ---- as a file for other programs -----------------------------------------------------------------------------

    outputs: tuple[str, ...] = ("action",)
    """Names of what an exported file puts out."""

    def respond(self, obs: Obs) -> tuple[Tensor, ...]:
        """Return the `outputs` of an exported file for a batch of observations, without exploration."""
        raise NotImplementedError

    def exported(self) -> nn.Module:
        """Return a module that maps the tensors of `observes`, in order, to a tuple of `outputs`."""
        if type(self).respond is BaseAgent.respond:
            raise ConfigError(f"{self.get_name()} has no weights, so nothing can be exported: give a learned policy.")
        return Exported(self)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        """Return realistic observations, for tracing and checking an exported file."""
        raise NotImplementedError


class Exported(nn.Module):
    """The plainest `exported`: calls `respond` of an agent with its observations by name."""

    def __init__(self, agent: Any) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.agent.respond(dict(zip(self.agent.observes, tensors, strict=True)))
