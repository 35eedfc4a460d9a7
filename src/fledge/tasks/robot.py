"""Robots: how a task's policies are flown from sensor readings, outside of the simulator.

A task whose policies read observations that a robot can compute describes here what it must measure; `fledge deploy` writes
that into the folder's contract, and `fledge_runtime` computes the observations from it. The default: a robot has to compute
the observations itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fledge.agents.base import BaseAgent
from fledge.envs.base import TensorEnv


@dataclass
class Readings:
    """Measurements of N robots before one decision; frames and units as in the contract."""

    start_w: np.ndarray  # [N, 3] m, where the flight began
    goal_w: np.ndarray  # [N, 3] m
    position_w: np.ndarray  # [N, 3] m
    velocity_w: np.ndarray  # [N, 3] m/s
    quaternion_wxyz: np.ndarray  # [N, 4] body to world
    points_w: Sequence[np.ndarray]  # N arrays [P, 3] m, hits of the sensor
    movers: Sequence[np.ndarray]  # N arrays [K, 8]: centre, velocity, width, height of moving obstacles


class RobotSide:
    """How a task's policies are flown from readings."""

    def planner_config(self, cfg: Any, agent: BaseAgent) -> Any | None:
        """Return the env config with the settings of an agent that the runtime's planner flies as it is, without a network.

        None: the agent needs its network.
        """
        return None

    def describe(self, cfg: Any, observes: Sequence[str], network: bool = True) -> dict[str, Any] | None:
        """Return the entries of a deployment contract for a policy with these observations.

        `network` is false for an agent that has a `planner_config`.

        Keys: raw_inputs, timing, limits, sensor, planner, reset. None: the policy's observations cannot be computed from
        readings, so that only its network can be deployed.
        """
        return None

    def recording_config(self, cfg: Any) -> Any:
        """Return the config of an env whose readings are without faults, for golden sequences."""
        return cfg

    def read(self, env: TensorEnv, obs: Mapping[str, Tensor], rows: Sequence[int] | None = None) -> Readings:
        """Return the readings of all rows of an env of `recording_config`, before their next decision.

        `rows`: points and movers of other rows may be left empty.
        """
        raise NotImplementedError
