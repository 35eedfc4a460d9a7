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
from fledge.tasks.navigation.steering import READ


class PlanReader:
    """Plans of N drones from what they observe: `state`, `lidar`, `dynamic_obstacle` and `pose`, as docs/deploy.md has them.

    Args:
        env_cfg: The policy's env config: sensors, limits, decision rate, the planner's settings.
        count: How many drones.
    """

    def __init__(self, env_cfg: NavigationConfig, count: int = 1, device: str = "cpu") -> None:
        check_settings(env_cfg, "env.")
        if count < 1:
            raise InputError(f"count must be at least 1, got {count}.")
        self.count = count
        self._seen = {o.name: torch.zeros((count, o.size(env_cfg)), device=device) for o in READ}
        self._action = torch.zeros((count, 3), device=device)
        self._step = torch.zeros(count, dtype=torch.int32, device=device)
        self._out = torch.zeros((count, PLAN_WIDTH), device=device)
        plan, obs = ObservedPlan(env_cfg, self._action, wp.from_torch(self._step)), structs.Obs()
        for name, buffer in self._seen.items():
            setattr(obs, name, wp.from_torch(buffer))
        call = plan.call(AHEAD, structs.Result(), obs, self._seen["lidar"], self._out)
        self._plan, self._launcher = plan, Launcher(device, 1)
        self._program = self._launcher.record([call], count)

    @torch.no_grad()
    def read(self, obs: Mapping[str, Any], flown: Any | None = None) -> Tensor:
        """Plans [N, PLAN_WIDTH] for the next decision.

        Args:
            obs: What the drones observe now, as tensors or arrays.
            flown: The actions [N, 3] that were flown since the last call; None: a new flight, with empty memory.

        Raises:
            InputError: if something is missing or not finite; the memory stays as it was.
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
            raise InputError(
                f"{name} must have {buffer.numel()} numbers for {self.count} drones, got {values.numel()}."
            )
        buffer.copy_(values.reshape(buffer.shape))
        if not buffer.isfinite().all():
            raise InputError(
                f"{name} must be finite, but has NaN or infinity: pass the last finite reading. A beam that hits nothing "
                "is 0, and so is every number of an empty row."
            )
