"""Agents that work out a command by kernels on what they observe, drone by drone: the planner and ORCA, also as shields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fledge.agents.base import BaseAgent, Obs
from fledge.core.errors import InputError
from fledge.envs.launch import Launcher, Program
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.physics.structs import NEAREST, OBSTACLE_FEATURES

OBSERVED = ("state", "lidar", "dynamic_obstacle", "pose")


class Desk:
    """Buffers of N drones: what they observe, `wanted` and `command` [N, 3] m/s in the goal frame, and one's own.

    Args:
        own: Further buffers, dtype and shape of a drone's part each.
    """

    remembered: ClassVar[tuple[str, ...]] = ("fresh",)
    program: Program

    def __init__(
        self,
        world: NavigationConfig,
        count: int,
        device: torch.device,
        own: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    ) -> None:
        self.world, self.count, self.device = world, count, device
        self.launcher = Launcher(str(device), torch.get_num_threads())
        f32 = torch.float32
        shapes = {
            "state": (f32, (8,)),
            "lidar": (f32, (world.lidar_azimuths * world.num_elevations,)),
            "dynamic_obstacle": (f32, (NEAREST * OBSTACLE_FEATURES,)),
            "pose": (f32, (2,)),
            "wanted": (f32, (3,)),
            "command": (f32, (3,)),
            "fresh": (torch.bool, ()),
            **own,
        }
        self.tensors = {name: torch.zeros((count, *s), dtype=d, device=device) for name, (d, s) in shapes.items()}
        self.tensors["fresh"].fill_(True)

    def run(self, obs: Obs, wanted: Tensor | None) -> Tensor:
        """Commands [N, 3] for a batch of observations; the buffer is used again by the next call."""
        for name in OBSERVED:
            self.tensors[name].copy_(obs[name].reshape(self.count, -1))
        if wanted is not None:
            self.tensors["wanted"].copy_(wanted)
        self.launcher.run(self.program)
        return self.tensors["command"]


class Steering(BaseAgent):
    """Commands from observations. Rows keep their place from call to call, and `reset` says where new episodes begin.

    Args:
        world: Where it flies: sensors, limits, decision rate. `meet` changes it later.
    """

    observes = OBSERVED

    def __init__(self, world: NavigationConfig | None = None) -> None:
        super().__init__()
        self.world = world or NavigationConfig(pose=True)
        self._desk: Desk | None = None

    def make_desk(self, count: int, device: torch.device) -> Desk:
        raise NotImplementedError

    def meet(self, world: NavigationConfig) -> None:
        """Fly in this world from here on; in another one than before, what was remembered is forgotten."""
        if world != self.world:
            self.world, self._desk = world, None

    @torch.no_grad()
    def command(self, obs: Obs, wanted: Tensor | None = None) -> Tensor:
        """Velocity commands [B, 3], m/s in the goal frame, to be read before the next call."""
        count, device = len(obs["state"]), obs["state"].device
        if self._desk is None or self._desk.count != count or self._desk.device != device:
            self.device = device
            self._desk = self.make_desk(count, device)
        return self._desk.run(obs, wanted)

    def as_action(self, command: Tensor) -> Tensor:
        return (command / (2.0 * self.world.speed_limit) + 0.5).clamp(0.0, 1.0)

    def reset(self, env_mask: Tensor | None = None) -> None:
        """Forget, everywhere or where the mask is true."""
        if self._desk is None:
            return
        fresh = self._desk.tensors["fresh"]
        if env_mask is None:
            fresh.fill_(True)
        elif len(env_mask) != len(fresh):
            self._desk = None  # another number of drones: nothing of theirs is remembered
        else:
            fresh.logical_or_(env_mask.to(fresh.device))

    def episode_state(self) -> dict[str, Any]:
        if self._desk is None:
            return {}
        return {name: self._desk.tensors[name].clone() for name in self._desk.remembered}

    def load_episode_state(self, state: Mapping[str, Any]) -> None:
        if not state:
            self._desk = None
            return
        count = len(state["fresh"])
        if self._desk is None or self._desk.count != count:
            self._desk = self.make_desk(count, self.device)
        for name in self._desk.remembered:
            if state[name].shape != self._desk.tensors[name].shape:
                raise InputError(f"The saved state has {name} of shape {tuple(state[name].shape)}: of another world.")
            self._desk.tensors[name].copy_(state[name])
