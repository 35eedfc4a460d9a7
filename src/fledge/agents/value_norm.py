"""Running normalisation of values, with PopArt's correction of the layer that predicts them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueNorm(nn.Module):
    """Running mean and scale of returns by a debiased exponential average (NavRL: beta 0.995)."""

    mean_avg: Tensor
    square_avg: Tensor
    weight: Tensor

    def __init__(self, beta: float = 0.995, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.beta, self.epsilon = beta, epsilon
        self.register_buffer("mean_avg", torch.zeros(1))
        self.register_buffer("square_avg", torch.zeros(1))
        self.register_buffer("weight", torch.zeros(()))

    def mean_std(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation (variance at least 0.01); 0 and 1 before the first update."""
        if float(self.weight) == 0.0:
            return torch.zeros_like(self.mean_avg), torch.ones_like(self.mean_avg)
        weight = self.weight.clamp(min=self.epsilon)
        mean = self.mean_avg / weight
        variance = (self.square_avg / weight - mean**2).clamp(min=1e-2)
        return mean, variance.sqrt()

    @torch.no_grad()
    def update(self, mean: Tensor, square: Tensor) -> None:
        """Take the mean and mean square of a batch of returns into the averages."""
        self.mean_avg.mul_(self.beta).add_(mean, alpha=1 - self.beta)
        self.square_avg.mul_(self.beta).add_(square, alpha=1 - self.beta)
        self.weight.mul_(self.beta).add_(1 - self.beta)

    def normalize(self, x: Tensor) -> Tensor:
        mean, std = self.mean_std()
        return (x - mean) / std

    def denormalize(self, x: Tensor) -> Tensor:
        mean, std = self.mean_std()
        return x * std + mean

    @torch.no_grad()
    def update_preserving(self, mean: Tensor, square: Tensor, layer: nn.Linear) -> None:
        """Update, and change `layer` so that its denormalised output stays (PopArt, van Hasselt et al. 2016)."""
        old_mean, old_std = self.mean_std()
        self.update(mean, square)
        new_mean, new_std = self.mean_std()
        layer.weight.mul_(old_std / new_std)
        layer.bias.mul_(old_std).add_(old_mean - new_mean).div_(new_std)
