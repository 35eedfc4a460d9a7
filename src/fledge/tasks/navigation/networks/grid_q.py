"""Q-network over discrete headings, on the egocentric occupancy grid and the drone's own state (dueling, Wang 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fledge.agents.base import Obs
from fledge.agents.q_network import QNetwork
from fledge.core.errors import ConfigError
from fledge.tasks.navigation.networks.feature_policy import STATE_FEATURES, own_features
from fledge.tasks.navigation.sensing.observations import STATE

PATCH = 4  # cells along a side of a patch; as channels they make convolutions three times faster on a CPU


class GridQ(QNetwork):
    """Q-network that returns the value of each heading."""

    observes = ("grid_map", "state")

    def __init__(self, grid_size: int = 64, headings: int = 16, hidden: Sequence[int] = (256,)) -> None:
        super().__init__()
        self.grid_size, self.num_actions = grid_size, headings
        if grid_size < PATCH or grid_size % PATCH:
            raise ConfigError(
                f"env.grid_size must be a multiple of {PATCH} (the network reads {PATCH} x {PATCH} patches), got {grid_size}."
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
            width = self.grid(torch.zeros(1, 1, grid_size, grid_size)).shape[1] + STATE_FEATURES
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU(inplace=True)]
            width = size
        self.trunk = nn.Sequential(*layers)
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, headings)
        self.register_load_state_dict_pre_hook(_rename_old_entries)

    def forward(self, obs: Obs) -> Tensor:
        """Return values [B, headings] of a batch of observations with `grid_map` and `state`."""
        h = torch.cat([self.grid(obs["grid_map"].float()), own_features(obs["state"])], dim=-1)
        h = self.trunk(h)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(-1, keepdim=True)

    def example_inputs(self, batch: int, seed: int = 0) -> dict[str, Tensor]:
        g = torch.Generator().manual_seed(seed)
        shape = (batch, 1, self.grid_size, self.grid_size)
        grid = (torch.rand(shape, generator=g) < 0.2).to(torch.uint8)
        return {"grid_map": grid, "state": torch.randn(batch, *STATE.shape(), generator=g)}


def _rename_old_entries(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Rename entries of older files, which call the advantage layer `gain`."""
    for kind in ("weight", "bias"):
        if f"{prefix}gain.{kind}" in state:
            state[f"{prefix}advantage.{kind}"] = state.pop(f"{prefix}gain.{kind}")
