"""PlanReader: the observation `plan` for programs that fly a planned policy elsewhere, decision by decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import warp as wp
from torch import Tensor

from fledge.core.errors import InputError
from fledge.core.settings import check_settings
from fledge.envs.launch import Launcher
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.physics import structs
from fledge.tasks.navigation.planner.observed import ObservedPlan
from fledge.tasks.navigation.planner.plan_observation import AHEAD, PLAN_WIDTH
from fledge.tasks.navigation.steering import OBSERVED


class PlanReader:
    """Plans of N drones from what they observe: `state`, `lidar`, `dynamic_obstacle` and `pose`, as docs/deploy.md has them.

    Args:
        world: The world of the policy: sensors, limits, decision rate, the planner's settings.
        count: How many drones.
    """

    def __init__(self, world: NavigationConfig, count: int = 1, device: str = "cpu") -> None:
        check_settings(world, "env.")
        if count < 1:
            raise InputError(f"A reader reads the plans of at least 1 drone, not of {count}.")
        self.count = count
        sizes = {"state": 8, "lidar": world.lidar_azimuths * world.num_elevations, "pose": 2}
        sizes["dynamic_obstacle"] = structs.NEAREST * structs.OBSTACLE_FEATURES
        self._seen = {name: torch.zeros((count, sizes[name]), device=device) for name in OBSERVED}
        self._action = torch.zeros((count, 3), device=device)
        self._step = torch.zeros(count, dtype=torch.int32, device=device)
        self._out = torch.zeros((count, PLAN_WIDTH), device=device)
        plan, obs = ObservedPlan(world, self._action, wp.from_torch(self._step)), structs.Obs()
        names = {"state": "state", "obstacles": "dynamic_obstacle", "pose": "pose"}
        for field, name in names.items():
            setattr(obs, field, wp.from_torch(self._seen[name]))
        call = plan.call(AHEAD, structs.Result(), obs, self._seen["lidar"], self._out)
        self._plan, self._launcher = plan, Launcher(device, 1)
        self._program = self._launcher.record([call], count)

    @torch.no_grad()
    def read(self, obs: Mapping[str, Any], flown: Any | None = None) -> Tensor:
        """Plans [N, PLAN_WIDTH] for the next decision.

        Args:
            obs: What the drones observe now, as tensors or arrays.
            flown: The actions [N, 3] that were flown since the last call; None: a flight begins, nothing is remembered.

        Raises:
            InputError: when something is missing or not finite. Nothing of it is remembered then.
        """
        for name, buffer in self._seen.items():
            self._take(name, obs.get(name, ()), buffer)
        self._step.fill_(0 if flown is None else 1)
        if flown is not None:
            self._take("flown", flown, self._action)
        self._launcher.run(self._program)
        return self._out.clone()

    def _take(self, name: str, given: Any, buffer: Tensor) -> None:
        values = torch.as_tensor(given)
        if values.numel() != buffer.numel():
            raise InputError(f"A plan of {self.count} drones needs {name} with {buffer.numel()} numbers.")
        buffer.copy_(values.reshape(buffer.shape))
        if not buffer.isfinite().all():
            raise InputError(
                f"{name} holds a number that is not finite, which no plan can be made of: give the last one that was. A "
                "beam that meets nothing is 0, and so is every number of an empty row."
            )
