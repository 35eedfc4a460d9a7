"""Q-network over discrete headings, on the egocentric occupancy grid and the drone's own state (dueling, Wang 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fledge.core.errors import ConfigError

OWN = 9  # state values as `features.py` scales them
PATCH = (
    4  # cells along a side of a patch; as channels they make convolutions three times faster on a CPU than as pixels
)


class GridQ(nn.Module):
    """Values of every heading."""

    def __init__(self, grid_size: int = 64, headings: int = 16, hidden: Sequence[int] = (256,)) -> None:
        super().__init__()
        self.grid_size, self.headings = grid_size, headings
        if grid_size < PATCH or grid_size % PATCH:
            raise ConfigError(
                f"env.grid_size is {grid_size}, but this network reads patches of {PATCH}: take a multiple."
            )
        self.grid = nn.Sequential(
            nn.PixelUnshuffle(PATCH),
            nn.Conv2d(PATCH * PATCH, 32, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        with torch.no_grad():
            width = self.grid(torch.zeros(1, 1, grid_size, grid_size)).shape[1] + OWN
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU(inplace=True)]
            width = size
        self.trunk = nn.Sequential(*layers)
        self.value = nn.Linear(width, 1)
        self.gain = nn.Linear(width, headings)

    @property
    def task(self) -> dict[str, Any]:
        """Settings of the env that this network flies in."""
        return {"grid_map": True, "grid_size": self.grid_size, "action_form": "headings", "num_headings": self.headings}

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Values [B, headings] of a batch of observations with `grid_map` and `state`."""
        h = torch.cat([self.grid(obs["grid_map"].float()), own_features(obs["state"])], dim=-1)
        h = self.trunk(h)
        gain = self.gain(h)
        return self.value(h) + gain - gain.mean(-1, keepdim=True)

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], deterministic: bool = True) -> Tensor:
        """The best heading of each drone, [B]."""
        return self(obs).argmax(-1)


def own_features(state: Tensor) -> Tensor:
    """Scaled state [B, 9]: unit vector to goal, far and near distance, height to goal, velocity."""
    far = state[:, 3:4]
    return torch.cat([state[:, :3], far * 0.05, far.clamp(max=4.0) * 0.25, state[:, 4:5], state[:, 5:8] * 0.5], dim=-1)
