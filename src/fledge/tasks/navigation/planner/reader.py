"""The observation `plan`: its buffers, the launches that write it, and PlanReader, which computes it outside of an env."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import warp as wp
from torch import Tensor

from fledge.core.errors import InputError
from fledge.core.overrides import from_plain, nested
from fledge.core.settings import check_settings
from fledge.envs.launch import Call, Launcher
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.physics.structs import Result, bind
from fledge.tasks.navigation.planner.kernel import ALL, PLAN_WIDTH, PlanBuffers, observe_plan
from fledge.tasks.navigation.planner.structs import bind_planner, buffer_bytes, buffer_shapes, seen_of, within_limit
from fledge.tasks.navigation.sensing.observations import DYNAMIC_OBSTACLE
from fledge.tasks.navigation.steering import read_by
from fledge.tasks.navigation.tracking.tracker import MoverTracker

SCRATCH = ("fresh", "slow", "planes", "drift", "last")  # recomputed before they are read, or without effect on plans


def plan_bytes(env_cfg: NavigationConfig) -> int:
    """Return the memory of one drone's plan, bytes."""
    return buffer_bytes(env_cfg.planner, env_cfg) + 4 * (PLAN_WIDTH + 8)


class ObservedPlan:
    """The observation `plan` of N drones; `state` holds the buffers that the next plan depends on.

    Args:
        action: [N, 3] actions of the env.
        step: [N] physics steps flown in the episode.
        tracker: Memory of hits, if movers come from the LiDAR.
    """

    def __init__(
        self, env_cfg: NavigationConfig, action: Tensor, step: Tensor, tracker: MoverTracker | None = None
    ) -> None:
        self.env_cfg, self.step, f32 = env_cfg, wp.from_torch(step), torch.float32
        shapes = {**buffer_shapes(env_cfg.planner, env_cfg), "vel": (f32, (3,)), "kept": (f32, (PLAN_WIDTH,))}
        n, device = len(action), action.device
        self.tensors = t = {k: torch.zeros((n, *s), dtype=d, device=device) for k, (d, s) in shapes.items()}
        self.state = {k: v for k, v in t.items() if k not in SCRATCH}
        cfg = within_limit(env_cfg.planner, env_cfg.speed_limit)
        self.planner = bind_planner(cfg, env_cfg, t, tracker.tracker if tracker else None)
        self.buffers = bind(PlanBuffers, {"vel": t["vel"], "kept": t["kept"], "flown": action})
        self.buffers.fast, self.buffers.slow, self.buffers.limit = cfg.fast, cfg.slow, env_cfg.speed_limit
        self.buffers.brief_m = cfg.fast * (cfg.brief_s or cfg.horizon_s)

    def call(self, which: int, result: Result, obs: Mapping[str, Tensor], out: Tensor) -> Call:
        """Return the kernel launch that reads observations and writes plans to `out`.

        `which` selects the drones that plan anew: ALL, ENDED (their episode ended) or BEGUN (their episode begins).
        """
        seen = seen_of(self.env_cfg, obs, self.env_cfg.planner)
        return Call(observe_plan, [which, result, self.step, seen, self.planner, self.buffers, wp.from_torch(out)])


class PlanReader:
    """Computes plans of N drones from the observations state, lidar, dynamic_obstacle and pose (docs/guides/deploy.md).

    Args:
        env_cfg: The policy's env config: sensors, limits, decision rate, the planner's settings.
        count: Number of drones.
    """

    def __init__(self, env_cfg: NavigationConfig, count: int = 1, device: str = "cpu") -> None:
        check_settings(env_cfg, "env.")
        if count < 1:
            raise InputError(f"count must be at least 1, got {count}.")
        self.count = count
        self._seen = {o.name: torch.zeros((count, o.size(env_cfg)), device=device) for o in read_by(env_cfg)}
        self._action = torch.zeros((count, 3), device=device)
        self._step = torch.zeros(count, dtype=torch.int32, device=device)
        self._out = torch.zeros((count, PLAN_WIDTH), device=device)
        self._tracker = MoverTracker(env_cfg, self._step) if env_cfg.tracks_movers else None
        self._plan = ObservedPlan(env_cfg, self._action, self._step, self._tracker)
        calls = [self._tracker.call(ALL, Result(), self._seen)] if self._tracker else []
        calls.append(self._plan.call(ALL, Result(), self._seen, self._out))
        self._launcher = Launcher(device, 1)
        self._program = self._launcher.record(calls, count)

    @classmethod
    def from_contract(cls, contract: Mapping[str, Any], count: int = 1, device: str = "cpu") -> PlanReader:
        """Return a reader for an exported policy, from the contract (`Task.contract`) in its file."""
        try:
            settings = contract["observation"]["plan"]["env"]
        except (KeyError, TypeError):
            raise InputError(
                "The contract has no env settings for the observation `plan`: export the policy again, with env.plan=true."
            ) from None
        return cls(from_plain(NavigationConfig, nested(settings)), count, device)

    @torch.no_grad()
    def read(self, obs: Mapping[str, Any], flown: Any | None = None) -> Tensor:
        """Return the plans for the next decision, [N, PLAN_WIDTH].

        Args:
            obs: Present observations, as tensors or arrays.
            flown: Actions [N, 3] flown since the last call; None begins a new flight with empty memory.

        Raises:
            InputError: if an observation is missing, has the wrong size or is not finite; the memory stays unchanged.
        """
        for name, buffer in self._seen.items():
            if self._tracker is None or name != DYNAMIC_OBSTACLE.name:
                self._take(name, obs.get(name, ()), buffer)
        self._step.fill_(0 if flown is None else 1)
        if flown is not None:
            self._take("flown", flown, self._action)
        self._launcher.run(self._program)
        return self._out.clone()

    @property
    def tracked(self) -> Tensor | None:
        """Rows of `dynamic_obstacle` from the tracker in the last `read`, [N, numbers]; None if a detector gives them."""
        return None if self._tracker is None else self._seen[DYNAMIC_OBSTACLE.name].clone()

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
