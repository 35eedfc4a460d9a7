"""Linear layers and MLPs with orthogonal initial weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn

from fledge.agents.linear import Linear


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """Return a linear layer with orthogonal initial weights, scaled by `gain`, and zero bias."""
    layer = Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain=gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(inputs: int, hidden: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers with orthogonal weights of gain sqrt(2), each followed by an activation."""
    layers: list[nn.Module] = []
    for width, size in itertools.pairwise((inputs, *hidden)):
        layers += [linear(width, size, gain=2**0.5), nn.ReLU(inplace=True) if activation is nn.ReLU else activation()]
    return nn.Sequential(*layers)


def value_layer(inputs: int) -> nn.Linear:
    """Return a linear layer with one output, the last layer of a value network."""
    return linear(inputs, 1, gain=1.0)
