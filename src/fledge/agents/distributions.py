"""Action distributions. A head turns network outputs into parameters, and parameters into actions and densities.

`raw` is what the learner stores and scores; `to_env(raw)` is the action in [0, 1] that the env gets.
Parameters are a tuple of tensors [B, A], so that losses can be compared and archived without a library's objects.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Params = tuple[Tensor, Tensor]
LOG_STD_MIN = -4.0


class GaussianHead(nn.Module):
    """Normal distribution on [-1, 1], clipped at the env; spread depends on the state, under a falling ceiling."""

    log_std_max: Tensor

    def __init__(self, inputs: int, actions: int, forward_bias: float = 0.6, log_std_max: float = -0.5) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 2 * actions)
        nn.init.orthogonal_(self.layer.weight, gain=0.01)
        nn.init.zeros_(self.layer.bias)
        with torch.no_grad():
            self.layer.bias[0] = forward_bias
        self.register_buffer("log_std_max", torch.tensor(log_std_max))

    def forward(self, x: Tensor) -> Params:
        """Return mean and standard deviation."""
        mean, spread = self.layer(x).chunk(2, dim=-1)
        log_std = self.log_std_max - F.softplus(-spread - 2.0)
        return mean, log_std.clamp(min=LOG_STD_MIN).exp()

    @staticmethod
    def sample(params: Params) -> Tensor:
        mean, std = params
        return mean + std * torch.randn_like(mean)

    @staticmethod
    def mean(params: Params) -> Tensor:
        return params[0]

    @staticmethod
    def to_env(raw: Tensor) -> Tensor:
        return raw.clamp(-1.0, 1.0) * 0.5 + 0.5

    @staticmethod
    def log_prob(params: Params, raw: Tensor) -> Tensor:
        mean, std = params
        z = (raw - mean) / std
        return (-0.5 * z * z - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    @staticmethod
    def entropy(params: Params) -> Tensor:
        return (params[1].log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


class BetaHead(nn.Module):
    """NavRL's Beta distribution on [0, 1]: alpha, beta = 1 + softplus(x) + 1e-6."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.alpha = nn.Linear(inputs, actions)
        self.beta = nn.Linear(inputs, actions)

    def forward(self, x: Tensor) -> Params:
        """Return alpha and beta."""
        return 1.0 + F.softplus(self.alpha(x)) + 1e-6, 1.0 + F.softplus(self.beta(x)) + 1e-6

    @staticmethod
    def sample(params: Params) -> Tensor:
        # the edges have infinite density where alpha or beta touch 1
        return torch.distributions.Beta(*params).sample().clamp(1e-6, 1 - 1e-6)

    @staticmethod
    def mean(params: Params) -> Tensor:
        alpha, beta = params
        return alpha / (alpha + beta)

    @staticmethod
    def to_env(raw: Tensor) -> Tensor:
        return raw

    @staticmethod
    def log_prob(params: Params, raw: Tensor) -> Tensor:
        return torch.distributions.Beta(*params, validate_args=False).log_prob(raw).sum(-1)

    @staticmethod
    def entropy(params: Params) -> Tensor:
        return torch.distributions.Beta(*params, validate_args=False).entropy().sum(-1)


Head = GaussianHead | BetaHead
