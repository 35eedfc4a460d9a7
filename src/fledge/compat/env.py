"""NavRL's `env.py`: the navigation env with the attributes and methods of NavRL's env class.

    env = NavigationEnv(cfg)
    env.drone.pos, env.drone.vel            # [N, 3], m and m/s; writing to them moves the drones
    env._reset_idx(env_ids)                 # begin new episodes in these envs
    env._compute_state_and_obs()            # observations now, without a step
    env.lidar_scan                          # [N, 1, 36, 4]

Episodes begin inside the env's kernels, so overriding `_reset_idx` in a subclass does not change how they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from fledge.tasks.navigation import env as navigation


class Drone:
    """State of all drones: the env's own tensors, so that writing to them moves the drones."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.pos, self.vel, self.rot = state["pos"], state["vel"], state["quat"]


class NavigationEnv(navigation.NavigationEnv):
    """A `fledge.NavigationEnv` that also has the attributes and methods of NavRL's env."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.drone = Drone(self.state)
        self._lidar_scan: Tensor | None = None

    @property
    def init_pos(self) -> Tensor:
        """Position where each drone's episode began, [N, 3], m."""
        return self.state["start"]

    @property
    def lidar_scan(self) -> Tensor:
        """LiDAR scans of the last call of `_compute_state_and_obs`, [N, 1, 36, 4]; the first access calls it."""
        if self._lidar_scan is None:
            self._compute_state_and_obs()
        assert self._lidar_scan is not None
        return self._lidar_scan

    def _reset_idx(self, env_ids: Sequence[int] | Tensor) -> None:
        """Begin new episodes in these envs."""
        mask = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        mask[torch.as_tensor(env_ids, device=self.device)] = True
        self.reset(mask if self._has_reset else None)

    def _compute_state_and_obs(self) -> TensorDict:
        """Return the observations of all drones, [N]."""
        nothing = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        observations = self.reset(nothing if self._has_reset else None)["obs"]
        self._lidar_scan = observations["lidar"]
        return TensorDict(dict(observations.items()), [self.num_envs])
