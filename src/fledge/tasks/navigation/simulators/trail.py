"""The motion of all drones in another simulator, which the env's own kernels read instead of computing it.

Before a decision, `ExternalFlight.fly` computes for every drone the whole decision, physics step by physics step. The kernel
`flight.fly` then takes each step from the trail, up to the event that ends the drone's episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import warp as wp

from fledge.tasks.navigation.config import SIMULATED, Dynamics, NavigationConfig
from fledge.tasks.navigation.physics.structs import Trail, allocate
from fledge.tasks.navigation.simulators.autopilot import Autopilot
from fledge.tasks.navigation.simulators.gains import PARAMETERS
from fledge.tasks.navigation.simulators.iris import Iris
from fledge.tasks.navigation.simulators.mujoco import Mujoco
from fledge.tasks.navigation.simulators.plant import Array
from fledge.tasks.navigation.simulators.pyflyt import Pyflyt

PLANTS = {Dynamics.iris: Iris, Dynamics.mujoco: Mujoco, Dynamics.pyflyt: Pyflyt}


def no_trail(device: torch.device) -> Any:
    """Return the empty trail of an env that computes the motion itself."""
    return allocate(Trail, {2: (0, 0)}, device)[0]


class ExternalFlight:
    """Drones of an env that fly in another simulator.

    Args:
        cfg: Settings of the env.
        drones: State of the env's drones, by name.
    """

    def __init__(self, cfg: NavigationConfig, drones: Mapping[str, torch.Tensor]) -> None:
        assert cfg.dynamics in SIMULATED
        count, steps = cfg.num_envs, cfg.decimation
        kind = PLANTS[cfg.dynamics]
        self.drones, self.steps, self.parts = drones, steps, math.ceil(cfg.dt_s / kind.longest_step_s - 1e-9)
        self.plant = kind(count, cfg.dt_s / self.parts)
        self.pilot = Autopilot(PARAMETERS[cfg.autopilot], self.plant, cfg.dt_s / self.parts)
        device = drones["pos"].device
        self.trail, self._flown = allocate(Trail, {2: (steps, count)}, device)
        self.commands = torch.zeros((steps, count, 3), device=device)
        """Velocity command of every drone in every physics step, m/s, world; written by `flight.command`."""

    @property
    def commands_array(self) -> Any:
        return wp.from_torch(self.commands, dtype=wp.vec3)

    def fly(self) -> None:
        """Fly all drones for one decision by `commands`, and write their motion to the trail.

        Drones whose episode has just begun are placed at their starts.
        """
        begun = np.flatnonzero(self.drones["step"].cpu().numpy() == 0)
        if len(begun):
            pos, quat = (self.drones[name].cpu().numpy()[begun].T.astype(np.float64) for name in ("pos", "quat"))
            self.plant.place(begun, pos, quat)
            self.pilot.begin(begun)
        commands = self.commands.cpu().numpy().astype(np.float64)
        for step in range(self.steps):
            command = np.ascontiguousarray(commands[step].T)
            for part in range(self.parts):
                self.plant.step(self.pilot.motors(step * self.parts + part, command))
            for name, flown in self._flown.items():
                flown[step].copy_(torch.from_numpy(getattr(self.plant, name).T))

    def state(self) -> dict[str, torch.Tensor]:
        """Return the complete state of simulator and autopilot; the tensors share its memory."""
        parts: dict[str, Array] = {f"plant_{k}": v for k, v in self.plant.state().items()}
        parts |= {f"autopilot_{k}": v for k, v in self.pilot.state.items()}
        return {name: torch.from_numpy(array) for name, array in parts.items()}

    def close(self) -> None:
        self.plant.close()
