"""MoverTracker: the tracker's buffers of N drones and its kernel launch."""

from __future__ import annotations

from collections.abc import Mapping

import warp as wp
from torch import Tensor

from fledge.envs.launch import Call
from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.physics.structs import Result
from fledge.tasks.navigation.planner.structs import seen_of
from fledge.tasks.navigation.tracking.kernel import track
from fledge.tasks.navigation.tracking.structs import SCRATCH, bind_tracker, make_buffers


class MoverTracker:
    """Tracks of N drones, from their observations; `state` holds the buffers that the next decision depends on.

    Args:
        step: [N] physics steps flown in the episode; 0 where one begins.
    """

    def __init__(self, env_cfg: NavigationConfig, step: Tensor) -> None:
        self.env_cfg, self.step = env_cfg, wp.from_torch(step)
        tensors = make_buffers(env_cfg, len(step), step.device)
        self.state = {name: tensor for name, tensor in tensors.items() if name not in SCRATCH}
        self.tracker = bind_tracker(env_cfg, tensors)

    def call(self, which: int, result: Result, obs: Mapping[str, Tensor]) -> Call:
        """Return the kernel launch that reads observations and writes `dynamic_obstacle`.

        `which` selects the drones whose tracks are updated: ALL, ENDED (their episode ended) or BEGUN (their episode begins).
        """
        seen, out = seen_of(self.env_cfg, obs, self.env_cfg.planner), wp.from_torch(obs["dynamic_obstacle"])
        return Call(track, [which, result, self.step, seen, self.tracker, out])
