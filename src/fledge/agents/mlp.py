"""Plain networks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn


def mlp(inputs: int, hidden: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Make linear layers with orthogonal weights of gain sqrt(2), each followed by an activation."""
    layers: list[nn.Module] = []
    for width, size in itertools.pairwise((inputs, *hidden)):
        linear = nn.Linear(width, size)
        nn.init.orthogonal_(linear.weight, gain=2**0.5)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU(inplace=True) if activation is nn.ReLU else activation()]
    return nn.Sequential(*layers)


def value_layer(inputs: int) -> nn.Linear:
    """Make the layer that predicts one number."""
    layer = nn.Linear(inputs, 1)
    nn.init.orthogonal_(layer.weight, gain=1.0)
    nn.init.zeros_(layer.bias)
    return layer
