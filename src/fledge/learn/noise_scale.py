"""Gradient noise scale: the batch size above which more samples hardly improve a gradient (McCandlish et al. 2018).

    B = tr(S) / |G|²      G: the true gradient, S: covariance matrix of the gradients of single samples

A minibatch is seen as K groups of n samples: the shares of K ranks, or two halves. With the groups' gradients g_k at the same
weights and their mean m, the minibatch's gradient, E|g|² = |G|² + tr(S)/n and E|m|² = |G|² + tr(S)/(K n), so

    |G|² = (K |m|² - mean |g|²) / (K - 1)      tr(S) = n (mean |g|² - |m|²) K / (K - 1)

are unbiased. (Gradients of successive minibatches are not: each step turns the next gradient.) The ratio of the two is
biased, so both are averaged over the last updates first, with weights that fall by DECAY.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fledge.learn.flat import average_over_ranks

DECAY = 0.95  # per update
LARGEST = 1e9  # reported if |G|² is too small to be measured


class NoiseScale:
    """Estimates the noise scale from minibatches of the first epoch, whose samples are new to the weights.

    Attributes:
        parts: [3]: running means of |G|² and tr(S), not yet divided by the third, the sum of their weights.
    """

    def __init__(self, device: torch.device) -> None:
        self.parts = torch.zeros(3, device=device)
        self._sums, self._count = torch.zeros(2, device=device), 0

    def add(self, group: Tensor, whole: Tensor) -> None:
        """Add a minibatch: the mean of |g|² over this rank's groups, and |m|²."""
        self._sums += torch.stack([group, whole])
        self._count += 1

    def finish(self, groups: int, samples: int, ranks: int = 1) -> None:
        """End an update, on every rank: its minibatches had `groups` groups of `samples` samples."""
        if self._count:
            group, whole = average_over_ranks(self._sums, ranks) / self._count
            signal = (groups * whole - group) / (groups - 1)
            noise = samples * (group - whole) * groups / (groups - 1)
            self.parts = DECAY * self.parts + (1 - DECAY) * torch.stack([signal, noise, torch.ones_like(signal)])
        self._sums.zero_()
        self._count = 0

    def value(self) -> Tensor:
        """Return the noise scale in samples, at most LARGEST; 0 while it is unknown."""
        signal, noise, _ = self.parts
        return noise / signal.clamp(min=1e-30).maximum(noise / LARGEST)
