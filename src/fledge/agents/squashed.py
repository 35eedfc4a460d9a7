"""Actor and twin critics of SAC and TD3.

Actions of the learner lie in [-1, 1]; `to_env` and `from_env` convert to and from the bounds of the env's action_spec.
Twin critics are one module; its weights have a leading axis of 2, so that each layer is one batched product for both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fledge.agents.base import BaseAgent, Obs
from fledge.agents.distributions import Scale, count_of
from fledge.agents.mlp import linear, mlp
from fledge.agents.observations import Flattener
from fledge.core.errors import ConfigError
from fledge.core.specs import ActionSpec, TensorSpec


class SquashedActor(BaseAgent):
    """Policy that takes the tanh of a Gaussian with state-dependent mean and deviation. TD3 uses only the mean.

    Args:
        action: The env's action; it must have bounds.
        first_mean: Initial mean of the first value of an action, in [-1, 1].
        log_std_range: Lower and upper limit of the log standard deviation before the tanh.
    """

    def __init__(
        self,
        inputs: int,
        action: ActionSpec,
        hidden: Sequence[int],
        first_mean: float = 0.0,
        log_std_range: tuple[float, float] = (-5.0, 2.0),
    ) -> None:
        super().__init__()
        if not isinstance(action, TensorSpec) or action.num_values is not None or not action.bounded:
            raise ConfigError(
                "algo=sac and algo=td3 need one float action with bounds, which this env does not have: use algo=ppo, which "
                "supports any action, or algo=dqn for a discrete one."
            )
        self.inputs, self.actions, self.log_std_range = inputs, count_of(action), log_std_range
        self.scale = Scale(action)
        self.trunk = mlp(inputs, hidden)
        self.head = linear(hidden[-1], 2 * self.actions, gain=0.01)
        with torch.no_grad():
            self.head.bias[0] = math.atanh(first_mean)

    def encode(self, obs: Obs) -> Tensor:
        """Return the network's input, [B, inputs]."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation before the tanh, [B, A] each."""
        mean, spread = self.head(self.trunk(x)).chunk(2, dim=-1)
        low, high = self.log_std_range
        return mean, low + 0.5 * (high - low) * (torch.tanh(spread) + 1.0)

    def sample(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return actions in [-1, 1] for standard normal noise [B, A] (sampled if None), and their log-probabilities [B]."""
        noise = torch.randn(len(x), self.actions, device=x.device) if noise is None else noise
        mean, log_std = self(x)
        raw = mean + log_std.exp() * noise
        log_prob = -0.5 * noise * noise - log_std - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh(u)^2), without cancellation for large u
        squash = 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))
        return torch.tanh(raw), (log_prob - squash).sum(-1)

    def mean(self, x: Tensor) -> Tensor:
        """Return the action in [-1, 1] without exploration."""
        return torch.tanh(self(x)[0])

    @torch.no_grad()
    def act(self, obs: Obs, deterministic: bool = True) -> Tensor:
        """Return actions for the env, [B, ...]."""
        x = self.encode(obs)
        return self.scale.to_env(self.mean(x) if deterministic else self.sample(x)[0])

    def respond(self, obs: Obs) -> tuple[Tensor, ...]:
        return (self.scale.to_env(self.mean(self.encode(obs))),)


class MLPActor(SquashedActor):
    """A squashed actor on all observations of an env."""

    def __init__(self, observation: Mapping[str, TensorSpec], action: ActionSpec, hidden: Sequence[int]) -> None:
        flattener = Flattener(observation, action)
        super().__init__(flattener.inputs, action, hidden)
        self.flattener, self.observes = flattener, flattener.keys
        self.reads, self.acts = flattener.specs, action

    def encode(self, obs: Obs) -> Tensor:
        return self.flattener(obs)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        return self.flattener.examples(batch, seed)


class TwinCritic(nn.Module):
    """Two independent estimates of the return of an action (Q-values)."""

    def __init__(self, inputs: int, actions: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for width, size in itertools.pairwise((inputs + actions, *hidden, 1)):
            weight = torch.empty(2, width, size)
            for k in range(2):
                nn.init.orthogonal_(weight[k], gain=2**0.5 if size > 1 else 0.1)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(2, 1, size)))

    def forward(self, x: Tensor, action: Tensor) -> Tensor:
        """Return both estimates [2, B] for actions [B, A] in [-1, 1] and features [B, F]."""
        h = torch.cat([x, action], dim=-1).expand(2, -1, -1)
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, F.relu(h, inplace=True) if k else h, weight)
        return h.squeeze(-1)
