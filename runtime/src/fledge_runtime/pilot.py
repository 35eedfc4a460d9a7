"""Fly a deployment folder: `load` checks it, a Pilot turns readings into velocity commands."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from fledge_runtime.contract import GOLDEN, POLICY, as_contract_error, check_files, read_contract
from fledge_runtime.errors import ContractError, InputError
from fledge_runtime.inputs import Command, Inputs
from fledge_runtime.observe import Observer, numbers
from fledge_runtime.policy import Policy

FARTHEST_M = 1e5  # from the goal; beyond, single precision is coarser than a centimetre


def load(folder: str | os.PathLike[str], goldens: bool = True) -> Deployment:
    """Load a deployment folder and check it.

    Args:
        goldens: Also fly one golden sequence, and compare observations, plan, action and command.

    Raises:
        ContractError: if a file is missing, altered or of a newer format, or the golden sequence gives other numbers.
    """
    path = Path(folder)
    contract = read_contract(path)
    check_files(path, contract)
    deployment = Deployment(path, contract)
    if goldens:
        from fledge_runtime.goldens import Goldens
        from fledge_runtime.verify import check

        with as_contract_error(path):
            check(deployment, Goldens.read(path / GOLDEN, contract), sequences=1)
    return deployment


class Deployment:
    """A deployment folder. `contract` is its contract, as docs/guides/deploy.md describes it."""

    def __init__(self, folder: Path, contract: dict[str, Any]) -> None:
        self.folder, self.contract = folder, contract

    @property
    def takes_readings(self) -> bool:
        """Whether it is flown by a Pilot, from a point cloud and odometry; else only by a Policy, from observations."""
        return self.contract["raw_inputs"] is not None

    def pilot(self) -> Pilot:
        """Return a new pilot; every drone needs its own."""
        if not self.takes_readings:
            names = ", ".join(name for name in self.contract["inputs"])
            raise ContractError(
                f"The policy in {self.folder} reads observations of its own task ({names}), which a pilot cannot compute: use "
                "deployment.policy()."
            )
        with as_contract_error(self.folder):
            return Pilot(self)

    def policy(self) -> Policy:
        """Return the network alone: observations in, action out. Every episode that runs at the same time needs its own."""
        if not self.contract["inputs"]:
            raise ContractError(f"The folder {self.folder} has no network, its planner flies: use deployment.pilot().")
        with as_contract_error(self.folder):
            return Policy(self.folder / POLICY, self.contract)

    def planner(self) -> Any:
        """Return the planner that flies, or whose plan the network reads; None if there is none."""
        if self.contract["planner"] is None:
            return None
        from fledge_runtime.planner import Planner

        return Planner(self.contract["planner"]["settings"])


class Pilot:
    """Flies one drone. Call `reset` at the start of every flight, then `step` every `decision_s` seconds."""

    def __init__(self, deployment: Deployment) -> None:
        self.contract = contract = deployment.contract
        self.decision_s = float(contract["decision_s"])
        self.speed_limit = float(contract["limits"]["speed_m_s"])
        self.goal_radius_m = float(contract["goal_radius_m"])
        self.observer = Observer(contract)
        self.policy = deployment.policy() if contract["inputs"] else None  # None: the planner flies
        self.planner = deployment.planner()
        self.time_s: float | None = None  # of the last decision; None before `reset`

    def reset(self, position_w: Any, goal_w: Any) -> None:
        """Begin a flight from `position_w` to `goal_w`, [3] m each: clear all memories, fix the goal frame."""
        self.observer.reset(position_w, goal_w)
        if self.policy is not None:
            self.policy.reset()
        if self.planner is not None:
            self.planner.reset()
        self.flown: np.ndarray | None = None
        self.time_s = -math.inf

    def step(self, inputs: Inputs) -> Command:
        """Return the velocity to fly for the next `decision_s` seconds.

        Raises:
            InputError: if a reading is missing, has a wrong shape or is not finite, or time does not grow; the memories stay
                as they were.
        """
        try:
            now = float(inputs.time_s)
        except (TypeError, ValueError, OverflowError):
            now = math.nan
        if self.time_s is None:
            raise InputError("Call reset(position_w, goal_w) before the first step.")
        if not now > self.time_s:
            raise InputError(f"time_s is {inputs.time_s}, but must grow: the last was {self.time_s}.")
        if inputs.movers is not None and self.planner is not None and self.planner.tracks:
            raise InputError("This policy tracks moving obstacles from the LiDAR itself: leave movers out.")
        marks = [time.perf_counter()]
        obs = self.observer.read(inputs)
        if not np.abs(obs["state"][3:5]).max() <= FARTHEST_M:
            raise InputError(
                f"position_w is more than {FARTHEST_M / 1e3:g} km from the goal: check both frames and units."
            )
        marks.append(time.perf_counter())
        self.complete(obs, self.flown if inputs.flown_w is None else self.to_action(inputs.flown_w))
        marks.append(time.perf_counter())
        action = self.act(obs)
        if not np.isfinite(action).all():
            raise InputError("The network's action is not finite: the inputs are beyond anything it can read.")
        velocity = self.to_velocity(action)
        marks.append(time.perf_counter())
        self.flown, self.time_s = None if self.policy is None else action, now
        return Command(velocity, now, action, self.tell(obs, marks))

    def complete(self, obs: dict[str, np.ndarray], flown: np.ndarray | None) -> None:
        """Add the observations that the planner computes; `flown` is the action flown since the last decision, if any."""
        if self.planner is not None:
            obs.update(self.planner.step({**obs, "flown": flown}))

    def act(self, obs: Any) -> np.ndarray:
        """Return the network's action for complete observations, 0 to 1, or that of the planner, which has made its plan."""
        if self.policy is None:
            return np.clip(self.planner.command / np.float32(2.0 * self.speed_limit) + np.float32(0.5), 0.0, 1.0)
        return np.clip(self.policy.act(obs)["action"], 0.0, 1.0)

    def to_velocity(self, action: np.ndarray) -> np.ndarray:
        """Return the velocity that an action means, [3] m/s, world."""
        return self.observer.to_world((2.0 * action.astype(np.float64) - 1.0) * self.speed_limit)

    def to_action(self, velocity_w: Any) -> np.ndarray:
        """Return the action that a velocity means, [3]; beyond the speed limit it is cut off."""
        velocity = self.observer.to_goal_frame(numbers("flown_w", velocity_w, 3))
        return np.clip(0.5 * (velocity / self.speed_limit + 1.0), 0.0, 1.0).astype(np.float32)

    def tell(self, obs: dict[str, np.ndarray], marks: Any) -> dict[str, Any]:
        """Return the facts in Command.info."""
        state, lidar, movers = obs["state"], obs["lidar"], obs["dynamic_obstacle"][0, :, 3]
        spans = [1e3 * (b - a) for a, b in zip(marks, marks[1:])]
        away = math.hypot(float(state[3]), float(state[4]))
        return {
            "arrived": away <= self.goal_radius_m,
            "goal_m": away,
            "nearest_m": self.observer.rays.range_m - float(lidar.max()) if lidar.any() else math.inf,
            "nearest_mover_m": float(movers[movers > 0].min()) if movers.any() else math.inf,
            "rays_hit": int(np.count_nonzero(lidar)),
            "plan_cost": float(obs["plan"][3]) if "plan" in obs else None,
            "hover_time": float(obs["plan"][5]) if "plan" in obs else None,
            "response": None if self.planner is None else self.planner.response,
            "ms": dict(zip(("observe", "plan", "network"), spans), total=sum(spans)),
        }
