"""Action distributions. A head turns network outputs into parameters, and parameters into actions and probabilities.

    params = head(x)                     tuple of tensors [B, ...], as many as the distribution has
    raw    = head.sample(params)         [B, width] float32: stored in the rollout, input of log_prob
    action = head.to_env(raw)            passed to the env: scaled and shaped as its action_spec says
    head.log_prob(params, raw)           [B]          head.entropy(params)   [B]          head.mean(params)   raw
    head.evaluate(params, raw)           both of these, for learning

| action_spec                         | head            | raw                                  |
|-------------------------------------|-----------------|--------------------------------------|
| floating point                      | GaussianHead    | before clipping to [-1, 1]           |
| floating point, bounded             | BetaHead        | in [0, 1]                            |
| discrete (has `num_values`)         | CategoricalHead | index of the value, as a float       |
| a dict of such specs                | MixedHead       | raw actions of all entries, joined   |

If the spec of a discrete action names a `mask`, only allowed values are sampled. Masks are the last `masks` columns of the
network's input, so that the rollout contains them; `head(x, mask)` gets them, [B, masks].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fledge.agents.base import Action
from fledge.agents.mlp import linear
from fledge.core.errors import ConfigError
from fledge.core.specs import ActionSpec, TensorSpec

Params = tuple[Tensor, ...]
LOG_STD_MIN = -4.0
FORBIDDEN = -1e9  # logit of a masked value: its probability is 0 in float32, and nothing becomes NaN


class Head(nn.Module):
    """Base class of heads: the last layer of a policy, which outputs an action distribution."""

    width: int
    """Columns of `raw`."""
    masks: int = 0
    """Columns of the mask that `forward` takes."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Params:
        """Return the distribution's parameters for features [B, inputs]."""
        raise NotImplementedError

    def sample(self, params: Params) -> Tensor:
        raise NotImplementedError

    def mean(self, params: Params) -> Tensor:
        """Return the action without exploration: the mean, or the most likely value."""
        raise NotImplementedError

    def to_env(self, raw: Tensor) -> Action:
        raise NotImplementedError

    def log_prob(self, params: Params, raw: Tensor) -> Tensor:
        raise NotImplementedError

    def entropy(self, params: Params) -> Tensor:
        raise NotImplementedError

    def evaluate(self, params: Params, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Return `log_prob` and `entropy`; their gradients may take fewer operations than those of the two methods."""
        return self.log_prob(params, raw), self.entropy(params)

    def limit_spread(self, log_std_max: float) -> None:
        """Set the upper limit of the log standard deviation; heads without a standard deviation ignore it."""


def count_of(spec: TensorSpec) -> int:
    """Return the number of elements of an action."""
    return math.prod(spec.shape)


class Scale:
    """Converts between a learner's actions in [-1, 1] and the env's in [low, high]; unbounded actions stay unchanged."""

    def __init__(self, spec: TensorSpec) -> None:
        self.shape, self.bounded = spec.shape, spec.bounded
        self.half = 0.5 * (spec.high - spec.low) if spec.bounded else 1.0
        self.middle = 0.5 * (spec.high + spec.low) if spec.bounded else 0.0

    def to_env(self, action: Tensor) -> Tensor:
        return (action * self.half + self.middle).view(-1, *self.shape)

    def from_env(self, action: Tensor) -> Tensor:
        return (action.flatten(1) - self.middle) / self.half

    def clip(self, action: Tensor) -> Tensor:
        return action.clamp(-1.0, 1.0) if self.bounded else action


class GaussianHead(Head):
    """Normal distribution, clipped to [-1, 1] for the env; its standard deviation depends on the state and is limited.

    `first_mean` is the initial mean of the first value of an action.
    """

    log_std_max: Tensor

    def __init__(self, inputs: int, spec: TensorSpec, first_mean: float = 0.0, log_std_max: float = -0.5) -> None:
        super().__init__()
        self.width, self.scale = count_of(spec), Scale(spec)
        self.layer = linear(inputs, 2 * self.width, gain=0.01)
        with torch.no_grad():
            self.layer.bias[0] = first_mean
        self.register_buffer("log_std_max", torch.tensor(log_std_max))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Params:
        """Return mean and standard deviation."""
        mean, spread = self.layer(x).chunk(2, dim=-1)
        log_std = self.log_std_max - F.softplus(-spread - 2.0)
        return mean, log_std.clamp(min=LOG_STD_MIN).exp()

    def sample(self, params: Params) -> Tensor:
        mean, std = params
        return mean + std * torch.randn_like(mean)

    def mean(self, params: Params) -> Tensor:
        return params[0]

    def to_env(self, raw: Tensor) -> Tensor:
        return self.scale.to_env(self.scale.clip(raw))

    def log_prob(self, params: Params, raw: Tensor) -> Tensor:
        mean, std = params
        z = (raw - mean) / std
        return (-0.5 * z * z - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, params: Params) -> Tensor:
        return (params[1].log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def evaluate(self, params: Params, raw: Tensor) -> tuple[Tensor, Tensor]:
        return _NormalTerms.apply(*params, raw)

    def limit_spread(self, log_std_max: float) -> None:
        self.log_std_max.fill_(log_std_max)


class _NormalTerms(torch.autograd.Function):
    """Log-probability and entropy of independent normal distributions, with gradients in closed form."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, std: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        z = (raw - mean) / std
        log_std = std.log().sum(-1)
        ctx.save_for_backward(z, std)
        width = mean.shape[-1]
        log_prob = z.square().sum(-1).mul_(-0.5).sub_(log_std).sub_(0.5 * width * math.log(2 * math.pi))
        return log_prob, log_std.add_(0.5 * width * math.log(2 * math.pi * math.e))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log_prob: Tensor, by_entropy: Tensor) -> tuple[Tensor | None, ...]:
        z, std = ctx.saved_tensors
        mean_grad = by_log_prob.unsqueeze(-1) * z / std
        std_grad = torch.addcmul((by_entropy - by_log_prob).unsqueeze(-1) / std, mean_grad, z)
        return mean_grad, std_grad, None


