"""Agents that compute commands from observations in kernels: the planner and ORCA, also as shields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import warp as wp
from torch import Tensor

from fledge.agents.base import BaseAgent, Obs
from fledge.core.errors import InputError
from fledge.envs.launch import Call, Launcher, Program
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.sensing.observations import ATTITUDE, DYNAMIC_OBSTACLE, LIDAR, POSE, STATE, Observation

READ = (STATE, LIDAR, DYNAMIC_OBSTACLE, POSE)
OBSERVED = tuple(observation.name for observation in READ)


def read_by(env_cfg: NavigationConfig) -> tuple[Observation, ...]:
    """Return the observations that planner and ORCA read in an env: `READ`, and `attitude` if the LiDAR tilts."""
    return (*READ, ATTITUDE) if env_cfg.lidar_tilts else READ


class Buffers:
    """Buffers of N drones: their observations, the velocities before and after steering, and further buffers.

    `wanted` is the velocity before steering, `command` the one after it, [N, 3] m/s in the goal frame.

    Args:
        own: Further buffers by name, each as (dtype, shape for one drone).
    """

    remembered: tuple[str, ...] = ("fresh",)

    def __init__(
        self,
        env_cfg: NavigationConfig,
        count: int,
        device: torch.device,
        own: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    ) -> None:
        self.count, self.device = count, device
        self.observed = tuple(observation.name for observation in read_by(env_cfg))
        self.launcher = Launcher(str(device), torch.get_num_threads())
        f32 = torch.float32
        shapes = {
            **{observation.name: (f32, (observation.size(env_cfg),)) for observation in read_by(env_cfg)},
            "wanted": (f32, (3,)),
            "command": (f32, (3,)),
            "fresh": (torch.bool, ()),
            **own,
        }
        self.tensors = {name: torch.zeros((count, *s), dtype=d, device=device) for name, (d, s) in shapes.items()}
        self.tensors["fresh"].fill_(True)

    def record(self, kernel: Any, *args: Any, before: Sequence[Call] = ()) -> None:
        """Prepare the launch of a kernel with these arguments, followed by `wanted` and `command`; `before` runs first."""
        vectors = [wp.from_torch(self.tensors[name], dtype=wp.vec3) for name in ("wanted", "command")]
        self.program: Program = self.launcher.record([*before, Call(kernel, [*args, *vectors])], self.count)

    def run(self, obs: Obs, wanted: Tensor | None) -> Tensor:
        """Return commands [N, 3] for a batch of observations, in a buffer that the next call overwrites."""
        for name in self.observed:
            self.tensors[name].copy_(obs[name].reshape(self.count, -1))
        if wanted is not None:
            self.tensors["wanted"].copy_(wanted)
        self.launcher.run(self.program)
        return self.tensors["command"]


class Steering(BaseAgent):
    """An agent that computes commands in kernels, from observations and a memory of past scans; `reset` clears the memory.

    Args:
        env_cfg: Config of the env to fly in: sensors, limits, decision rate. `configure` changes it.
    """

    observes = OBSERVED

    def __init__(self, env_cfg: NavigationConfig | None = None) -> None:
        super().__init__()
        self.env_cfg = env_cfg or NavigationConfig(pose=True)
        self._kernel_buffers: Buffers | None = None

    def make_buffers(self, count: int, device: torch.device) -> Buffers:
        raise NotImplementedError

    def bind(self, env: Any) -> None:
        self.configure(env.unwrapped.cfg)

    def configure(self, env_cfg: NavigationConfig) -> None:
        """Set the config of the env to fly in; clear the memory if the config changes."""
        if env_cfg != self.env_cfg:
            self.env_cfg, self._kernel_buffers = env_cfg, None

    @torch.no_grad()
    def command(self, obs: Obs, wanted: Tensor | None = None) -> Tensor:
        """Return velocity commands [B, 3], m/s in the goal frame, in a buffer that the next call overwrites.

        `wanted` has the velocities to correct, also [B, 3]; None if the agent chooses its commands alone.
        """
        count, device = len(obs["state"]), obs["state"].device
        if self._kernel_buffers is None or self._kernel_buffers.count != count or self._kernel_buffers.device != device:
            self.device = device
            self._kernel_buffers = self.make_buffers(count, device)
        return self._kernel_buffers.run(obs, wanted)

    def as_action(self, command: Tensor) -> Tensor:
        return (command / (2.0 * self.env_cfg.speed_limit) + 0.5).clamp(0.0, 1.0)

    def reset(self, env_mask: Tensor | None = None) -> None:
        """Clear the memory of all drones, or of those for which the mask is true."""
        if self._kernel_buffers is None:
            return
        fresh = self._kernel_buffers.tensors["fresh"]
        if env_mask is None:
            fresh.fill_(True)
        elif len(env_mask) != len(fresh):
            self._kernel_buffers = None  # the number of drones changed
        else:
            fresh.logical_or_(env_mask.to(fresh.device))

    def episode_state(self) -> dict[str, Any]:
        if self._kernel_buffers is None:
            return {}
        return {name: self._kernel_buffers.tensors[name].clone() for name in self._kernel_buffers.remembered}

    def load_episode_state(self, state: Mapping[str, Any]) -> None:
        if not state:
            self._kernel_buffers = None
            return
        count = len(state["fresh"])
        if self._kernel_buffers is None or self._kernel_buffers.count != count:
            self._kernel_buffers = self.make_buffers(count, self.device)
        for name in self._kernel_buffers.remembered:
            own, saved = self._kernel_buffers.tensors[name], state.get(name)
            if saved is None:  # saved before it existed
                continue
            if saved.shape != own.shape:
                raise InputError(
                    f"The policy's saved memory has {name} of shape {tuple(saved.shape)}, but this env needs "
                    f"{tuple(own.shape)}: use the env config that it was saved with."
                )
            own.copy_(saved)
