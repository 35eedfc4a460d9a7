"""Observations as one vector, the input of the general networks.

    [ every observation, flattened, in the spec's order | masks of the action, in its spec's order ]

Discrete observations become one-hot. Masks come last, where `distributions` expects them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fledge.agents.base import Obs
from fledge.core.errors import ConfigError
from fledge.core.specs import ActionSpec, TensorSpec, parts_of

CLIP = 10.0  # deviations at which normalised observations are clipped


class Flattener:
    """Converts a dict of observations to one vector per env: all observations flattened, then the action masks.

    Attributes:
        keys: Names of the observations in the vector, in order.
        inputs: Width of the vector.
        masks: Number of mask columns, which are the last ones.
    """

    def __init__(self, observation: Mapping[str, TensorSpec], action: ActionSpec) -> None:
        last = [spec.mask for spec in parts_of(action).values() if spec.mask is not None]
        if missing := [name for name in last if name not in observation]:
            raise ConfigError(
                f"The action's mask {missing[0]!r} is not an observation: add it to {', '.join(observation)}."
            )
        self.keys = tuple([name for name in observation if name not in last] + last)
        self.specs = {name: observation[name] for name in self.keys}
        kinds = {
            name: 1 if name in last else spec.num_values or 1 for name, spec in self.specs.items()
        }  # masks are not normalised
        widths = {name: math.prod(spec.shape) * kinds[name] for name, spec in self.specs.items()}
        self.last = frozenset(last)
        self.inputs, self.masks = sum(widths.values()), sum(widths[name] for name in last)

    def __call__(self, obs: Obs) -> Tensor:
        """Return the vectors of a batch of observations, [B, inputs] float32."""
        return torch.cat([self._column(name, obs[name]) for name in self.keys], dim=-1)

    def _column(self, name: str, value: Tensor) -> Tensor:
        count = self.specs[name].num_values
        if count is not None and name not in self.last:
            value = F.one_hot(value.long(), count)
        return (value.flatten(1) if value.dim() > 1 else value.unsqueeze(1)).float()  # any batch size, also when traced

    def split(self, x: Tensor) -> Tensor | None:
        """Return the mask columns of encoded observations, or None if there are no masks."""
        return x[..., -self.masks :] if self.masks else None

    def examples(self, batch: int, seed: int) -> dict[str, Tensor]:
        """Return random observations that fit the specs; their action masks allow every action."""
        g = torch.Generator().manual_seed(seed)
        out = {}
        for name, spec in self.specs.items():
            shape = (batch, *spec.shape)
            if name in self.last:
                value = torch.ones(shape)
            elif spec.num_values is not None:
                value = torch.randint(spec.num_values, shape, generator=g)
            else:
                value = torch.randn(shape, generator=g).clamp(spec.low, spec.high)
            out[name] = value.to(spec.dtype)
        return out


class RunningNorm(nn.Module):
    """Running mean and variance of a vector, by Welford's sums; 0 and 1 before the first `update`."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / (self.var + 1e-8).sqrt()).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def update(self, mean: Tensor, square: Tensor, count: int) -> None:
        """Update the sums with the mean and mean square of `count` new vectors."""
        total = self.count + count
        share = (count / total).to(mean.dtype)
        var = (square - mean.square()).clamp(min=0)
        gap = mean - self.mean
        self.mean += gap * share
        self.var.copy_(self.var * (1 - share) + var * share + gap.square() * share * (1 - share))
        self.count.copy_(total)
