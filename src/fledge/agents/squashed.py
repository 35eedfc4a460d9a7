"""Actor and twin critics of SAC and TD3, on the features of `features.py`.

Actions of the learner lie in [-1, 1]; `to_env` and `from_env` turn them to and from the env's [0, 1].
Twin critics are one module whose weights have a leading axis of 2: both are computed by one batched product a layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fledge.tasks.navigation.features import navigation_features, num_features

LOG_STD_RANGE = (-5.0, 0.5)
FORWARD = 0.6  # an untrained actor flies towards the goal at this share of full speed


def to_env(action: Tensor) -> Tensor:
    return action * 0.5 + 0.5


def from_env(action: Tensor) -> Tensor:
    return action * 2.0 - 1.0


class SquashedActor(nn.Module):
    """tanh of a Gaussian whose mean and spread depend on the state. TD3 uses the mean alone."""

    def __init__(
        self,
        lidar_shape: tuple[int, int] = (36, 4),
        hidden: Sequence[int] = (256, 128),
        actions: int = 3,
        range_m: float = 4.0,
    ) -> None:
        super().__init__()
        self.range_m, self.lidar_shape, self.actions = range_m, lidar_shape, actions
        self.inputs = num_features(lidar_shape[0] * lidar_shape[1])
        layers: list[nn.Module] = []
        for width, size in itertools.pairwise((self.inputs, *hidden)):
            linear = nn.Linear(width, size)
            nn.init.orthogonal_(linear.weight, gain=2**0.5)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU(inplace=True)]
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(hidden[-1], 2 * actions)
        nn.init.orthogonal_(self.head.weight, gain=0.01)
        with torch.no_grad():
            self.head.bias.zero_()
            self.head.bias[0] = math.atanh(FORWARD)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Features [B, F] of a batch of observations."""
        return navigation_features(obs, self.range_m)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before the tanh, [B, A] each."""
        mean, spread = self.head(self.trunk(x)).chunk(2, dim=-1)
        low, high = LOG_STD_RANGE
        return mean, low + 0.5 * (high - low) * (torch.tanh(spread) + 1.0)

    def sample(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in [-1, 1] for standard normal noise [B, A], and the log of their density [B]."""
        mean, log_std = self(x)
        raw = mean + log_std.exp() * noise
        density = -0.5 * noise * noise - log_std - 0.5 * math.log(2 * math.pi)
        # log(1 - tanh(u)^2), without cancellation for large u
        squash = 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))
        return torch.tanh(raw), (density - squash).sum(-1)

    def mean(self, x: Tensor) -> Tensor:
        """The action in [-1, 1] without exploration."""
        return torch.tanh(self(x)[0])

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], deterministic: bool = True) -> Tensor:
        """Actions for the env, [B, A]."""
        x = self.encode(obs)
        if deterministic:
            return to_env(self.mean(x))
        return to_env(self.sample(x, torch.randn(len(x), self.actions, device=x.device))[0])


class TwinCritic(nn.Module):
    """Two independent estimates of the return of an action."""

    def __init__(self, inputs: int, actions: int, hidden: Sequence[int]) -> None:
        super().__init__()
        widths = (inputs + actions, *hidden, 1)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for width, size in itertools.pairwise(widths):
            weight = torch.empty(2, width, size)
            for k in range(2):
                nn.init.orthogonal_(weight[k], gain=2**0.5 if size > 1 else 0.1)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(2, 1, size)))

    def forward(self, x: Tensor, action: Tensor) -> Tensor:
        """Returns [2, B] of actions [B, A] in [-1, 1], given features [B, F]."""
        h = torch.cat([x, action], dim=-1).expand(2, -1, -1)
        last = len(self.weights) - 1
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, h, weight)
            if k < last:
                h = F.relu(h, inplace=True)
        return h.squeeze(-1)