class BetaHead(Head):
    """NavRL's Beta distribution on [0, 1], with alpha, beta = 1 + softplus(x) + 1e-6; `to_env` scales to the bounds."""

    def __init__(self, inputs: int, spec: TensorSpec) -> None:
        super().__init__()
        if not spec.bounded:
            raise ConfigError(
                "policy.beta=true needs an action with bounds, but this env's action has none: set policy.beta=false."
            )
        self.width, self.shape, self.low, self.span = count_of(spec), spec.shape, spec.low, spec.high - spec.low
        self.alpha, self.beta = nn.Linear(inputs, self.width), nn.Linear(inputs, self.width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Params:
        """Return alpha and beta."""
        return 1.0 + F.softplus(self.alpha(x)) + 1e-6, 1.0 + F.softplus(self.beta(x)) + 1e-6

    def sample(self, params: Params) -> Tensor:
        checked = params[0].device.type == "cpu"  # checking for NaN would wait for a GPU
        # at 0 and 1 the log-probability is minus infinity
        return self._beta(params, validate=checked).sample().clamp(1e-6, 1 - 1e-6)

    def mean(self, params: Params) -> Tensor:
        alpha, beta = params
        return alpha / (alpha + beta)

    def to_env(self, raw: Tensor) -> Tensor:
        return (raw if (self.low, self.span) == (0.0, 1.0) else self.low + self.span * raw).view(-1, *self.shape)

    def log_prob(self, params: Params, raw: Tensor) -> Tensor:
        return self._beta(params).log_prob(raw).sum(-1)

    def entropy(self, params: Params) -> Tensor:
        return self._beta(params).entropy().sum(-1)

    def evaluate(self, params: Params, raw: Tensor) -> tuple[Tensor, Tensor]:
        return _BetaTerms.apply(*params, raw)

    @staticmethod
    def _beta(params: Params, validate: bool = False) -> torch.distributions.Beta:
        return torch.distributions.Beta(params[0], params[1], validate_args=validate)


class _BetaTerms(torch.autograd.Function):
    """Log-probability and entropy of independent Beta distributions, with gradients in closed form."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, beta: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        stacked = torch.stack([alpha, beta, alpha + beta])
        normaliser = stacked.lgamma()
        log_beta = normaliser[0] + normaliser[1] - normaliser[2]
        psi = stacked.digamma()
        log_x, log_rest = raw.log(), (1 - raw).log()
        log_prob = (alpha - 1) * log_x + (beta - 1) * log_rest - log_beta
        entropy = log_beta - (alpha - 1) * psi[0] - (beta - 1) * psi[1] + (stacked[2] - 2) * psi[2]
        ctx.save_for_backward(stacked, log_x - psi[0] + psi[2], log_rest - psi[1] + psi[2])
        return log_prob.sum(-1), entropy.sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log_prob: Tensor, by_entropy: Tensor) -> tuple[Tensor | None, ...]:
        stacked, by_alpha, by_beta = ctx.saved_tensors
        slope = torch.polygamma(1, stacked)
        both = (stacked[2] - 2) * slope[2]
        log_prob, entropy = by_log_prob.unsqueeze(-1), by_entropy.unsqueeze(-1)
        alpha_grad = log_prob * by_alpha + entropy * (both - (stacked[0] - 1) * slope[0])
        beta_grad = log_prob * by_beta + entropy * (both - (stacked[1] - 1) * slope[1])
        return alpha_grad, beta_grad, None


class CategoricalHead(Head):
    """One categorical distribution over `num_values` choices for each element of the action; they are independent."""

    def __init__(self, inputs: int, spec: TensorSpec) -> None:
        super().__init__()
        assert spec.num_values is not None
        self.width, self.values, self.shape, self.dtype = count_of(spec), spec.num_values, spec.shape, spec.dtype
        self.masks = self.width * self.values if spec.mask is not None else 0
        self.layer = linear(inputs, self.width * self.values, gain=0.01)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Params:
        """Return the log-probability of every choice, [B, width, num_values]."""
        logits = self.layer(x)
        if self.masks and mask is not None:
            logits = logits.masked_fill(mask < 0.5, FORBIDDEN)
        return (logits.view(-1, self.width, self.values).log_softmax(-1),)

    def sample(self, params: Params) -> Tensor:
        return sample_index(params[0].exp()).float()

    def mean(self, params: Params) -> Tensor:
        return params[0].argmax(-1).float()

    def to_env(self, raw: Tensor) -> Tensor:
        return raw.to(self.dtype).view(-1, *self.shape)

    def log_prob(self, params: Params, raw: Tensor) -> Tensor:
        return params[0].gather(-1, raw.long().unsqueeze(-1)).squeeze(-1).sum(-1)

    def entropy(self, params: Params) -> Tensor:
        return -(params[0].exp() * params[0]).sum((-1, -2))


def sample_index(weights: Tensor) -> Tensor:
    """Return `torch.multinomial(weights, 1)[..., 0]`, number for number, for weights [..., n]; any index for NaN.

    It lacks the checks that wait for a GPU and there end the process on NaN, which the learner reports.
    """
    return (weights / torch.empty_like(weights, memory_format=torch.contiguous_format).exponential_()).argmax(-1)


class MixedHead(Head):
    """Head for a dict of actions: one head per entry; entries are independent given the state."""

    def __init__(self, inputs: int, specs: Mapping[str, TensorSpec], beta: bool = False) -> None:
        super().__init__()
        if not specs:
            raise ConfigError("The action spec is an empty dict, but must have at least one entry.")
        self.heads = nn.ModuleDict({name: make_head(inputs, spec, beta) for name, spec in specs.items()})
        self.parts: list[Head] = [head for head in self.heads.values() if isinstance(head, Head)]
        self.names, self.widths = tuple(specs), [head.width for head in self.parts]
        self.width, self.masks = sum(self.widths), sum(head.masks for head in self.parts)
        counts = [1 if isinstance(head, CategoricalHead) else 2 for head in self.parts]  # of parameters
        self.places = [slice(end - n, end) for n, end in zip(counts, itertools.accumulate(counts), strict=True)]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Params:
        """Return the parameters of all entries, one after the other."""
        masks = [None] * len(self.parts) if mask is None else mask.split([head.masks for head in self.parts], dim=-1)
        found = [head(x, part) for head, part in zip(self.parts, masks, strict=True)]
        return tuple(tensor for params in found for tensor in params)

    def _each(self, params: Params) -> list[tuple[Head, Params]]:
        return [(head, params[place]) for head, place in zip(self.parts, self.places, strict=True)]

    def sample(self, params: Params) -> Tensor:
        return torch.cat([head.sample(part) for head, part in self._each(params)], dim=-1)

    def mean(self, params: Params) -> Tensor:
        return torch.cat([head.mean(part) for head, part in self._each(params)], dim=-1)

    def to_env(self, raw: Tensor) -> dict[str, Tensor]:
        parts = zip(self.names, self.parts, raw.split(self.widths, dim=-1), strict=True)
        return {name: head.to_env(part) for name, head, part in parts}  # type: ignore[misc]

    def log_prob(self, params: Params, raw: Tensor) -> Tensor:
        each = zip(self._each(params), raw.split(self.widths, dim=-1), strict=True)
        return sum((head.log_prob(p, r) for (head, p), r in each), raw.new_zeros(()))

    def entropy(self, params: Params) -> Tensor:
        return sum((head.entropy(part) for head, part in self._each(params)), params[0].new_zeros(()))

    def limit_spread(self, log_std_max: float) -> None:
        for head in self.parts:
            head.limit_spread(log_std_max)


def make_head(inputs: int, spec: ActionSpec, beta: bool = False) -> Head:
    """Return the head for an action spec: Gaussian or Beta, categorical, or mixed."""
    if not isinstance(spec, TensorSpec):
        return MixedHead(inputs, spec, beta)
    if spec.num_values is not None:
        return CategoricalHead(inputs, spec)
    return BetaHead(inputs, spec) if beta else GaussianHead(inputs, spec)
